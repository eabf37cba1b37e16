package confine

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"turnpike/internal/agent"
)

// maxProfile bounds the text of a profile. It is an argument of sandbox-exec, and all
// arguments and variables of a process share a megabyte.
const maxProfile = 256 << 10

// seatbelt is what a Seatbelt profile is written from. Its paths have no links and are
// spelled as they are on disk, because that is how the kernel names what it judges.
type seatbelt struct {
	// Mounts and System allow; where one lies inside another, the inner one decides
	// and a system path never narrows.
	Mounts, System []agent.Mount
	// ReadOnly stays unwritten inside Mounts, Denied unreachable inside both.
	ReadOnly, Denied []string
	// Network is the host's network; without it there is none, loopback included.
	Network bool
}

// What every program gets. It is the least with which a node, bun, Go or Rust program
// starts, resolves names and tells its user.
var (
	// Devices that hold nothing of anybody.
	quietDevices = []string{"/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"}
	// Links of the root that system paths are named through, and the root's own list
	// of names, without which the dynamic loader gives up.
	rootLinks = []string{"/etc", "/tmp", "/var"}
	// What programs ask the kernel of the machine. Not here: kern.proc and
	// kern.procargs2, which show other processes and their arguments.
	sysctls = []string{
		"hw.", "machdep.cpu.", "kern.osproductversion", "kern.osrelease", "kern.ostype", "kern.osversion",
		"kern.version", "kern.hostname", "kern.argmax", "kern.maxfiles", "kern.maxproc", "kern.ngroups",
		"kern.usrstack64", "kern.secure_kernel", "kern.boottime", "kern.iossupportversion", "kern.tcsm_",
		"kern.willshutdown", "kern.grade_cputype", "security.mac.lockdown_mode_state", "sysctl.proc_", "vm.loadavg",
	}
	// Services of launchd. Not here: SecurityServer (the keychain), the pasteboard,
	// LaunchServices and Apple events, each of which acts for the user.
	services = []string{
		"com.apple.system.opendirectoryd.libinfo", // the user's own name and home, groups
	}
	networkServices = []string{
		"com.apple.SystemConfiguration.configd",          // Rust's HTTP clients ask for the proxy settings and abort without an answer
		"com.apple.SystemConfiguration.DNSConfiguration", // which servers resolve names
		"com.apple.trustd.agent", "com.apple.trustd",     // whether a certificate is trusted
		"com.apple.dnssd.service", "com.apple.networkd", // names, routes
		"com.apple.system.opendirectoryd.membership",            // whom a resolver asks for
		"com.apple.nsurlsessiond", "com.apple.nesessionmanager", // clients on Apple's own stack
	}
	// resolver is the socket on which names are resolved.
	resolver = "/private/var/run/mDNSResponder"
)

// profile is the text of the profile, in which the last rule that matches decides.
func (s seatbelt) profile() (string, error) {
	var w profileText
	w.say("(version 1)", "(deny default)", "(allow process-fork)",
		"(allow signal process-info* (target same-sandbox))")
	w.rule("allow", "sysctl-read", matches("sysctl-name-prefix", sysctls)...)
	w.rule("allow", "mach-lookup", matches("global-name", services)...)
	w.rule("allow", "file-read*", matches("literal", append([]string{"/"}, quietDevices...))...)
	w.rule("allow", "file-write-data", matches("literal", quietDevices)...)
	w.rule("allow", "file-read* file-write-data", match{"subpath", "/dev/fd"}) // its own descriptors
	w.rule("allow", "file-read-metadata", matches("literal", rootLinks)...)
	s.network(&w)
	s.files(&w)
	s.keep(&w)
	text := w.b.String()
	if w.err == nil && len(text) > maxProfile {
		w.err = unsupported("the profile of this turn has %d bytes, more than the %d that can be passed on; grant or deny less", len(text), maxProfile)
	}
	return text, w.err
}

func (s seatbelt) network(w *profileText) {
	if !s.Network {
		return
	}
	w.rule("allow", "network-outbound", match{"remote ip", "*:*"}, match{"literal", resolver})
	w.rule("allow", "network-bind network-inbound", match{"local ip", "*:*"})
	w.rule("allow", "mach-lookup", matches("global-name", networkServices)...)
}

// files allows what is granted, outer before inner.
func (s seatbelt) files(w *profileText) {
	// Where something granted lies must be found, not listed.
	above := map[string]bool{}
	for _, m := range slices.Concat(s.Mounts, s.System) {
		for dir := filepath.Dir(m.Path); dir != "/" && dir != "."; dir = filepath.Dir(dir) {
			above[dir] = true
		}
	}
	w.rule("allow", "file-read-metadata", matches("literal", slices.Sorted(maps.Keys(above)))...)

	type grant struct {
		agent.Mount
		system bool
	}
	var grants []grant
	for _, m := range s.Mounts {
		grants = append(grants, grant{m, false})
	}
	for _, m := range s.System {
		grants = append(grants, grant{m, true})
	}
	// A path sorts before everything in it; of equals the system's adds last.
	slices.SortStableFunc(grants, func(a, b grant) int { return strings.Compare(a.Path, b.Path) })
	for _, g := range grants {
		write := g.Access == agent.ReadWrite
		at := match{"subpath", g.Path}
		w.rule("allow", "file-read* file-map-executable process-exec*", at)
		// Only what may be written may be bound or dialled, and what the worker itself
		// put there: a socket in a read-only grant is somebody's service.
		switch {
		case write:
			w.rule("allow", "file-write* network-bind network-outbound", at)
			// A mount cannot be moved away and something else put in its place.
			w.rule("deny", "file-write-unlink", match{"literal", g.Path})
		case g.system:
			w.rule("allow", "network-outbound", at)
		default:
			w.rule("deny", "file-write* network-bind network-outbound", at)
		}
	}
	// Rights to become another user, and second names under which a file that may not
	// be written here could be written there.
	w.say("(deny file-write-setugid)", "(deny file-link)")
}

// keep takes back, last of all, what stays out of reach inside the grants. A directory
// on the way to such a path is not moved: its content would have another name then.
func (s seatbelt) keep(w *profileText) {
	kept := slices.Concat(s.ReadOnly, s.Denied)
	for _, m := range s.Mounts {
		if m.Access == agent.ReadOnly {
			kept = append(kept, m.Path)
		}
	}
	way := map[string]bool{}
	for _, path := range kept {
		for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
			if m, ok := agent.Deciding(slices.Concat(s.Mounts, s.System), dir); !ok || m.Access != agent.ReadWrite {
				break
			}
			way[dir] = true
		}
	}
	w.rule("deny", "file-write-unlink", matches("literal", slices.Sorted(maps.Keys(way)))...)
	w.rule("deny", "file-write* network-bind", matches("subpath", s.ReadOnly)...)
	w.rule("deny", "file-read* file-write* file-map-executable process-exec* network-bind network-outbound", matches("subpath", s.Denied)...)
}

// match is what a rule matches: its kind, and the text it compares with.
type match struct{ kind, text string }

func matches(kind string, texts []string) []match {
	var out []match
	for _, t := range texts {
		out = append(out, match{kind, t})
	}
	return out
}

// profileText writes a profile and remembers the first text that has no place in one.
type profileText struct {
	b   strings.Builder
	err error
}

func (w *profileText) say(lines ...string) {
	for _, l := range lines {
		w.b.WriteString(l + "\n")
	}
}

// rule writes one rule; without a match it would match everything, and is left out.
func (w *profileText) rule(verdict, operations string, filters ...match) {
	if len(filters) == 0 {
		return
	}
	w.b.WriteString("(" + verdict + " " + operations)
	for _, f := range filters {
		quoted, err := quote(f.text)
		if err != nil && w.err == nil {
			w.err = err
		}
		w.b.WriteString("\n  (" + f.kind + " " + quoted + ")")
	}
	w.b.WriteString(")\n")
}

// quote writes text as a string literal of the profile's language. What the language
// has no one way to write, or the kernel names otherwise, is refused.
func quote(text string) (string, error) {
	if !utf8.ValidString(text) {
		return "", unsupported("the path %q is no valid UTF-8, which a profile of macOS cannot name", text)
	}
	for _, c := range text {
		if c < ' ' || c == 0x7f {
			return "", unsupported("the path %q holds a control character, which a profile of macOS cannot name", text)
		}
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`, nil
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", agent.ErrUnsupported, fmt.Sprintf(format, args...))
}
