package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"turnpike/cmd/internal/cli"
	"turnpike/internal/devpg"
	"turnpike/internal/job"
	"turnpike/internal/store"
)

// devPostgres is the database of dev, wherever it runs.
type devPostgres struct {
	dsn   string
	stop  func()
	ended <-chan struct{} // closed when it ended by itself; nil when nobody can tell
}

// startPostgres finds dev a database, in the order the help text promises.
func startPostgres(ctx context.Context, s *cli.Settings, dir string, log *slog.Logger) (*devPostgres, error) {
	want := s.String("postgres")
	bin, findErr := devpg.Find()
	dsn, err := s.Secret("database-url")
	if err != nil {
		return nil, err
	}
	if dsn == "" {
		dsn = os.Getenv("DATABASE_URL")
	}
	switch {
	case want == "local" && findErr != nil:
		return nil, fmt.Errorf("%w: %w", job.ErrUnavailable, findErr)
	case want == "local", want == "auto" && findErr == nil:
		srv, err := devpg.Start(ctx, bin, filepath.Join(dir, "postgres"))
		if errors.Is(err, devpg.ErrInUse) {
			return nil, fmt.Errorf("another `dispatcher dev` runs in %s: %w: %w", dir, job.ErrUnavailable, err)
		}
		if err != nil {
			return nil, err
		}
		log.Info("postgres", "binaries", bin, "data", filepath.Join(dir, "postgres"))
		return &devPostgres{dsn: srv.SuperuserDSN("postgres"), ended: srv.Done(), stop: func() {
			if err := srv.Stop(); err != nil {
				log.Error("stop postgres", "error", err)
			}
		}}, nil
	case want == "url" && dsn == "":
		return nil, cli.Usagef("--postgres url: set TURNPIKE_DATABASE_URL or DATABASE_URL to a login that may create roles")
	case want == "url", want == "auto" && dsn != "":
		log.Info("postgres", "url", "from the environment")
		return &devPostgres{dsn: dsn, stop: func() {}}, nil
	case want == "container", want == "auto":
		pg, err := containerPostgres(ctx, dir, log)
		if err != nil {
			return nil, fmt.Errorf("no Postgres to be had; install one (Debian: apt-get install postgresql), or set DATABASE_URL, or start a container engine: %w: %w", job.ErrUnavailable, err)
		}
		return pg, nil
	}
	return nil, cli.Usagef("--postgres %q: want auto, local, url or container", want)
}

// containerPostgres runs a container whose data is in a named volume.
func containerPostgres(ctx context.Context, dir string, log *slog.Logger) (*devPostgres, error) {
	image := os.Getenv("PG_IMAGE")
	if image == "" {
		image = "postgres:15"
	}
	sum := sha256.Sum256([]byte(dir))
	name := "turnpike-dev-" + hex.EncodeToString(sum[:4])
	password, err := keptPassword(filepath.Join(dir, "container-password"))
	if err != nil {
		return nil, err
	}
	docker := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "docker", args...)
		cmd.Env = append(os.Environ(), "POSTGRES_PASSWORD="+password) // by name in args: they are public
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("docker %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
		}
		return strings.TrimSpace(string(out)), nil
	}
	id, err := docker("run", "-d", "--rm", "--name", name, "-e", "POSTGRES_PASSWORD", "-p", "127.0.0.1::5432", "-v", name+":/var/lib/postgresql/data", image)
	if err != nil {
		return nil, err
	}
	pg := &devPostgres{stop: func() {
		// Not bound to ctx: it has ended by now.
		if out, err := exec.Command("docker", "stop", "-t", "20", id).CombinedOutput(); err != nil {
			log.Error("stop the Postgres container", "error", err, "output", string(out))
		}
	}}
	addr, err := docker("port", id, "5432/tcp")
	if err == nil {
		addr, _, _ = strings.Cut(addr, "\n")
		u := url.URL{Scheme: "postgres", Host: addr, Path: "/postgres", User: url.UserPassword("postgres", password), RawQuery: "sslmode=disable"}
		pg.dsn = u.String()
		err = answers(ctx, pg.dsn)
	}
	if err != nil {
		pg.stop()
		return nil, err
	}
	log.Info("postgres", "container", name, "image", image)
	return pg, nil
}

// answers waits until a database that is starting answers.
func answers(ctx context.Context, dsn string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := store.MigrationStatus(ctx, dsn)
		if err == nil || !errors.Is(err, job.ErrUnavailable) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// keptPassword reads a password, or makes one. It outlives the container, as the
// volume does.
func keptPassword(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(b)), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	password := rand.Text()
	return password, os.WriteFile(path, []byte(password+"\n"), 0o600)
}
