//go:build linux && (amd64 || arm64)

package confine_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"turnpike/internal/agent"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/procs"
	"turnpike/internal/agent/sandbox/container"
)

func TestMain(m *testing.M) {
	swapFirst()
	confine.Entry()
	container.Entry()
	switch os.Args[0] {
	case probeName:
		probe()
	case workerName:
		worker()
	case reachName:
		reachOut()
	case hogName:
		hog(os.Args[1])
	}
	if os.Getenv(awaited) != "" {
		_, _ = os.Stdin.Read(make([]byte, 1))
	}
	goleak.VerifyTestMain(m)
}

// fewer bounds the cases of a property, unless the command line does: each starts a
// confined shell, which under the race detector takes seconds on a busy machine.
func fewer(t *testing.T, cases string) {
	t.Helper()
	f := flag.Lookup("rapid.checks")
	if f.Value.String() != f.DefValue {
		return
	}
	if err := f.Value.Set(cases); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Value.Set(f.DefValue) }) // what it was
}

// TestOrdinaryUser runs every other test again as an ordinary user: what root can
// confine says nothing about what a user can. The attacks have a column for that user, and
// the text of a profile is compared with a file that it may not be able to read.
func TestOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		return // this is that run
	}
	const uid = ordinary
	dir := t.TempDir()
	opened(t, dir)
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run="+cmp.Or(others(), "."), "-test.skip=^(TestAttacks|TestProfileText)$", "-test.count=1", "-test.timeout=12m")
	if testing.Verbose() {
		cmd.Args = append(cmd.Args, "-test.v")
	}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir, "HOME=" + dir, "TURNPIKE_TEST_DIR=" + here}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := delegated(t, cmd, uid)
	if err != nil || testing.Verbose() {
		t.Logf("as uid %d: %v\n%s", uid, err, out)
	}
	if err != nil {
		t.Fail()
	}
}

// ordinary is a user without any right.
const ordinary = 65534

// opened gives dir, and the way to it, to the ordinary user.
func opened(t *testing.T, dir string) {
	t.Helper()
	for at := dir; at != os.TempDir() && at != "/"; at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(dir, ordinary, ordinary); err != nil {
		t.Fatal(err)
	}
}

// others are the tests that were chosen beside TestOrdinaryUser: "TestLimits" of
// "TestOrdinaryUser|TestLimits".
func others() string {
	chosen := strings.Split(flag.Lookup("test.run").Value.String(), "|")
	return strings.Join(slices.DeleteFunc(chosen, func(s string) bool { return strings.Contains(s, "TestOrdinaryUser") }), "|")
}

// modes are the ways to confine that this test is about, each with a Confiner.
func modes(t *testing.T) map[confine.Mode]confine.Confiner {
	t.Helper()
	out := map[confine.Mode]confine.Confiner{
		confine.Full:         confine.Platform(confine.Options{}),
		confine.LandlockOnly: confine.Platform(confine.Options{LandlockOnly: true}),
	}
	for want, c := range out {
		if c.Mode() != want {
			t.Fatalf("this machine confines by %q, not %q: %+v", c.Mode(), want, c.Probe(t.Context()))
		}
	}
	return out
}

// room is a place on the host for one turn and what lies around it.
type room struct {
	Outside   string // a directory that is not granted, with the file "secret"
	ReadOnly  string // granted ro, with the file "file"
	Work      string // granted rw, with the file "file"
	WorkDir   string
	Metadata  string // Work/.git, with the file "config", where it can be kept
	Denied    string // an executable in Bin that is denied
	Bin       string
	Socket    string // a unix socket that is not granted
	Abstract  string // an abstract unix socket of the host
	Open      bool   // the turn has the host's network
	Loopback  string // a TCP listener of the host
	WorkerPID int
	Inside    bool // whether the turn has a root of its own
	Bare      bool // nothing holds the turn
	Image     bool // what is not granted is an image's
}

func newRoom(t *testing.T) *room {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := &room{
		Outside: base + "/outside", ReadOnly: base + "/ro", Work: base + "/work", WorkDir: confine.WorkDir,
		Metadata: base + "/work/.git", Bin: base + "/bin", WorkerPID: os.Getpid(), Inside: true,
	}
	r.Denied = r.Bin + "/denied"
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, r.Bin+"/probe", string(self), 0o755)
	if err := r.furnish(); err != nil {
		t.Fatal(err)
	}
	return r
}

// furnish puts into the room what attempts may have taken or changed.
func (r *room) furnish() error {
	for _, dir := range []string{r.ReadOnly, r.Work} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	err := errors.Join(os.RemoveAll(r.Denied), os.RemoveAll(r.Bin+"/hardlink"), os.RemoveAll(r.Bin+"/symlink"))
	for path, text := range map[string]string{
		r.Outside + "/secret": "secret", r.ReadOnly + "/file": "text", r.ReadOnly + "/dir/file": "text",
		r.Work + "/file": "text", r.Work + "/.git/config": "text", r.Work + "/.git/hooks/sample": "text",
	} {
		err = errors.Join(err, write(path, text, 0o644))
	}
	return errors.Join(err, write(r.Denied, "#!/bin/sh\necho denied ran\n", 0o755),
		os.Link(r.Denied, r.Bin+"/hardlink"), os.Symlink("denied", r.Bin+"/symlink"))
}

func write(path, text string, mode os.FileMode) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode))
}

func writeFile(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := write(path, text, mode); err != nil {
		t.Fatal(err)
	}
}

// confinement grants the room in full.
func (r *room) confinement() agent.Confinement {
	return agent.Confinement{
		Sandbox: agent.SandboxNone,
		Mounts: []agent.Mount{
			{Path: r.Work, Access: agent.ReadWrite}, {Path: r.ReadOnly, Access: agent.ReadOnly},
		},
		System:           append(confine.DefaultSystemPaths(), agent.Mount{Path: r.Bin, Access: agent.ReadOnly}),
		Denied:           []string{r.Denied},
		ReadOnlyMetadata: []string{r.Metadata},
		Workspace:        r.Work,
		WorkDir:          r.WorkDir,
	}
}

// landlockOnly leaves out what cannot be held without namespaces.
func (r *room) landlockOnly(c agent.Confinement) agent.Confinement {
	r.WorkDir, r.Inside, r.Metadata = r.Work, false, ""
	c.WorkDir, c.ReadOnlyMetadata = r.Work, nil
	return c
}

// start starts a command in the confinement.
func start(h agent.Confiner, c agent.Confinement, cmd *exec.Cmd) (*procs.Tree, error) {
	return procs.Start(cmd, func(cmd *exec.Cmd) error { return h.Start(cmd, c) })
}

// run runs a command in the confinement to its end.
func run(t *testing.T, h agent.Confiner, c agent.Confinement, env []string, args ...string) (string, agent.Exit) {
	t.Helper()
	var out bytes.Buffer
	cmd := &exec.Cmd{Path: args[0], Args: args, Env: append([]string{"PATH=/usr/bin:/bin:/usr/local/go/bin"}, env...), Stdout: &out, Stderr: &out}
	tree, err := start(h, c, cmd)
	if err != nil {
		t.Fatal(err)
	}
	exit, err := tree.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), exit
}

// play has the probe try every attack of the table and gives what each met.
func (r *room) play(t *testing.T, h agent.Confiner, c agent.Confinement) map[string]string {
	t.Helper()
	return r.playBy(t, func(cmd *exec.Cmd) (agent.Process, error) { return start(h, c, cmd) })
}

// playBy is play in whatever start starts the probe in.
func (r *room) playBy(t *testing.T, start func(*exec.Cmd) (agent.Process, error)) map[string]string {
	t.Helper()
	world, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	writeFile(t, dir+"/in", string(world), 0o600)
	in, err := os.Open(dir + "/in")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(dir + "/out") // not a pipe: an engine takes files
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p, err := start(&exec.Cmd{
		Path: r.Bin + "/probe", Args: []string{probeName}, Env: []string{"PATH=/usr/bin:/bin"},
		Stdin: in, Stdout: out, Stderr: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait()
	said, readErr := os.ReadFile(dir + "/out")
	if err := errors.Join(err, readErr); err != nil || exit != (agent.Exit{}) {
		t.Fatalf("the probe ended with %+v, %v\n%s", exit, err, said)
	}
	met := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(said)); ; {
		var v struct{ Name, Met string }
		err := d.Decode(&v)
		if err == io.EOF {
			return met
		}
		if err != nil {
			t.Fatal(err)
		}
		met[v.Name] = v.Met
	}
}
