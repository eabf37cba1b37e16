//go:build linux && (amd64 || arm64)

package confine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/procs"
	"turnpike/internal/agent/sandbox/container"
	"turnpike/internal/testenv"
)

// played has a run as an ordinary user write down what it met, for the run as root.
var played = flag.String("played", "", "write what the attacks met to this `file`, and compare nothing")

const verdictsFile = "testdata/verdicts"

// column is a placement, and the user it is tried as.
type column struct{ placement, user string }

func (c column) String() string { return strings.TrimSpace(c.placement + " " + c.user) }

// columns are those of the table, in order. Nobody plays attacks as root where nothing
// holds them.
var columns = []column{
	{"none", "user"}, {"full", "root"}, {"full", "user"}, {"landlock-only", "root"}, {"landlock-only", "user"}, {"container", ""},
}

func kindOfUser() string {
	if os.Geteuid() == 0 {
		return "root"
	}
	return "user"
}

// TestAttacks has a probe, as the agent, try every attack under every placement and
// compares what became of each with the table that is checked in.
func TestAttacks(t *testing.T) {
	if _, err := os.Stat(verdictsFile); err != nil && *played == "" && !*update {
		t.Fatal(err)
	}
	found := playHere(t)
	if *played != "" {
		text, err := json.Marshal(found)
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, *played, string(text), 0o644)
		return
	}
	if os.Geteuid() == 0 {
		found = append(found, playAsUser(t)...)
		found = append(found, finding{column{"container", ""}, playInContainer(t)})
	}
	text := table(found)
	t.Logf("\n%s", text)
	if *update {
		writeFile(t, verdictsFile, text, 0o644)
	}
	for _, f := range found {
		compare(t, f.Column, f.Met)
	}
}

// finding is what every attempt met in one column.
type finding struct {
	Column column
	Met    map[string]string
}

// MarshalText and UnmarshalText keep a column whole in a file of findings.
func (c column) MarshalText() ([]byte, error) { return []byte(c.placement + "/" + c.user), nil }

func (c *column) UnmarshalText(b []byte) error {
	c.placement, c.user, _ = strings.Cut(string(b), "/")
	return nil
}

// playHere plays the columns of this process' own user.
func playHere(t *testing.T) []finding {
	t.Helper()
	var out []finding
	each(t, func(t *testing.T, mode confine.Mode, h confine.Confiner, r *room, c agent.Confinement) {
		r.surround(t)
		col := column{string(mode), kindOfUser()}
		met := r.play(t, h, c)
		out = append(out, finding{col, met})
		// The network that is granted opens nothing else.
		r.Open, c.Network = true, agent.Network{Open: true}
		for name, got := range r.play(t, h, c) {
			i := slices.IndexFunc(attacks, func(a attack) bool { return a.name == name })
			if was := met[name]; attacks[i].verdict(was, true) != attacks[i].verdict(got, true) && !attacks[i].needed {
				t.Errorf("%s with the open network: %q, without %q", name, got, was)
			}
		}
	})
	if os.Geteuid() != 0 {
		r := newRoom(t)
		r.surround(t)
		r.Bare, r.Inside, r.WorkDir = true, false, r.Work
		out = append(out, finding{column{"none", "user"}, r.playBy(t, func(cmd *exec.Cmd) (agent.Process, error) {
			cmd.Dir = r.WorkDir
			return procs.Start(cmd, procs.Supervised)
		})})
	}
	return out
}

// surround puts sockets of the host around the room.
func (r *room) surround(t *testing.T) {
	t.Helper()
	r.Socket = listen(t, "unix", r.Outside+"/s")
	r.Abstract = listen(t, "unix", "@turnpike-test-"+r.Outside)
	r.Loopback = listen(t, "tcp", "127.0.0.1:0")
}

// playAsUser plays the columns of an ordinary user.
func playAsUser(t *testing.T) []finding {
	t.Helper()
	dir := t.TempDir()
	opened(t, dir)
	file := filepath.Join(dir, "played")
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestAttacks$", "-test.count=1", "-test.timeout=5m", "-played="+file)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir, "HOME=" + dir}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinary, Gid: ordinary}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("as uid %d: %v\n%s", ordinary, err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var found []finding
	if err := json.Unmarshal(text, &found); err != nil {
		t.Fatal(err)
	}
	return found
}

// playInContainer plays in a container of the engine.
func playInContainer(t *testing.T) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	r := newRoom(t)
	r.surround(t)
	r.Image = true
	label := "turnpike.testenv=confine-attacks-" + filepath.Base(filepath.Dir(r.Work))
	e := &container.Engine{Dir: t.TempDir(), Label: label}
	premises, err := e.Look(ctx, "", agent.Profile{SandboxImage: testenv.AgentImage(t)})
	if err != nil {
		t.Fatal(err)
	}
	box := agent.Box{
		Name: "turnpike-test-attacks-" + fmt.Sprint(os.Getpid()), Label: label, Dir: t.TempDir(), Image: premises.Image,
		Workspace: r.Work, WorkDir: r.WorkDir,
	}
	for _, b := range []agent.Bind{
		{Source: r.Work, Destination: r.Work, Access: agent.ReadWrite}, {Source: r.Work, Destination: r.WorkDir, Access: agent.ReadWrite},
		{Source: r.Metadata, Destination: r.Metadata}, {Source: r.Metadata, Destination: r.WorkDir + "/.git"},
		{Source: r.ReadOnly, Destination: r.ReadOnly}, {Source: r.Bin, Destination: r.Bin},
		{Source: premises.MaskFile, Destination: r.Denied}, {Source: premises.MaskFile, Destination: r.Bin + "/hardlink"},
	} {
		if b.Access == "" {
			b.Access = agent.ReadOnly
		}
		box.Binds = append(box.Binds, b)
	}
	return r.playBy(t, func(cmd *exec.Cmd) (agent.Process, error) { return e.Start(ctx, cmd, box, nil) })
}

// compare holds what attempts met in a column against the table.
func compare(t *testing.T, c column, met map[string]string, but ...string) {
	t.Helper()
	want, err := recorded()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range attacks {
		got, tried := met[a.name]
		if v := a.verdict(got, tried); !slices.Contains(but, a.name) && v != want[a.name][c] {
			t.Errorf("%s, %s: %s (%s), want %q", c, a.name, v, got, want[a.name][c])
		}
	}
	for name := range want {
		if !slices.ContainsFunc(attacks, func(a attack) bool { return a.name == name }) {
			t.Errorf("%s is in the table and is not tried", name)
		}
	}
}

// recorded reads the table that is checked in.
func recorded() (map[string]map[column]verdict, error) {
	text, err := os.ReadFile(verdictsFile)
	if errors.Is(err, os.ErrNotExist) {
		text, err = os.ReadFile(filepath.Join(os.Getenv("TURNPIKE_TEST_DIR"), verdictsFile))
	}
	if err != nil {
		return nil, err
	}
	out := make(map[string]map[column]verdict)
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		cells := strings.Split(line, " | ")
		if len(cells) != len(columns)+2 {
			return nil, fmt.Errorf("%s: line %d: %d cells", verdictsFile, i+1, len(cells))
		}
		if i == 0 {
			continue
		}
		row := make(map[column]verdict)
		for j, c := range columns {
			row[c] = verdict(strings.TrimSpace(cells[j+1]))
		}
		out[strings.TrimSpace(cells[0])] = row
	}
	return out, nil
}

// table writes what was found as the table that is checked in. A column that was not
// played stays as it is on record.
func table(found []finding) string {
	was, _ := recorded() // there may be none yet
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 1, ' ', 0)
	fmt.Fprint(w, "attempt")
	for _, c := range columns {
		fmt.Fprintf(w, "\t| %s", c)
	}
	fmt.Fprintln(w, "\t| held by")
	for _, a := range attacks {
		fmt.Fprint(w, a.name)
		for _, c := range columns {
			v := was[a.name][c]
			for _, f := range found {
				if f.Column == c {
					met, tried := f.Met[a.name]
					v = a.verdict(met, tried)
				}
			}
			fmt.Fprintf(w, "\t| %s", v)
		}
		fmt.Fprintf(w, "\t| %s\n", a.by)
	}
	_ = w.Flush() // a bytes.Buffer takes everything
	return b.String()
}
