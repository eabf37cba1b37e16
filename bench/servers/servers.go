// Package servers starts the servers that the systems are measured on: a Postgres of
// its own with fsync and synchronous_commit on, found and run as `dispatcher dev` does,
// and a redis. Both keep their data below a directory of the caller's and end with it.
package servers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/devpg"
)

// Postgres is a running server.
type Postgres struct {
	server *devpg.Server
	dir    string
}

// settings are of a server that has a machine to itself. What makes a commit durable is
// Postgres' own default, and checked at the start.
var settings = map[string]string{
	"shared_buffers":     "1GB",
	"max_wal_size":       "4GB",
	"autovacuum_naptime": "10s",
}

// StartPostgres starts the server whose data lives in dir, with more settings than the
// usual.
func StartPostgres(ctx context.Context, dir string, more map[string]string) (*Postgres, error) {
	bin, err := devpg.Find()
	if err != nil {
		return nil, err
	}
	p := &Postgres{dir: dir}
	if p.server, err = devpg.Start(ctx, bin, dir); err != nil {
		return nil, err
	}
	// Most of them take a new start.
	err = p.do(ctx, func(c *pgx.Conn) error {
		all := maps.Clone(settings)
		maps.Copy(all, more)
		for name, value := range all {
			if _, err := c.Exec(ctx, "ALTER SYSTEM SET "+name+" = '"+value+"'"); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, p.server.Stop()); err != nil {
		return nil, err
	}
	if p.server, err = devpg.Start(ctx, bin, dir); err != nil {
		return nil, err
	}
	if err := p.durable(ctx); err != nil {
		return nil, errors.Join(err, p.server.Stop())
	}
	return p, nil
}

// durable refuses a server that does not wait for the disk.
func (p *Postgres) durable(ctx context.Context) error {
	return p.do(ctx, func(c *pgx.Conn) error {
		for _, name := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
			var value string
			if err := c.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&value); err != nil {
				return err
			}
			if value != "on" {
				return fmt.Errorf("Postgres runs with %s = %s", name, value)
			}
		}
		return nil
	})
}

// Version is the server's.
func (p *Postgres) Version(ctx context.Context) (version string, err error) {
	err = p.do(ctx, func(c *pgx.Conn) error { return c.QueryRow(ctx, "SHOW server_version").Scan(&version) })
	return version, err
}

// Fresh makes an empty database and tells how to reach it.
func (p *Postgres) Fresh(ctx context.Context, name string) (dsn string, err error) {
	err = p.do(ctx, func(c *pgx.Conn) error {
		for _, sql := range []string{"DROP DATABASE IF EXISTS " + name + " WITH (FORCE)", "CREATE DATABASE " + name, "CHECKPOINT"} {
			if _, err := c.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
	return p.server.SuperuserDSN(name), err
}

func (p *Postgres) do(ctx context.Context, f func(*pgx.Conn) error) error {
	c, err := pgx.Connect(ctx, p.server.SuperuserDSN("postgres"))
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.Close(ctx))
}

// PID is the server's.
func (p *Postgres) PID() (int, error) {
	b, err := os.ReadFile(filepath.Join(p.dir, "data", "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strconv.Atoi(line)
}

// Stop ends the server.
func (p *Postgres) Stop() error { return p.server.Stop() }

// Redis is a running server.
type Redis struct {
	cmd  *exec.Cmd
	addr string
}

// StartRedis starts a server that answers a write once it is on the disk, as a commit
// of Postgres does.
func StartRedis(ctx context.Context, dir string) (*Redis, error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Redis{addr: l.Addr().String()}
	if err := l.Close(); err != nil {
		return nil, err
	}
	_, port, _ := strings.Cut(r.addr, ":")
	r.cmd = exec.Command("redis-server", "--bind", "127.0.0.1", "--port", port, "--dir", dir, "--save", "", "--appendonly", "yes", "--appendfsync", "always")
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	for range 100 {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", r.addr)
		if err == nil {
			return r, c.Close()
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil, errors.Join(errors.New("redis does not listen"), r.Stop())
}

// Address is where it listens, PID its process.
func (r *Redis) Address() string { return r.addr }

// PID is the server's process.
func (r *Redis) PID() int { return r.cmd.Process.Pid }

// Stop ends the server.
func (r *Redis) Stop() error {
	if err := r.cmd.Process.Kill(); err != nil { // its data goes, too
		return err
	}
	_ = r.cmd.Wait() // killed, as was asked
	return nil
}
