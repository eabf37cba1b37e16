//go:build amd64 || arm64

package confine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
	"turnpike/internal/agent/egress/door"
	"turnpike/internal/agent/procs"
)

// Host confines processes of this machine.
type Host struct{ o Options }

var _ Confiner = Host{}

// Platform gives this platform's Confiner.
func Platform(o Options) Confiner {
	if o.Launcher == "" {
		o.Launcher = procs.Self
	}
	if o.TmpBytes == 0 {
		o.TmpBytes = 1 << 30
	}
	return Host{o}
}

// Check says whether c can be enforced here. The first check on a machine tries
// out by what means.
func (h Host) Check(c agent.Confinement) error {
	_, err := h.policy(c)
	return err
}

// Start starts cmd, which must come through procs.Start, under c. Its path,
// arguments, environment and directory are those inside; an empty directory is
// c.WorkDir.
func (h Host) Start(cmd *exec.Cmd, c agent.Confinement) error {
	p, err := h.policy(c)
	if err != nil {
		return err
	}
	if cmd.Err != nil {
		return fmt.Errorf("%w: %w", agent.ErrUnready, cmd.Err)
	}
	if !filepath.IsAbs(cmd.Path) {
		return unsupported("the program %q is no absolute path", cmd.Path)
	}
	p.Path, p.Args, p.Env, p.Dir = cmd.Path, cmd.Args, cmd.Env, cmd.Dir
	if p.Dir == "" {
		p.Dir = c.WorkDir
	}
	if len(p.Args) == 0 {
		p.Args = []string{p.Path}
	}
	if p.Doors && c.Egress == nil {
		return unsupported("a network limited to domains that nobody serves")
	}
	return h.launch(cmd, p, h.Mode(), c.Egress)
}

func (h Host) launch(cmd *exec.Cmd, p policy, m Mode, way agent.Egress) error {
	p.Namespaces = m == Full
	sealed, err := sealPolicy(p)
	if err != nil {
		return err
	}
	defer sealed.Close()
	l := procs.Launch{Launcher: h.o.Launcher, Before: rootStage, Prepared: true, Files: []*os.File{sealed}}
	if p.Namespaces {
		l.Attr = namespaces(p.Loopback)
	}
	groups, err := makeGroups(p)
	if err != nil {
		return err
	}
	start := func() error { return l.Start(cmd) }
	if p.Doors {
		start = func() error { return startServed(l, cmd, way) }
	}
	for _, g := range groups {
		l.Members, l.Groups = append(l.Members, g.members), append(l.Groups, g.Group)
	}
	if err := start(); err != nil {
		dropGroups(groups)
		return err
	}
	for _, g := range groups {
		g.close() // the root has its own
	}
	return nil
}

// startServed starts cmd by l, whose root stage gives the doors of the turn's network
// to way before anything else is started.
func startServed(l procs.Launch, cmd *exec.Cmd, way agent.Egress) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("the turn's way out: %w", err)
	}
	near, far := os.NewFile(uintptr(fds[0]), "way out"), os.NewFile(uintptr(fds[1]), "way out")
	defer far.Close()
	conn, err := net.FileConn(near)
	near.Close()
	if err != nil {
		return fmt.Errorf("the turn's way out: %w", err)
	}
	l.Files = append(l.Files, far)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = way.Attach(conn.(*net.UnixConn)) // the root stage is told, and Start by it
	}()
	err = l.Start(cmd)
	conn.Close() // a root that never came so far is not waited for
	<-served
	return err
}

// namespaces are the process attributes of the first stage.
func namespaces(network bool) syscall.SysProcAttr {
	attr := syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
	}
	if network {
		attr.Cloneflags |= unix.CLONE_NEWNET
	}
	if !privileged() {
		// Every id is itself inside, so that what the turn creates is the worker's.
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
		attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE, unix.CAP_SETPCAP}
	}
	return attr
}

// keepsAbstract says whether Landlock of this version keeps a turn from abstract unix
// sockets outside it. They belong to the network namespace, which an open network shares.
func keepsAbstract(abi int) bool { return abi >= scopesABI }

// policy says how c is enforced, or why it cannot be.
func (h Host) policy(c agent.Confinement) (policy, error) {
	var p policy
	if c.Sandbox == agent.SandboxClaude {
		return p, unsupported("Claude Code's own sandbox needs mounts that a confined turn may not make: use placement %q", "none-confined")
	}
	if c.Sandbox != "" && c.Sandbox != agent.SandboxNone {
		return p, unsupported("sandbox %q is not a host's", c.Sandbox)
	}
	tried := h.tried()
	if tried.mode == None {
		return p, unsupported("this machine cannot confine a turn: %s", tried.reason)
	}
	if c.Network.Proxied && !c.Network.Open && (tried.mode != Full || !opensPorts()) {
		return p, unsupported("a network limited to domains takes a network namespace and the right to open ports below 1024 in it (CAP_NET_BIND_SERVICE): run the worker where it can make namespaces, or grant the open network or none")
	}
	var err error
	counted := tried.mode == Full && !privileged()
	if p.Limits, err = limitsOf(c.Limits, counted); err != nil {
		return p, err
	}
	if p.shares, err = sharesOf(c.Limits, counted, tried.places); err != nil {
		return p, err
	}
	p.Groups = len(p.shares)
	around, err := look(h.o.Private)
	if err != nil {
		return p, err
	}
	if p.layout, err = arrange(c, around); err != nil {
		return p, err
	}
	p.Landlock = tried.abi > 0
	p.Families = families{Inet: true, Unix: true}
	p.TmpBytes = h.o.TmpBytes
	if tried.mode == LandlockOnly {
		if c.WorkDir != c.Workspace {
			return p, unsupported("without namespaces the workspace %s cannot be shown at %s", c.Workspace, c.WorkDir)
		}
		if _, ok := p.deciding(c.Workspace); !ok {
			return p, unsupported("the workspace %s lies in no mount", c.Workspace)
		}
		p.Families = families{Inet: c.Network.Open, Unix: h.o.UnixSockets || tried.abi >= socketsABI}
		p.Rules, err = rulesOutside(p.layout)
		p.layout = layout{}
		return p, err
	}
	if c.Network.Open && !h.o.AbstractSockets && !keepsAbstract(tried.abi) {
		return p, unsupported("with the open network this turn could dial the host's abstract unix sockets: that takes Landlock ABI %d (Linux 6.12), here is %d. Grant no network, or have the worker's owner accept it (--allow-abstract-sockets)", scopesABI, tried.abi)
	}
	if err := p.moveWorkspace(c.Workspace, c.WorkDir); err != nil {
		return p, err
	}
	p.Loopback, p.Doors = !c.Network.Open, c.Network.Proxied && !c.Network.Open
	if p.Doors {
		p.replace(door.Files)
	}
	p.Rules = rulesInside(p.layout)
	return p, nil
}

// Mode says by what means turns are confined here.
func (h Host) Mode() Mode { return h.tried().mode }

// trial is what was found by trying.
type trial struct {
	once   sync.Once
	mode   Mode
	reason string
	abi    int
	full   error // why namespaces do not work, where they were tried
	places func() map[string]place
}

// trials are what was found for each way to ask. A machine's means do not change
// while a worker runs, and trying them takes tens of milliseconds.
var trials sync.Map // of trialKey to *trial

type trialKey struct {
	launcher                      string
	allowNoLandlock, landlockOnly bool
}

func (h Host) tried() *trial {
	v, _ := trials.LoadOrStore(trialKey{h.o.Launcher, h.o.AllowNoLandlock, h.o.LandlockOnly}, new(trial))
	t := v.(*trial)
	t.once.Do(func() {
		t.places = sync.OnceValue(places)
		h.try(t)
	})
	return t
}

// try decides by what means turns are confined here.
func (h Host) try(t *trial) {
	t.mode, t.abi = None, landlockABI()
	if t.abi == 0 && !h.o.AllowNoLandlock {
		t.reason = "this kernel has no Landlock (5.13 and later have it, if it is among the lsm= parameter)"
		return
	}
	if h.o.LandlockOnly {
		t.full = errors.New("the worker's owner chose to do without namespaces")
	} else if t.full = h.dryRun(Full, t.abi); t.full == nil {
		t.mode = Full
		return
	}
	t.reason = "namespaces: " + t.full.Error()
	if t.abi < scopesABI {
		t.reason += fmt.Sprintf("; and Landlock alone needs its ABI %d (Linux 6.12), here is %d", scopesABI, t.abi)
		return
	}
	if err := h.dryRun(LandlockOnly, t.abi); err != nil {
		t.reason += "; Landlock: " + err.Error()
		return
	}
	t.mode = LandlockOnly
}

// dryRun does everything for an empty confinement but execute a program.
func (h Host) dryRun(m Mode, abi int) error {
	p := policy{
		Dry: true, Dir: "/", TmpBytes: h.o.TmpBytes, Loopback: m == Full,
		Landlock: abi > 0, Limits: []limit{{unix.RLIMIT_CORE, 0}},
	}
	// A launcher that is linked dynamically needs its libraries, as every turn's does.
	var err error
	if p.layout, err = arrange(agent.Confinement{System: DefaultSystemPaths()}, surroundings{}); err != nil {
		return err
	}
	if m == Full {
		p.Rules = rulesInside(p.layout)
	} else if p.Rules, err = rulesOutside(p.layout); err != nil {
		return err
	}
	cmd := &exec.Cmd{Path: "/"}
	tree, err := procs.Start(cmd, func(cmd *exec.Cmd) error { return h.launch(cmd, p, m, nil) })
	if err != nil {
		return err
	}
	exit, err := tree.Wait()
	if err == nil && exit != (agent.Exit{}) {
		err = fmt.Errorf("the trial ended with %+v: does main begin with confine.Entry?", exit)
	}
	return err
}

// Probe tries out what this machine can enforce.
func (h Host) Probe(context.Context) Report {
	t := h.tried()
	r := Report{Mode: t.mode, Reason: t.reason}
	add := func(name string, ok bool, detail string) {
		r.Facts = append(r.Facts, Feature{name, ok, detail})
	}
	switch {
	case t.full != nil:
		add("namespaces", false, t.full.Error())
	case t.mode != Full:
		add("namespaces", false, "not tried: "+t.reason)
	case privileged():
		add("namespaces", true, "as root")
	default:
		add("namespaces", true, fmt.Sprintf("in a user namespace of uid %d", os.Geteuid()))
	}
	switch {
	case t.abi == 0:
		add("landlock", false, "not in this kernel")
	default:
		add("landlock", true, fmt.Sprintf("ABI %d", t.abi))
	}
	add("landlock scopes", t.abi >= scopesABI, fmt.Sprintf("signals and abstract sockets stay inside from ABI %d on", scopesABI))
	add("landlock unix sockets", t.abi >= socketsABI, fmt.Sprintf("sockets inside a granted mount are held from ABI %d on", socketsABI))
	add("seccomp", t.mode != None, "filter mode")
	if h.o.Launcher == procs.Self {
		add("launcher", false, "this program starts turns itself, more slowly: there is none of this build beside it")
	} else {
		add("launcher", true, "a program of its own starts turns")
	}
	add("limits of open files and file size", t.mode != None, "rlimits")
	h.probeGroups(t, add)
	add("no network", t.mode != None, map[Mode]string{
		Full: "network namespace", LandlockOnly: "seccomp refuses internet sockets",
	}[t.mode])
	add("network limited to domains", t.mode == Full && opensPorts(), "takes a network namespace and CAP_NET_BIND_SERVICE")
	return r
}

// probeGroups says which limits control groups can hold here.
func (h Host) probeGroups(t *trial, add func(name string, ok bool, detail string)) {
	at := t.places()
	for _, l := range []struct{ name, controller string }{
		{"limit of processes", "pids"}, {"limit of memory", "memory"}, {"limit of CPUs", "cpu"},
	} {
		p, ok := at[l.controller]
		switch {
		case l.controller == "pids" && t.mode == Full && !privileged():
			add(l.name, true, "rlimit in a user namespace")
		case ok:
			add(l.name, t.mode != None, "control groups in "+p.home())
		default:
			add(l.name, false, "this worker can make no control group with the "+l.controller+" controller")
		}
	}
}

func sealPolicy(p policy) (*os.File, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	return procs.Seal("turnpike-policy", text)
}
