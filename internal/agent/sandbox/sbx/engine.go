package sbx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"turnpike/internal/agent"
)

// HostName is the name by which a sandbox reaches the ports of the host's loopback that
// it is allowed.
const HostName = "host.docker.internal"

// least is the first release with rules for one sandbox and --deny-network.
var least = [3]int{0, 38, 0}

// Engine runs turns in sandboxes. The zero Engine is usable.
type Engine struct {
	// Bin is sbx's program; empty is agent.SandboxCLI.
	Bin string
	// DockerBin is the container engine a Dagger engine in a container is reached
	// through; empty is agent.ContainerEngine.
	DockerBin string
	// Stage is the program whose main begins with Entry; empty is the running one.
	Stage string
	// KitNetwork accepts that a turn limited to domains also reaches what sbx's kit for
	// its agent allows: the agent's provider and update servers, as sbx sees them.
	KitNetwork bool
	// DaggerURL is where Dagger's releases are; empty is their publisher's.
	DaggerURL string
}

var _ agent.Engine = (*Engine)(nil)

func (e *Engine) client(bin string) client {
	return client{bin: cmp.Or(bin, e.Bin, agent.SandboxCLI)}
}

// Look implements agent.Engine. It makes no sandbox: what a template holds is found out
// by the turn.
func (e *Engine) Look(ctx context.Context, bin string, p agent.Profile) (agent.Premises, error) {
	version, err := e.check(ctx, e.client(bin))
	if err != nil {
		return agent.Premises{}, err
	}
	if p.SandboxImage == "" && agent.SbxTemplates[p.AgentName()] == "" {
		return agent.Premises{}, unsupported("sbx has no template of its own for the agent %s: name one", p.AgentName())
	}
	if strings.HasPrefix(p.SandboxImage, "-") {
		return agent.Premises{}, unsupported("template %q", p.SandboxImage)
	}
	return agent.Premises{
		Image: p.SandboxImage, Bin: p.AgentName(), HostName: HostName, SocketDir: inside, Injects: true,
		Private: private(), Version: version,
		Weaknesses: []string{"the agent may become root inside its sandbox; that read-only workspaces stay so is sbx's word"},
	}, nil
}

// check asks sbx what it is.
func (e *Engine) check(ctx context.Context, c client) (string, error) {
	if runtime.GOOS != "linux" {
		return "", unsupported("sandboxes run the worker's own program inside, which is built for %s", runtime.GOOS)
	}
	if _, err := exec.LookPath(c.bin); err != nil {
		return "", fmt.Errorf("%w: sbx is missing: %w", agent.ErrUnready, err)
	}
	said, err := c.run(ctx, askTime, "version")
	if err != nil {
		return "", err
	}
	v, ok := release(said)
	if !ok {
		return "", unsupported("sbx does not say its version but %q", oneLine(said))
	}
	if slices.Compare(v[:], least[:]) < 0 {
		return "", unsupported("sbx is %d.%d.%d; %d.%d.%d is the first that holds a turn's network", v[0], v[1], v[2], least[0], least[1], least[2])
	}
	return fmt.Sprintf("sbx %d.%d.%d", v[0], v[1], v[2]), nil
}

var releaseText = regexp.MustCompile(`\bv?(\d{1,6})\.(\d{1,6})\.(\d{1,6})\b`)

func release(said string) (v [3]int, ok bool) {
	m := releaseText.FindStringSubmatch(said)
	if m == nil {
		return v, false
	}
	for i := range v {
		v[i], _ = strconv.Atoi(m[i+1]) // six digits are a number
	}
	return v, true
}

// private are the directories sbx keeps its sandboxes, its store and its sockets in.
func private() []string {
	var out []string
	home, err := os.UserHomeDir()
	if err != nil {
		return nil
	}
	for _, base := range []struct{ name, otherwise string }{
		{"XDG_CONFIG_HOME", ".config"}, {"XDG_DATA_HOME", ".local/share"}, {"XDG_STATE_HOME", ".local/state"}, {"XDG_CACHE_HOME", ".cache"},
	} {
		own := os.Getenv(base.name) //nolint:forbidigo // no setting of ours: where sbx itself looks
		out = append(out, filepath.Join(cmp.Or(own, filepath.Join(home, base.otherwise)), "com.docker.sandboxes"))
	}
	return append(out, filepath.Join(home, ".docker/sandboxes"), filepath.Join(home, ".sandboxes"))
}

// namePrefix begins the name of every sandbox of a turn.
const namePrefix = "turnpike-"

var nameText = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.+-]*$`)

// nameOf is the name of the sandbox with this label. A label's value is the worker's
// part, a slash and the turn's.
func nameOf(label string) (string, error) {
	_, value, _ := strings.Cut(label, "=")
	worker, turn, ok := strings.Cut(value, "/")
	name := namePrefix + worker + "-" + turn
	if !ok || worker == "" || turn == "" || !nameText.MatchString(name) || strings.Contains(worker, "-") {
		return "", unsupported("the label %q makes no name of a sandbox", label)
	}
	return name, nil
}

// Find implements agent.Engine.
func (e *Engine) Find(ctx context.Context, who agent.Identity) (bool, error) {
	name, err := e.those(who)
	if err != nil {
		return false, fmt.Errorf("find sandbox: %w", err)
	}
	all, err := e.client("").list(ctx)
	if err != nil {
		return false, fmt.Errorf("find sandbox: %w", err)
	}
	return slices.Contains(all, name), nil
}

// those is the name of the sandbox that who names.
func (*Engine) those(who agent.Identity) (string, error) {
	if who.Kind != agent.KindSandbox {
		return "", errors.New("the identity is no sandbox's")
	}
	if who.Label == "" {
		if !strings.HasPrefix(who.ID, namePrefix) || !nameText.MatchString(who.ID) {
			return "", errors.New("the identity is incomplete")
		}
		return who.ID, nil
	}
	name, err := nameOf(who.Label)
	if err == nil && who.ID != "" && who.ID != name {
		err = fmt.Errorf("the label is %s's, the id %s", name, who.ID)
	}
	return name, err
}

// End implements agent.Engine.
func (e *Engine) End(ctx context.Context, who agent.Identity) (bool, error) {
	there, err := e.Find(ctx, who)
	if err != nil || !there {
		return false, err
	}
	name, err := e.those(who)
	if err == nil {
		err = e.client("").remove(ctx, name)
	}
	if err != nil {
		return false, fmt.Errorf("end sandbox: %w", err)
	}
	return true, nil
}

// Sweep implements agent.Engine.
func (e *Engine) Sweep(ctx context.Context, prefix string) (int, error) {
	name, err := nameOf(prefix + "x")
	if err != nil {
		return 0, fmt.Errorf("sweep sandboxes: %w", err)
	}
	name = strings.TrimSuffix(name, "x")
	c := e.client("")
	all, err := c.list(ctx)
	if err != nil {
		return 0, fmt.Errorf("sweep sandboxes: %w", err)
	}
	n := 0
	for _, s := range all {
		if !strings.HasPrefix(s, name) {
			continue
		}
		if err := c.remove(ctx, s); err != nil {
			return n, fmt.Errorf("sweep sandbox %s: %w", s, err)
		}
		n++
	}
	return n, nil
}

// Report is what sbx can hold a turn to, for people.
type Report struct {
	OK      bool     `json:"ok"`
	Version string   `json:"version,omitempty"`
	Missing []string `json:"missing,omitempty"`
}

// Probe asks sbx what it is. It makes no sandbox.
func (e *Engine) Probe(ctx context.Context) Report {
	c := e.client("")
	version, err := e.check(ctx, c)
	if err != nil {
		return Report{Missing: []string{err.Error()}}
	}
	r := Report{OK: true, Version: version}
	if err := c.sshAgent(ctx); err != nil {
		r.Missing = append(r.Missing, err.Error()) // turns with version control have it
	}
	return r
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", agent.ErrUnsupported, fmt.Sprintf(format, args...))
}
