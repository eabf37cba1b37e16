package confine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
	"turnpike/internal/agent/procs"
)

// sandboxExec applies a profile to itself and executes a command. It is named in full:
// another program of its name on the PATH would confine nothing.
const sandboxExec = "/usr/bin/sandbox-exec"

// Host confines processes of this machine.
type Host struct{ o Options }

var _ Confiner = Host{}

// Platform gives this platform's Confiner.
func Platform(o Options) Confiner { return Host{o} }

// stagePolicy is what the stage is told, through a file without a name.
type stagePolicy struct {
	// Canary is a file of the worker's that the profile does not allow: a stage that
	// can read it is not confined.
	Canary string
	Limits []limit
	Dry    bool // end before the program is executed
	Path   string
	Args   []string
	Env    []string
	Dir    string
}

type limit struct {
	Resource int
	Value    uint64
}

// Check says whether c can be enforced here.
func (h Host) Check(c agent.Confinement) error {
	_, err := h.profile(c)
	return err
}

// profile is the profile that enforces c, or why there is none.
func (h Host) profile(c agent.Confinement) (string, error) {
	if t := h.tried(); t.err != nil {
		return "", unsupported("this machine cannot confine a turn: %v", t.err)
	}
	if err := comparePins(c); err != nil {
		return "", err
	}
	home := ""
	if u, err := user.Current(); err == nil {
		home = u.HomeDir
	}
	s, err := settle(c, home, h.o.Private)
	if err != nil {
		return "", err
	}
	if err := h.addLauncher(&s); err != nil {
		return "", err
	}
	return s.profile()
}

// addLauncher lets the stage execute.
func (h Host) addLauncher(s *seatbelt) error {
	path, err := procs.Launch{Launcher: h.o.Launcher}.Path()
	if err == nil {
		path, err = spelled(path)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", agent.ErrUnready, err)
	}
	s.System = append(s.System, agent.Mount{Path: path, Access: agent.ReadOnly})
	return nil
}

// Start starts cmd, which must come through procs.Start, under c.
func (h Host) Start(cmd *exec.Cmd, c agent.Confinement) error {
	profile, err := h.profile(c)
	if err != nil {
		return err
	}
	if cmd.Err != nil {
		return fmt.Errorf("%w: %w", agent.ErrUnready, cmd.Err)
	}
	if !filepath.IsAbs(cmd.Path) {
		return unsupported("the program %q is no absolute path", cmd.Path)
	}
	p := stagePolicy{Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir}
	if p.Dir == "" {
		p.Dir = c.WorkDir
	}
	if len(p.Args) == 0 {
		p.Args = []string{p.Path}
	}
	p.Limits = append(p.Limits, limit{unix.RLIMIT_CORE, 0})
	if n := c.Limits.OpenFiles; n > 0 {
		p.Limits = append(p.Limits, limit{unix.RLIMIT_NOFILE, uint64(n)})
	}
	if n := c.Limits.FileBytes; n > 0 {
		p.Limits = append(p.Limits, limit{unix.RLIMIT_FSIZE, uint64(n)})
	}
	return h.launch(cmd, p, profile)
}

func (h Host) launch(cmd *exec.Cmd, p stagePolicy, profile string) error {
	canary, err := os.CreateTemp("", "turnpike-canary-")
	if err != nil {
		return fmt.Errorf("%w: %w", agent.ErrUnready, err)
	}
	defer os.Remove(canary.Name())
	defer canary.Close()
	p.Canary = canary.Name()
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	sealed, err := procs.Seal("turnpike-policy", text)
	if err != nil {
		return err
	}
	defer sealed.Close()
	l := procs.Launch{
		Launcher: h.o.Launcher, Stage: agentStage, Files: []*os.File{sealed},
		Through: []string{sandboxExec, "-p", profile},
	}
	return l.Start(cmd)
}

// Pins says what the mounts and metadata of c are now.
func Pins(c agent.Confinement) ([]agent.Pin, error) {
	var pins []agent.Pin
	for _, m := range c.Mounts {
		p, err := pin(m.Path)
		if err != nil {
			return nil, err
		}
		pins = append(pins, p)
	}
	for _, path := range c.ReadOnlyMetadata {
		p, err := pin(path)
		if err != nil {
			return nil, err
		}
		pins = append(pins, p)
	}
	return pins, nil
}

func pin(path string) (agent.Pin, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return agent.Pin{}, fmt.Errorf("%w: %w", agent.ErrPolicyChanged, err)
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return agent.Pin{}, unsupported("%s is neither a directory nor a regular file", path)
	}
	st := info.Sys().(*syscall.Stat_t)
	return agent.Pin{Path: path, Device: uint64(uint32(st.Dev)), Inode: st.Ino}, nil
}

// comparePins refuses what is no longer what was verified. Seatbelt judges the path an
// access ends at, so what is put in a mount's place later gives no more than was granted.
func comparePins(c agent.Confinement) error {
	for _, was := range c.Pins {
		is, err := pin(was.Path)
		if err != nil {
			return err
		}
		if is != was {
			return fmt.Errorf("%w: %s is not what was verified", agent.ErrPolicyChanged, was.Path)
		}
	}
	return nil
}

// Mode says by what means turns are confined here.
func (h Host) Mode() Mode {
	if h.tried().err != nil {
		return None
	}
	return Seatbelt
}

// Probe tries out what this machine can enforce.
func (h Host) Probe(context.Context) Report {
	r := Report{Mode: h.Mode(), Facts: []Feature{
		{Name: "seatbelt", OK: true, Detail: sandboxExec + " holds a stage to its profile"},
		{Name: "processes", OK: true, Detail: "a root keeps account of them; there are no process namespaces"},
		{Name: "limits", OK: true, Detail: "open files and file size; memory, processes and CPU are refused"},
		{Name: "domains", OK: false, Detail: "no network of a turn's own: refused"},
	}}
	if err := h.tried().err; err != nil {
		r.Reason = err.Error()
		r.Facts[0].OK, r.Facts[0].Detail = false, err.Error()
	}
	return r
}

// trial is what was found by trying.
type trial struct {
	once sync.Once
	err  error
}

// trials are kept by launcher: a machine's means do not change while a worker runs.
var trials sync.Map // of string to *trial

func (h Host) tried() *trial {
	v, _ := trials.LoadOrStore(h.o.Launcher, new(trial))
	t := v.(*trial)
	t.once.Do(func() { t.err = h.dryRun() })
	return t
}

// dryRun does everything for an empty confinement but execute a program.
func (h Host) dryRun() error {
	if info, err := os.Lstat(sandboxExec); err != nil || !info.Mode().IsRegular() {
		return errors.New("there is no " + sandboxExec)
	}
	s, err := settle(agent.Confinement{
		Mounts: []agent.Mount{{Path: "/bin", Access: agent.ReadOnly}}, System: DefaultSystemPaths(), Workspace: "/bin", WorkDir: "/bin",
	}, "", nil)
	if err != nil {
		return err
	}
	if err := h.addLauncher(&s); err != nil {
		return err
	}
	profile, err := s.profile()
	if err != nil {
		return err
	}
	tree, err := procs.Start(&exec.Cmd{Path: "/"}, func(cmd *exec.Cmd) error {
		return h.launch(cmd, stagePolicy{Dry: true, Dir: "/bin", Limits: []limit{{unix.RLIMIT_CORE, 0}}}, profile)
	})
	if err != nil {
		return err
	}
	exit, err := tree.Wait()
	if err == nil && exit != (agent.Exit{}) {
		err = fmt.Errorf("the stage ended with %+v", exit)
	}
	return err
}

// agentStage is the argument by which the launcher's copy inside the profile is known.
const agentStage = "turnpike-confine-agent"

func entry() {
	if len(os.Args) != 2 || os.Args[1] != agentStage {
		return
	}
	setup := os.NewFile(3, "setup")
	if err := becomeAgent(setup); err != nil {
		procs.Report(setup, err)
		os.Exit(126)
	}
	os.Exit(0) // a dry run
}

// becomeAgent holds itself to what the profile does not and executes the agent.
func becomeAgent(setup *os.File) error {
	const policyFD = procs.FirstPassed - 2
	var p stagePolicy
	if err := procs.Unseal(policyFD, &p); err != nil {
		return fmt.Errorf("read the policy: %w", err)
	}
	f, err := os.Open(p.Canary)
	if err == nil {
		f.Close()
		return procs.NewFailure("see whether the profile holds", errors.New("it does not: a file that is not granted can be read"), agent.ErrUnsupported)
	}
	if !errors.Is(err, fs.ErrPermission) {
		return procs.NewFailure("see whether the profile holds", err, agent.ErrUnsupported)
	}
	for _, l := range p.Limits {
		if err := syscall.Setrlimit(l.Resource, &syscall.Rlimit{Cur: l.Value, Max: l.Value}); err != nil {
			return procs.NewFailure(fmt.Sprintf("limit resource %d to %d", l.Resource, l.Value), err, agent.ErrUnsupported)
		}
	}
	if err := unix.Chdir(p.Dir); err != nil {
		return procs.NewFailure("enter "+p.Dir, err, agent.ErrUnready)
	}
	unix.CloseOnExec(3)
	unix.CloseOnExec(policyFD)
	if err := procs.Ready(setup); err != nil {
		return procs.NewFailure("tell the worker", err, agent.ErrUnready)
	}
	if p.Dry {
		return nil
	}
	return procs.NewFailure("execute "+p.Path, syscall.Exec(p.Path, p.Args, p.Env), agent.ErrUnready)
}
