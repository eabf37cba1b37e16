package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"turnpike/cmd/internal/cli"
	"turnpike/internal/api"
	"turnpike/internal/job"
	"turnpike/internal/queue"
	"turnpike/internal/store"
)

// devCeiling is the ceiling of a worker that `dev` starts.
//
//go:embed dev-ceiling.yaml
var devCeiling string

func devCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole installation on this machine",
		Long: `Dev runs Postgres, NATS, a dispatcher and a worker on this machine, with nothing to
configure. Data is durable: it lives in --dir and is there again next time.

Postgres is, in this order: the server binaries on this machine, run privately on
a unix socket; $TURNPIKE_DATABASE_URL or $DATABASE_URL; a container of the engine
on this machine. --postgres chooses one.

The worker's ceiling allows confined turns of the four agents in scratch workspaces,
and in directories beneath each --workspace-root. It gives them ANTHROPIC_API_KEY (or
CLAUDE_CODE_OAUTH_TOKEN) and OPENAI_API_KEY of this command's environment, each to
the agents that the file ceiling.yaml in --dir binds it to.`,
		Example: `  ANTHROPIC_API_KEY=... dispatcher dev
  dispatcher dev --slots none-confined=4 --workspace-root ~/src`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := cli.LoadSettings(cmd, "database-url")
			if err != nil {
				return err
			}
			log, err := cli.Logger(cmd.ErrOrStderr(), s.String("log-format"), s.String("log-level"))
			if err != nil {
				return err
			}
			return dev(cmd, s, log)
		},
	}
	serveFlags(cmd)
	f := cmd.Flags()
	f.String("dir", defaultDevDir(), "where everything is kept")
	f.String("postgres", "auto", "auto, local, url or container")
	f.Int("nats-port", natsPort, "loopback port of NATS; 0 is any")
	f.StringSlice("slots", []string{"none-confined=2"}, "the worker's turns at a time, as PLACEMENT=N")
	f.String("ceiling", "", "another ceiling file for the worker")
	f.StringSlice("workspace-root", nil, "directory beneath which turns may work; repeat it for more")
	f.StringSlice("bin", nil, "an agent's executable, as NAME=PATH")
	f.Bool("no-worker", false, "start no worker")
	_ = cmd.RegisterFlagCompletionFunc("postgres", cobra.FixedCompletions([]string{"auto", "local", "url", "container"}, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	_ = cmd.MarkFlagDirname("workspace-root")
	return cmd
}

// defaultDevDir is in /var/lib for root: the user Postgres runs as must get there.
func defaultDevDir() string {
	if os.Getuid() == 0 {
		return "/var/lib/turnpike/dev"
	}
	if d := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "turnpike", "dev")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return filepath.Join(os.TempDir(), "turnpike-dev")
	}
	return filepath.Join(home, ".local", "state", "turnpike", "dev")
}

func dev(cmd *cobra.Command, s *cli.Settings, log *slog.Logger) (err error) {
	ctx, dir := cmd.Context(), s.String("dir")
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return cli.Usagef("dir: %w", err)
	}
	// Every part below is stopped in the reverse order of its start.
	var stops []func()
	defer func() {
		for i := len(stops) - 1; i >= 0; i-- {
			stops[i]()
		}
	}()

	pg, err := startPostgres(ctx, s, dir, log)
	if err != nil {
		return err
	}
	stops = append(stops, pg.stop)
	if n, err := store.Migrate(ctx, pg.dsn, log); err != nil {
		return err
	} else if n > 0 {
		log.Info("schema brought up to date", "migrations", n)
	}
	logins, err := devLogins(ctx, pg.dsn)
	if err != nil {
		return err
	}
	if err := writeService(filepath.Join(dir, "pg_service.conf"), logins["reporter"]); err != nil {
		return err
	}
	nats, err := startNATS(ctx, dir, s.Int("nats-port"), log)
	if err != nil {
		return err
	}
	stops = append(stops, nats.stop)

	cfg := commonSettings(s)
	cfg.database = logins["dispatcher"]
	cfg.nats = queue.Config{URL: nats.url(), User: string(queue.Dispatcher), Password: nats.passwords[queue.Dispatcher]}
	if cfg.tokens, err = devTokens(s, dir); err != nil {
		return err
	}
	if err := api.CheckListen(cfg.listen, cfg.tokens); err != nil {
		return cli.Usagef("%w", err)
	}

	// The worker drains while the dispatcher still serves.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	var all sync.WaitGroup
	all.Go(func() { served <- serve(serving, cfg, log) })
	defer all.Wait()
	defer stopServing()

	w := &devWorker{done: make(chan struct{})}
	if s.Bool("no-worker") {
		w = nil
	} else if err := w.start(cmd, s, dir, logins["worker"], nats); err != nil {
		return err
	}
	if w != nil {
		defer w.stop()
	}
	greet(cmd.ErrOrStderr(), cfg.listen, dir)

	select {
	case <-ctx.Done():
		return nil
	case err := <-served:
		return err
	case <-w.ended():
		return fmt.Errorf("the worker ended: %w", w.err)
	case <-pg.ended:
		return fmt.Errorf("postgres ended: %w", job.ErrUnavailable)
	}
}

// tokenFile holds the operator's token of a dev installation. A turn with an open
// network reaches the API, so it must not be open to whoever reaches it.
const tokenFile = "token"

// devTokens are the tokens of the file that was given, or one that dev makes for
// the person at this machine.
func devTokens(s *cli.Settings, dir string) ([]api.Token, error) {
	if s.String("tokens-file") != "" {
		return readTokens(s.String("tokens-file"))
	}
	token, err := keptPassword(filepath.Join(dir, tokenFile))
	if err != nil {
		return nil, err
	}
	name := "operator"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	return []api.Token{{Name: name, Role: api.Operator, SHA256: api.HashToken(token)}}, nil
}

// devToken reads the token of the dev installation in dir; none is no error.
func devToken(dir string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, tokenFile))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return "", nil
	}
	return strings.TrimSpace(string(b)), err
}

// greet says what to do next.
func greet(w io.Writer, listen, dir string) {
	if dir != defaultDevDir() {
		fmt.Fprintf(w, "\nFor the commands below: export TURNPIKE_TOKEN_FILE=%s\n", filepath.Join(dir, tokenFile))
	}
	fmt.Fprintf(w, `
Turnpike runs at http://%s; ^C stops it, and everything is there next time.
  bin/dispatcher enqueue -f examples/request.json --watch
  bin/dispatcher list
  PGSERVICEFILE=%s psql service=turnpike -c 'SELECT * FROM turnpike.v_jobs'
`, listen, filepath.Join(dir, "pg_service.conf"))
}

// devLogins makes a login for each role, with a password of its own that is new
// each time, and gives their addresses.
func devLogins(ctx context.Context, dsn string) (map[string]string, error) {
	logins := map[string]string{}
	for _, role := range []string{"producer", "dispatcher", "worker", "reporter"} {
		name, password := "turnpike_dev_"+role, rand.Text()
		if err := store.EnsureLogin(ctx, dsn, name, password, "turnpike_"+role); err != nil {
			return nil, err
		}
		u, err := url.Parse(dsn)
		if err != nil {
			return nil, cli.Usagef("the database's URL cannot be read; want postgres://USER:PASSWORD@HOST/DATABASE")
		}
		q := u.Query()
		if q.Has("user") {
			q.Set("user", name)
			q.Set("password", password)
			u.RawQuery = q.Encode()
		} else {
			u.User = url.UserPassword(name, password)
		}
		logins[role] = u.String()
	}
	return logins, nil
}

// writeService writes a libpq service file, so that psql needs no password on its
// command line.
func writeService(path, dsn string) error {
	u, err := url.Parse(dsn)
	if err != nil {
		return err
	}
	q := u.Query()
	host, user, password := q.Get("host"), q.Get("user"), q.Get("password")
	port := u.Port()
	if host == "" {
		host = u.Hostname()
	}
	if u.User != nil {
		user = u.User.Username()
		password, _ = u.User.Password()
	}
	text := fmt.Sprintf("[turnpike]\nhost=%s\ndbname=%s\nuser=%s\npassword=%s\n", host, strings.TrimPrefix(u.Path, "/"), user, password)
	if port != "" {
		text += "port=" + port + "\n"
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o600)
}

// devWorker is the worker that dev starts.
type devWorker struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once it ended
	err  error         // how; read after done
}

// ended is closed once the worker ended; a nil worker never does.
func (w *devWorker) ended() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.done
}

func (w *devWorker) start(cmd *cobra.Command, s *cli.Settings, dir, dsn string, nats *natsd) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	bin := filepath.Join(filepath.Dir(exe), "worker")
	if _, err := os.Stat(bin); err != nil {
		return cli.Usagef("there is no worker beside this program (%s); build it with `make build`, or use --no-worker", bin)
	}
	ceiling, err := writeCeiling(s, dir)
	if err != nil {
		return err
	}
	args := []string{"serve", "--ceiling", ceiling, "--state-dir", filepath.Join(dir, "worker"), "--listen", "",
		"--lease", s.Duration("lease").String(), "--log-level", s.String("log-level"), "--log-format", s.String("log-format")}
	for _, one := range s.Strings("slots") {
		args = append(args, "--slots", one)
	}
	for _, one := range s.Strings("bin") {
		args = append(args, "--bin", one)
	}
	w.cmd = exec.Command(bin, args...)
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, cli.EnvPrefix) && !strings.HasPrefix(kv, "DATABASE_URL=") {
			w.cmd.Env = append(w.cmd.Env, kv)
		}
	}
	w.cmd.Env = append(w.cmd.Env, cli.EnvPrefix+"DATABASE_URL="+dsn, cli.EnvPrefix+"NATS_URL="+nats.url(),
		cli.EnvPrefix+"NATS_USER="+string(queue.Worker), cli.EnvPrefix+"NATS_PASSWORD="+nats.passwords[queue.Worker])
	w.cmd.Stdout, w.cmd.Stderr = cmd.ErrOrStderr(), cmd.ErrOrStderr()
	// The terminal's ^C is for this program: it stops the worker in order.
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := w.cmd.Start(); err != nil {
		return fmt.Errorf("start the worker: %w", err)
	}
	go func() {
		w.err = w.cmd.Wait()
		close(w.done)
	}()
	return nil
}

// stop drains the worker; it knows its own limits.
func (w *devWorker) stop() {
	_ = w.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-w.done:
	case <-time.After(3 * time.Minute):
		_ = w.cmd.Process.Kill()
		<-w.done
	}
}

// writeCeiling gives the file of the worker's ceiling: the one chosen, or dev's own
// with the workspace roots added.
func writeCeiling(s *cli.Settings, dir string) (string, error) {
	if c := s.String("ceiling"); c != "" {
		return filepath.Abs(c)
	}
	text := devCeiling
	if roots := s.Strings("workspace-root"); len(roots) > 0 {
		type root struct {
			Path   string `yaml:"path"`
			Access string `yaml:"access"`
		}
		var dirs []root
		for _, r := range roots {
			abs, err := filepath.Abs(r)
			if err != nil {
				return "", err
			}
			if fi, err := os.Stat(abs); err != nil || !fi.IsDir() {
				return "", cli.Usagef("workspace-root %s is not a directory", r)
			}
			dirs = append(dirs, root{abs, "rw"})
		}
		b, err := yaml.Marshal(map[string]any{"workspaces": map[string]any{"scratch": true, "dirs": dirs}})
		if err != nil {
			return "", err
		}
		text = strings.Replace(text, "workspaces: {scratch: true}\n", string(b), 1)
	}
	path := filepath.Join(dir, "ceiling.yaml")
	return path, os.WriteFile(path, []byte(text), 0o600)
}
