package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"turnpike/cmd/internal/cli"
	"turnpike/internal/agent"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/runner"
	"turnpike/internal/buildinfo"
	"turnpike/internal/vcs"
	"turnpike/internal/worker"
	"turnpike/internal/workspace"
)

// turnFlags adds the settings of everything that runs turns, with two defaults that
// differ by command.
func turnFlags(cmd *cobra.Command, stateDir, logLevel string) {
	f := cmd.Flags()
	f.String("config", "", "settings file (YAML); a setting is named as its flag")
	f.String("ceiling", "", "the ceiling file: the most a request may ask for (required)")
	f.String("prices", "", "price file (YAML): what models cost, to estimate what an agent does not price")
	f.String("skills-dir", "", "directory of the skills a ceiling may offer, each a directory by its name")
	f.String("name-prefix", "", "put before a turn's name in the titles agents give their conversations")
	f.String("state-dir", stateDir, "where sessions, spool and marks are kept; one worker at a time")
	f.StringSlice("bin", nil, "an agent's executable, as NAME=PATH; repeat it for more")
	f.Bool("keep-scratch", false, "keep scratch workspaces after their turns")
	f.Duration("git-timeout", 10*time.Minute, "how long a repository may take to be fetched and checked out")
	f.Int64("min-free-mib", 256, "free disk space below which no turn is begun, in MiB")
	f.Bool("landlock-only", false, "confine without namespaces even where they work")
	f.Bool("landlock-unix-sockets", false, "let turns confined by Landlock alone open unix sockets, which the report tool needs below Landlock ABI 9;\nonly where no engine's or database's socket can be reached")
	f.Bool("allow-abstract-sockets", false, "let turns with the open network dial the host's abstract unix sockets on a kernel below Landlock ABI 6 (Linux 6.12)")
	f.Bool("allow-no-landlock", false, "accept namespaces and seccomp as enough on a kernel without Landlock")
	engineFlags(cmd)
	boxFlags(cmd)
	f.String("log-level", logLevel, "debug, info, warn or error")
	f.String("log-format", "", "text or json; by default text on a terminal, json elsewhere")
	for name, ext := range map[string][]string{"config": {"yaml", "yml"}, "ceiling": {"yaml", "yml"}, "prices": {"yaml", "yml"}} {
		_ = cmd.MarkFlagFilename(name, ext...) // fails only for a flag that is not there
	}
}

// defaultStateDir is /var/lib/turnpike for root, and the user's own otherwise.
func defaultStateDir() string {
	if os.Getuid() == 0 {
		return "/var/lib/turnpike/worker"
	}
	if d := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "turnpike", "worker")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return filepath.Join(os.TempDir(), "turnpike-worker")
	}
	return filepath.Join(home, ".local", "state", "turnpike", "worker")
}

// bench is a machine made ready to run turns.
type bench struct {
	ceiling *worker.Ceiling
	state   *worker.StateDir
	turns   *worker.Turns
	mirrors *workspace.Git
	log     *slog.Logger
}

// setUp reads the settings of turnFlags. The caller closes the bench's state.
func setUp(cmd *cobra.Command, s *cli.Settings) (_ *bench, err error) {
	log, err := cli.Logger(cmd.ErrOrStderr(), s.String("log-format"), s.String("log-level"))
	if err != nil {
		return nil, err
	}
	ceiling, err := readCeiling(s.String("ceiling"))
	if err != nil {
		return nil, err
	}
	prices, err := readPrices(s.String("prices"))
	if err != nil {
		return nil, err
	}
	bins, err := binaries(s.Strings("bin"))
	if err != nil {
		return nil, err
	}
	state, err := worker.OpenStateDir(s.String("state-dir"))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, state.Close())
		}
	}()
	places := &workspace.Set{
		Dir:     &workspace.Dir{},
		Scratch: &workspace.Scratch{Root: filepath.Join(state.Work(), "scratch"), Keep: s.Bool("keep-scratch")},
		Git: &workspace.Git{
			Root:    filepath.Join(state.Work(), "git"),
			Timeout: s.Duration("git-timeout"),
			Credentials: func(name string) (workspace.Credential, bool) {
				username, password, ok := ceiling.GitCredential(name, os.Environ())
				return workspace.Credential{Username: username, Password: password}, ok
			},
		},
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("this machine's name: %w", err)
	}
	all := drivers(ceiling.Providers)
	versions := map[string]string{"worker": buildinfo.String()}
	for name, bin := range bins {
		if v, err := agentVersion(cmd.Context(), bin); err == nil {
			versions[name] = v
		}
	}
	r := runner.Runner{
		SessionsDir: state.Sessions(),
		Drivers:     all,
		Bins:        bins,
		Private:     state.Private(),
		Confiner:    confine.Platform(confineOptions(s, state.Private())),
		Logger:      log,
		NamePrefix:  s.String("name-prefix"),
		// The worker's own settings are no turn's, whatever a ceiling grants.
		EnvironmentPrefix: "TURNPIKE_",

		ContainerHome:          s.String("container-home"),
		ContainerListen:        s.String("container-listen"),
		ContainerUseRepository: s.String("container-use-repository"),
	}
	if err := makeBoxes(state.Path()); err != nil {
		return nil, err
	}
	boxes := newEngines(s, state.Path(), state.Sessions(), log)
	r.Engines = boxes
	if dir := s.String("skills-dir"); dir != "" {
		if !filepath.IsAbs(dir) {
			return nil, cli.Usagef("skills-dir %q: want an absolute path, which is how a request grants it", dir)
		}
		r.Skills, r.SkillMountDirs = skillDir{dir}, []string{dir}
	}
	b := &bench{ceiling: ceiling, state: state, mirrors: places.Git, log: log}
	b.turns = &worker.Turns{
		Ceiling:    ceiling,
		State:      state,
		Sessions:   &sessions{root: state.Sessions(), drivers: all},
		Workspaces: vcs.Provider[vcs.Spec](places),
		Run:        launcher(r),
		End:        boxes.end,
		Clean: func() error {
			if slices.Contains(ceiling.Placements, agent.SandboxContainer) || slices.Contains(ceiling.Placements, agent.SandboxSbx) {
				// What was made and never recorded runs nothing; that it stays is not worth a start.
				if _, err := boxes.sweep(cmd.Context(), state.Sessions()); err != nil {
					log.Warn("boxes of an earlier worker could not be swept", "error", err)
				}
			}
			return errors.Join(places.Scratch.Clean(), places.Git.Clean())
		},
		Environ:  os.Environ(),
		Floor:    s.Int64("min-free-mib") << 20,
		Worker:   fmt.Sprintf("%s-%d-%s", host, os.Getpid(), strings.ToLower(rand.Text()[:6])),
		Host:     host,
		Versions: versions,
		Prices:   prices,
		Priced:   func(name string) bool { return all[name].Descriptor().Abilities.Priced() },
		Backends: func(name string) (agent.Backend, bool) {
			d, ok := all[name]
			if !ok {
				return agent.Backend{}, false
			}
			return d.Descriptor(), true
		},
		Log: log,
	}
	return b, nil
}

func confineOptions(s *cli.Settings, private []string) confine.Options {
	return confine.Options{
		Launcher:        startsTurns(),
		AllowNoLandlock: s.Bool("allow-no-landlock"),
		AbstractSockets: s.Bool("allow-abstract-sockets"),
		LandlockOnly:    s.Bool("landlock-only"),
		UnixSockets:     s.Bool("landlock-unix-sockets"),
		Private:         private,
	}
}

// launcher runs one turn with a runner of its own, so that what belongs to one
// turn is seen by nobody else's.
func launcher(r runner.Runner) worker.Runner {
	return func(ctx context.Context, l worker.Launch) (*agent.Result, error) {
		r := r
		r.Observer, r.Recorder, r.Watch = l.Observer, l.Recorder, l.Watch
		r.Network, r.Limits = l.Network, l.Limits
		r.Environ = func() []string { return l.Environ }
		r.Judge = l.Hold
		return r.Run(ctx, l.Request)
	}
}

func readCeiling(path string) (*worker.Ceiling, error) {
	if path == "" {
		return nil, cli.Usagef("give the ceiling: --ceiling FILE; nothing may run without one (see examples/ceiling.yaml)")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, cli.Usagef("%w", err)
	}
	c, err := worker.ParseCeiling(text)
	if err != nil {
		return nil, cli.Usagef("%s: %w", path, err)
	}
	return c, nil
}

func readPrices(path string) (*worker.Prices, error) {
	if path == "" {
		return nil, nil // no estimates
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, cli.Usagef("%w", err)
	}
	p, err := worker.ParsePrices(text)
	if err != nil {
		return nil, cli.Usagef("%s: %w", path, err)
	}
	return p, nil
}

// binaries resolves every agent's executable: as --bin says, else on the PATH,
// else where `make agents` puts it. One that is not found is left out: its turns
// end as unready, and probe says so.
func binaries(set []string) (map[string]string, error) {
	bins := map[string]string{}
	for _, s := range set {
		name, path, ok := strings.Cut(s, "=")
		if !ok || !slices.Contains(agent.Agents(), name) {
			return nil, cli.Usagef("bin %q: want NAME=PATH with a name of %s", s, strings.Join(agent.Agents(), ", "))
		}
		resolved, err := resolve(path)
		if err != nil {
			return nil, cli.Usagef("bin %s: %w", name, err)
		}
		bins[name] = resolved
	}
	for _, name := range agent.Agents() {
		if bins[name] != "" {
			continue
		}
		for _, candidate := range []string{name, filepath.Join(besideProgram(), name)} {
			if path, err := resolve(candidate); err == nil {
				bins[name] = path
				break
			}
		}
	}
	return bins, nil
}

// besideProgram is where a source tree keeps the pinned agents: bin/worker's
// ../.cache/agents/bin.
func besideProgram() string {
	exe, err := os.Executable()
	if err != nil {
		return ""
	}
	return filepath.Join(filepath.Dir(filepath.Dir(exe)), ".cache", "agents", "bin")
}

func resolve(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// agentVersion asks an agent's executable for its version, away from the user's
// own configuration.
func agentVersion(ctx context.Context, bin string) (string, error) {
	home, err := os.MkdirTemp("", "turnpike-version-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(home)
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "--version")
	cmd.Env = []string{"HOME=" + home, "CLAUDE_CONFIG_DIR=" + home, "PATH=/usr/bin:/bin", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1"}
	cmd.Dir = home
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", bin, err)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return cli.OneLine(line), nil
}
