package sbx

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"

	"turnpike/internal/agent"
)

// everything is the pattern of every host.
const everything = "**"

// loopback are the names of the host's own ports.
const loopback = "localhost,127.0.0.0/8,::1," + HostName

// network says what a turn may reach, in sbx's words.
type network struct {
	nothing bool
	open    bool
	hosts   []string // with ports
}

// networkOf refuses what sbx has no rules for.
func networkOf(b agent.Box) (network, error) {
	var ports []string
	for _, s := range b.HostServers {
		if s.Port < 1 || s.Port > 65535 {
			return network{}, unsupported("host server %s on port %d", s.Name, s.Port)
		}
		ports = append(ports, net.JoinHostPort("localhost", strconv.Itoa(s.Port)))
	}
	for _, s := range b.Servers {
		if !s.Addr().IsLoopback() {
			return network{}, unsupported("a sandbox reaches servers of the host on its loopback only, not at %s", s)
		}
		ports = append(ports, net.JoinHostPort("localhost", strconv.Itoa(int(s.Port()))))
	}
	n := b.Network
	switch {
	case len(n.Hosts) > 0:
		return network{}, unsupported("sbx cannot lead names to other addresses: let the pool name no hosts")
	case n.Open && len(ports) > 0:
		return network{}, unsupported("sbx cannot keep the host's other ports from a turn with the open network: name its domains")
	case n.Open:
		return network{open: true}, nil
	case n.Proxied && n.Domains == nil:
		return network{}, unsupported("sbx has no rule for every public host: name the domains, or let the pool have the open network")
	case (!n.Proxied || len(n.Domains) == 0) && len(ports) == 0:
		return network{nothing: true}, nil
	}
	out := network{hosts: ports}
	if !n.Proxied {
		return out, nil
	}
	for _, d := range n.Domains {
		if strings.ContainsAny(d, ", ") || strings.HasPrefix(d, "-") || d == "" {
			return network{}, unsupported("domain %q", d)
		}
		if rest, wild := strings.CutPrefix(d, "*."); wild {
			d = "**." + rest // at any depth, as elsewhere
		}
		out.hosts = append(out.hosts, d+":443", d+":80")
	}
	return out, nil
}

// apply makes the rules of one sandbox, and looks whether they hold.
func (s *start) applyNetwork(ctx context.Context) error {
	n, name := s.network, s.identity.ID
	stranger := strings.ToLower(rand.Text()[:12]) + ".example.com"
	switch {
	case n.nothing: // denied as it was made
	case n.open:
		if _, err := s.client.run(ctx, askTime, "policy", "deny", "network", "--sandbox", name, loopback); err != nil {
			return err
		}
		if _, err := s.client.run(ctx, askTime, "policy", "allow", "network", "--sandbox", name, everything); err != nil {
			return err
		}
		return s.expect(ctx, false, "localhost:1")
	default:
		if err := s.aloneInPolicy(ctx); err != nil {
			return err
		}
		if _, err := s.client.run(ctx, askTime, "policy", "allow", "network", "--sandbox", name, strings.Join(n.hosts, ",")); err != nil {
			return err
		}
		for _, h := range n.hosts {
			if strings.HasPrefix(h, "**.") {
				h = strings.ToLower(rand.Text()[:8]) + strings.TrimPrefix(h, "**")
			}
			if err := s.expect(ctx, true, h); err != nil {
				return err
			}
		}
		if err := s.expect(ctx, false, "localhost:1"); err != nil {
			return err
		}
	}
	return s.expect(ctx, false, stranger)
}

// expect compares sbx's own answer about a host with what the rules mean.
func (s *start) expect(ctx context.Context, allowed bool, host string) error {
	said, err := s.client.run(ctx, askTime, "policy", "check", "network", "--sandbox", s.identity.ID, host)
	verdict, _, _ := strings.Cut(said, ":")
	want := map[bool]string{true: "Allowed", false: "Denied"}[allowed]
	// Whether a denial is a failure of the command, its documentation does not say.
	if verdict == want {
		return nil
	}
	if err != nil && verdict != "Denied" {
		return err
	}
	return unsupported("the policies of this machine decide otherwise than the turn's network: %s is %q, not %s (sbx policy ls)", host, oneLine(said), want)
}

// entries counts the allowances in a summary of policy ls.
var entries = regexp.MustCompile(`\bnetwork: (?:\d+ deny, )?(\d+) allow\b`)

// aloneInPolicy refuses a machine whose policies already allow the sandbox something,
// which rules for it could not take back host by host.
func (s *start) aloneInPolicy(ctx context.Context) error {
	text, err := s.client.run(ctx, askTime, "policy", "ls", s.identity.ID, "--type", "network")
	if err != nil {
		return err
	}
	lines := strings.Split(text, "\n")
	head := -1
	for i, l := range lines {
		if f := strings.Fields(l); len(f) >= 3 && f[0] == "POLICY" && f[1] == "SOURCE" && f[len(f)-1] == "SUMMARY" {
			head = i
		}
	}
	if head < 0 {
		return unsupported("the list of sbx's policies cannot be read: %q", oneLine(text))
	}
	source := strings.Index(lines[head], "SOURCE")
	for _, l := range lines[head+1:] {
		m := entries.FindStringSubmatch(l)
		if len(m) < 2 || m[1] == "0" {
			continue
		}
		if len(l) <= source {
			return unsupported("a line of sbx's policies cannot be read: %q", l)
		}
		switch from, _, _ := strings.Cut(l[source:], " "); {
		case from == "kit" && s.engine.KitNetwork:
		case from == "kit":
			return unsupported("sbx's kit for %s allows hosts of its own; the worker's owner may accept them (--sbx-kit-network)", s.box.Agent)
		default:
			return unsupported("the machine's own policy allows hosts to every sandbox (%s), so none can be limited: sbx policy reset, then sbx policy init deny-all", oneLine(l))
		}
	}
	return nil
}

// sshAgent refuses a machine that forwards the host's ssh agent into sandboxes.
func (c client) sshAgent(ctx context.Context) error {
	said, err := c.run(ctx, askTime, "settings", "get", "ssh.agentForwardingEnabled")
	if err != nil {
		return err
	}
	if f := strings.Fields(said); len(f) == 0 || f[len(f)-1] != "false" {
		return fmt.Errorf("%w: sbx forwards the host's ssh agent into sandboxes: sbx settings set ssh.agentForwardingEnabled false", agent.ErrUnsupported)
	}
	return nil
}
