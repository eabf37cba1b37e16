package confine_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"turnpike/internal/agent"
	"turnpike/internal/agent/confine"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func ro(path string) agent.Mount { return agent.Mount{Path: path, Access: agent.ReadOnly} }
func rw(path string) agent.Mount { return agent.Mount{Path: path, Access: agent.ReadWrite} }

// A turn in a checkout without version control, with a read-only directory in it, a
// session of its own and a denied program.
var (
	turnMounts   = []agent.Mount{rw("/Users/w/src/app"), ro("/Users/w/src/app/vendor"), ro("/Users/w/docs")}
	turnSystem   = []agent.Mount{ro("/usr/bin"), ro("/bin"), ro("/Users/w/state/s1/run"), rw("/Users/w/state/s1/home")}
	turnMetadata = []string{"/Users/w/src/app/.git"}
	turnDenied   = []string{"/usr/bin/git", "/Users/w/src/app/tmp/engine.sock"}
)

func turnProfile(t *testing.T, network bool) string {
	t.Helper()
	text, err := confine.Profile(turnMounts, turnSystem, turnMetadata, turnDenied, network)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestProfileText(t *testing.T) {
	for name, network := range map[string]bool{"closed": false, "open": true} {
		t.Run(name, func(t *testing.T) {
			got, golden := turnProfile(t, network), filepath.Join("testdata", "seatbelt-"+name+".sb")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("profile (-want +got):\n%s", diff)
			}
		})
	}
}

func TestProfileVerdicts(t *testing.T) {
	const app = "/Users/w/src/app"
	closed, open := readProfile(t, turnProfile(t, false)), readProfile(t, turnProfile(t, true))
	for _, c := range []struct {
		op, path string
		want     bool
	}{
		{"file-read-data", app + "/main.go", true},
		{"file-write-data", app + "/main.go", true},
		{"file-write-create", app + "/new", true}, // at the top of the worktree too
		{"file-write-unlink", app + "/old", true},
		{"process-exec", app + "/bin/tool", true},
		{"file-read-data", app + "/.git/config", true},
		{"file-write-data", app + "/.git/config", false},
		{"file-write-create", app + "/.git/hooks/post-checkout", false},
		{"file-write-unlink", app + "/.git", false}, // rename away, write, rename back
		{"file-write-mode", app + "/.git/config", false},
		{"file-write-unlink", app, false},
		{"file-write-create", app + "/vendor/x", false},
		{"file-write-times", app + "/vendor/x", false},
		{"file-write-xattr", app + "/vendor/x", false},
		{"network-bind", app + "/vendor/s", false},
		{"file-link", app + "/vendor/x", false}, // a second name that could be written
		{"file-write-setugid", app + "/main.go", false},
		{"file-read-data", app + "-other/main.go", false}, // a prefix of names is none of paths
		{"file-read-data", "/Users/w/src/other", false},
		{"file-read-data", "/Users/w/src", false}, // found, not listed
		{"file-read-metadata", "/Users/w/src", true},
		{"file-read-metadata", "/Users/w/secret", false},
		{"file-read-data", "/Users/w/docs/a", true},
		{"file-write-data", "/Users/w/docs/a", false},
		{"network-outbound", "/Users/w/docs/s", false}, // a service in a read-only grant
		{"network-outbound", app + "/own.sock", true},
		{"network-bind", app + "/own.sock", true},
		{"network-outbound", app + "/tmp/engine.sock", false},
		{"file-write-unlink", app + "/tmp", false}, // the way to what is denied
		{"file-write-unlink", app + "/tmp/other", true},
		{"network-outbound", "/private/var/run/docker.sock", false},
		{"network-outbound", "/Users/w/state/s1/run/mcp.sock", true},
		{"network-bind", "/Users/w/state/s1/run/other.sock", false},
		{"file-write-create", "/Users/w/state/s1/run/other", false},
		{"file-write-create", "/Users/w/state/s1/home/.claude", true},
		{"file-read-data", "/Users/w/state/s2/home/x", false},
		{"process-exec", "/usr/bin/env", true},
		{"file-map-executable", "/usr/bin/env", true},
		{"process-exec", "/usr/bin/git", false},
		{"file-read-data", "/usr/bin/git", false},
		{"process-exec-interpreter", "/usr/bin/git", false},
		{"file-write-data", "/usr/bin/env", false},
		{"file-write-data", "/dev/null", true},
		{"file-write-create", "/dev/null", false},
		{"file-ioctl", "/dev/ttys003", false}, // another window's terminal
		{"file-read-data", "/dev/ttys003", false},
		{"file-read-data", "/private/etc/master.passwd", false},
		{"mach-lookup", "com.apple.system.opendirectoryd.libinfo", true},
		{"mach-lookup", "com.apple.SecurityServer", false},
		{"mach-lookup", "com.apple.coreservices.appleevents", false},
		{"sysctl-read", "hw.ncpu", true},
		{"sysctl-read", "kern.procargs2", false},
		{"sysctl-read", "kern.proc.all", false},
		{"sysctl-write", "hw.ncpu", false},
		{"iokit-open", "IOSurfaceRootUserClient", false},
		{"user-preference-read", "com.apple.x", false},
		{"process-fork", "", true},
	} {
		for name, p := range map[string]profile{"closed": closed, "open": open} {
			if got := p.allows(c.op, c.path); got != c.want {
				t.Errorf("%s, network %s: %s is %t, want %t", c.op, name, c.path, got, c.want)
			}
		}
	}
	for _, c := range []struct{ op, where string }{
		{"network-outbound", "*:*"}, {"network-inbound", "*:*"}, {"network-bind", "*:*"},
		{"network-outbound", "/private/var/run/mDNSResponder"}, {"mach-lookup", "com.apple.trustd.agent"},
	} {
		if closed.allows(c.op, c.where) || !open.allows(c.op, c.where) {
			t.Errorf("%s to %s: closed %t, open %t", c.op, c.where, closed.allows(c.op, c.where), open.allows(c.op, c.where))
		}
	}
	for _, op := range []string{"signal", "process-info-pidinfo"} {
		if !closed.allows(op, "same-sandbox") || closed.allows(op, "others") {
			t.Errorf("%s: reaches beyond the turn, or not its own", op)
		}
	}
}

// TestProfileAgreesWithGrants compares what a profile says of nested grants with what
// the grants mean: the innermost decides.
func TestProfileAgreesWithGrants(t *testing.T) {
	names := []string{"a", "b", "c d", `e"f`, "g)(h", "ab"}
	path := rapid.Custom(func(t *rapid.T) string {
		return "/m/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom(names), 1, 4).Draw(t, "names"), "/")
	})
	rapid.Check(t, func(r *rapid.T) {
		var mounts []agent.Mount
		for _, p := range rapid.SliceOfNDistinct(path, 1, 6, rapid.ID).Draw(r, "mounts") {
			access := rapid.SampledFrom([]agent.Access{agent.ReadOnly, agent.ReadWrite}).Draw(r, "access")
			mounts = append(mounts, agent.Mount{Path: p, Access: access})
		}
		denied := rapid.SliceOfN(path, 0, 2).Draw(r, "denied")
		text, err := confine.Profile(mounts, nil, nil, denied, false)
		if err != nil {
			r.Fatal(err)
		}
		p := readProfile(r, text)
		for range 8 {
			at := path.Draw(r, "path")
			m, granted := agent.Deciding(mounts, at)
			hidden := slices.ContainsFunc(denied, func(d string) bool { return agent.Inside(at, d) })
			reads, writes := granted && !hidden, granted && !hidden && m.Access == agent.ReadWrite
			if got := p.allows("file-read-data", at); got != reads {
				r.Fatalf("reads %s: %t, want %t under\n%s", at, got, reads, text)
			}
			if got := p.allows("file-write-data", at); got != writes {
				r.Fatalf("writes %s: %t, want %t under\n%s", at, got, writes, text)
			}
			if got := p.allows("process-exec", at); got != reads {
				r.Fatalf("runs %s: %t, want %t under\n%s", at, got, reads, text)
			}
		}
	})
}

// FuzzQuote holds that no path can say anything in a profile but its own name.
func FuzzQuote(f *testing.F) {
	for _, s := range []string{
		"/a", `/a"b`, `/a\`, `/a\"`, "/a\n(allow default)", `/a")(allow default)("`, "/a;b", "/a#|b|#", "/é", "/a\x00b",
		"/a\u2028b", "/\xff", `/a\x22`, `/a\n`, "/a\u0085b", "/(", "/a\tb",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		path := "/" + strings.TrimLeft(text, "/")
		literal, err := confine.Quote(path)
		got, profileErr := confine.Profile([]agent.Mount{rw(path)}, nil, nil, []string{path + "/x"}, false)
		if err != nil {
			if !errors.Is(err, agent.ErrUnsupported) || profileErr == nil {
				t.Fatalf("%q: %v, %v", path, err, profileErr)
			}
			return
		}
		forms, err := parse(literal)
		if err != nil || len(forms) != 1 || forms[0].list != nil || forms[0].text != path || !forms[0].quoted {
			t.Fatalf("%q is written %s, which reads as %v (%v)", path, literal, forms, err)
		}
		if profileErr != nil {
			t.Fatal(profileErr)
		}
		plain, err := confine.Profile([]agent.Mount{rw("/plain")}, nil, nil, []string{"/plain/x"}, false)
		if err != nil {
			t.Fatal(err)
		}
		a, err := parse(got)
		if err != nil {
			t.Fatal(err)
		}
		b, err := parse(plain)
		if err != nil {
			t.Fatal(err)
		}
		// The directories above the path are as many as it has.
		if strings.Count(path, "/") == 1 && filepath.Clean(path) == path && shape(a) != shape(b) {
			t.Fatalf("%q changes the profile:\n%s", path, got)
		}
	})
}

func TestProfileTooLong(t *testing.T) {
	var denied []string
	for i := range 4000 {
		denied = append(denied, fmt.Sprintf("/Users/w/src/app/a-directory-with-a-rather-long-name/of-which-there-are-many/%06d", i))
	}
	if _, err := confine.Profile([]agent.Mount{rw("/Users/w/src/app")}, nil, nil, denied, false); !errors.Is(err, agent.ErrUnsupported) {
		t.Errorf("a profile beyond the bound: %v", err)
	}
}

func TestSettle(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(names ...string) string { return filepath.Join(append([]string{top}, names...)...) }
	for _, dir := range []string{"app/.git", "home/.ssh", "home/src", "home/Library/x", "state", "bin"} {
		if err := os.MkdirAll(at(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(at("bin", "git"), []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{at("bin", "git-2"): "link", at("bin", "vcs"): at("bin", "git"), at("linked"): at("app")} {
		link := os.Symlink
		if to == "link" {
			link, to = os.Link, at("bin", "git")
		}
		if err := link(to, from); err != nil {
			t.Fatal(err)
		}
	}
	base := func() agent.Confinement {
		return agent.Confinement{
			Mounts: []agent.Mount{rw(at("app"))}, System: []agent.Mount{ro(at("bin")), ro(at("nowhere"))},
			Workspace: at("app"), WorkDir: at("app"), ReadOnlyMetadata: []string{at("app", ".git")},
		}
	}
	settle := func(c agent.Confinement) (string, error) {
		return confine.Settle(c, at("home"), []string{at("state")})
	}

	t.Run("names", func(t *testing.T) {
		c := base()
		c.Denied = []string{at("bin", "vcs"), at("bin", "absent")}
		text, err := settle(c)
		if err != nil {
			t.Fatal(err)
		}
		p := readProfile(t, text)
		for _, name := range []string{"git", "git-2", "vcs"} {
			if p.allows("process-exec", at("bin", name)) {
				t.Errorf("%s is executed", name)
			}
		}
		if p.allows("file-write-data", at("app", ".git", "config")) || !p.allows("file-write-data", at("app", "x")) {
			t.Error("the metadata is written, or the rest is not")
		}
		if strings.Contains(text, "nowhere") {
			t.Error("a system path that is not there is in the profile")
		}
	})
	for name, change := range map[string]func(*agent.Confinement){
		"claude's own sandbox":        func(c *agent.Confinement) { c.Sandbox = agent.SandboxClaude },
		"an engine's sandbox":         func(c *agent.Confinement) { c.Sandbox = agent.SandboxContainer },
		"domains":                     func(c *agent.Confinement) { c.Network.Proxied = true },
		"a moved workspace":           func(c *agent.Confinement) { c.WorkDir = "/workspace" },
		"memory":                      func(c *agent.Confinement) { c.Limits.MemoryBytes = 1 },
		"processes":                   func(c *agent.Confinement) { c.Limits.Processes = 1 },
		"CPU":                         func(c *agent.Confinement) { c.Limits.CPUs = 1 },
		"open files below zero":       func(c *agent.Confinement) { c.Limits.OpenFiles = -1 },
		"a workspace in no mount":     func(c *agent.Confinement) { c.Workspace, c.WorkDir = at("home", "src"), at("home", "src") },
		"no access":                   func(c *agent.Confinement) { c.Mounts[0].Access = "" },
		"a link":                      func(c *agent.Confinement) { c.Mounts = append(c.Mounts, ro(at("linked"))) },
		"a path that is not clean":    func(c *agent.Confinement) { c.Mounts = append(c.Mounts, ro(at("app")+"/../app")) },
		"a relative path":             func(c *agent.Confinement) { c.Mounts = append(c.Mounts, ro("app")) },
		"both ro and rw":              func(c *agent.Confinement) { c.Mounts = append(c.Mounts, ro(at("app"))) },
		"everything":                  func(c *agent.Confinement) { c.Mounts = append(c.Mounts, ro("/")) },
		"the home":                    func(c *agent.Confinement) { c.Mounts = append(c.Mounts, ro(at("home"))) },
		"keys":                        func(c *agent.Confinement) { c.Mounts = append(c.Mounts, ro(at("home", ".ssh"))) },
		"the keychains' directory":    func(c *agent.Confinement) { c.Mounts = append(c.Mounts, ro(at("home", "Library", "x"))) },
		"the worker's own":            func(c *agent.Confinement) { c.Mounts = append(c.Mounts, rw(at("state"))) },
		"the worker's own from above": func(c *agent.Confinement) { c.Mounts = append(c.Mounts, ro(top)) },
		"the system's root":           func(c *agent.Confinement) { c.System = append(c.System, ro("/")) },
	} {
		t.Run(name, func(t *testing.T) {
			c := base()
			change(&c)
			if text, err := settle(c); !errors.Is(err, agent.ErrUnsupported) {
				t.Errorf("not refused: %v\n%s", err, text)
			}
		})
	}
	for name, change := range map[string]func(*agent.Confinement){
		"a mount that is gone": func(c *agent.Confinement) { c.Mounts = append(c.Mounts, ro(at("gone"))) },
		"metadata that is gone": func(c *agent.Confinement) {
			c.ReadOnlyMetadata = append(c.ReadOnlyMetadata, at("app", ".hg"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := base()
			change(&c)
			if _, err := settle(c); !errors.Is(err, agent.ErrPolicyChanged) {
				t.Errorf("%v, want %v", err, agent.ErrPolicyChanged)
			}
		})
	}
	t.Run("a name with a line break", func(t *testing.T) {
		c := base()
		odd := at("app", "a\nb")
		if err := os.Mkdir(odd, 0o755); err != nil {
			t.Fatal(err)
		}
		c.ReadOnlyMetadata = append(c.ReadOnlyMetadata, odd)
		if _, err := settle(c); !errors.Is(err, agent.ErrUnsupported) {
			t.Errorf("a name with a line break: %v", err)
		}
	})
}

// form is a list, or an atom.
type form struct {
	list   []form
	text   string
	quoted bool
}

// parse reads the profile language strictly: in a string only \\ and \" are escapes.
func parse(text string) ([]form, error) {
	out, rest, err := parseList(text, false)
	if err == nil && rest != "" {
		err = fmt.Errorf("left over: %q", rest)
	}
	return out, err
}

func parseList(text string, inside bool) ([]form, string, error) {
	var out []form
	for {
		text = strings.TrimLeft(text, " \n")
		switch {
		case text == "":
			if inside {
				return nil, "", errors.New("a list that does not end")
			}
			return out, "", nil
		case text[0] == ')':
			if !inside {
				return nil, "", errors.New("a list that did not begin")
			}
			return out, text[1:], nil
		case text[0] == '(':
			list, rest, err := parseList(text[1:], true)
			if err != nil {
				return nil, "", err
			}
			out, text = append(out, form{list: append([]form{}, list...)}), rest
		case text[0] == '"':
			atom, rest, err := parseString(text[1:])
			if err != nil {
				return nil, "", err
			}
			out, text = append(out, form{text: atom, quoted: true}), rest
		default:
			end := strings.IndexAny(text, " \n()\"")
			if end < 0 {
				end = len(text)
			}
			out, text = append(out, form{text: text[:end]}), text[end:]
		}
	}
}

func parseString(text string) (atom, rest string, err error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			return b.String(), text[i+1:], nil
		case c < ' ':
			return "", "", fmt.Errorf("control character %#x in a string", c)
		case c == '\\':
			if i++; i == len(text) || text[i] != '\\' && text[i] != '"' {
				return "", "", errors.New("an escape that is none")
			}
			b.WriteByte(text[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", "", errors.New("a string that does not end")
}

// shape is a text's forms without what its strings say.
func shape(forms []form) string {
	var b strings.Builder
	for _, f := range forms {
		switch {
		case f.list != nil:
			b.WriteString("(" + shape(f.list) + ")")
		case f.quoted:
			b.WriteString(`"" `)
		default:
			b.WriteString(f.text + " ")
		}
	}
	return b.String()
}

// profile is a profile as this test understands it.
type profile []profileRule

type profileRule struct {
	allow      bool
	operations []string
	filters    []form
}

type failer interface{ Fatalf(string, ...any) }

func readProfile(t failer, text string) profile {
	forms, err := parse(text)
	if err != nil {
		t.Fatalf("profile: %v\n%s", err, text)
	}
	var p profile
	for _, f := range forms {
		if len(f.list) < 2 {
			t.Fatalf("no rule: %v", f)
		}
		switch f.list[0].text {
		case "version":
			continue
		case "allow", "deny":
		default:
			t.Fatalf("unknown form %q", f.list[0].text)
		}
		r := profileRule{allow: f.list[0].text == "allow"}
		for _, part := range f.list[1:] {
			if part.list != nil {
				r.filters = append(r.filters, part)
			} else {
				r.operations = append(r.operations, part.text)
			}
		}
		p = append(p, r)
	}
	return p
}

// allows gives the verdict of the last rule that matches.
func (p profile) allows(op, what string) bool {
	verdict := false
	for _, r := range p {
		if r.covers(op) && r.matches(what) {
			verdict = r.allow
		}
	}
	return verdict
}

func (r profileRule) covers(op string) bool {
	return slices.ContainsFunc(r.operations, func(o string) bool {
		prefix, wild := strings.CutSuffix(o, "*")
		return o == "default" || o == op || wild && strings.HasPrefix(op, prefix)
	})
}

func (r profileRule) matches(what string) bool {
	return len(r.filters) == 0 || slices.ContainsFunc(r.filters, func(f form) bool {
		text := f.list[len(f.list)-1].text
		switch f.list[0].text {
		case "subpath":
			return what == text || strings.HasPrefix(what, text+"/")
		case "sysctl-name-prefix":
			return strings.HasPrefix(what, text)
		}
		return what == text
	})
}
