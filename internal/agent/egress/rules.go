package egress

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// maxHosts bounds Rules.Hosts: each may take a door.
const maxHosts = 64

// Rules say which hosts a turn may reach. The zero Rules allow none.
type Rules struct {
	// Any allows every public host.
	Any bool
	// Domains are the hosts allowed where not Any: a name, or "*." and one, which
	// stands for everything below that name and not for the name itself.
	Domains []string
	// Hosts lead "name:port" to the address that is dialled for it, "host:port". The
	// address need not be public. A name must be allowed by the above, too; Any
	// allows all that are here. In place of a name there may be an address of
	// 127.0.0.0/8: what the turn then finds at that address and port of its own
	// loopback is the worker's.
	Hosts map[string]string
}

// Limited are the rules of a network limited to domains, nil being any public host,
// with the owner's hosts.
func Limited(domains []string, hosts map[string]string) Rules {
	return Rules{Any: domains == nil, Domains: domains, Hosts: hosts}
}

// Check says what is wrong with the rules.
func (r Rules) Check() error {
	for _, d := range r.Domains {
		if _, ok := loopback(d); ok {
			continue // it allows the address in Hosts
		}
		if name, ok := canonical(strings.TrimPrefix(d, "*.")); !ok || name != strings.TrimPrefix(d, "*.") {
			return fmt.Errorf("domain %q: want a lower-case host name, or \"*.\" and one", d)
		}
	}
	if len(r.Hosts) > maxHosts {
		return fmt.Errorf("%d hosts of the owner's choice, at most %d", len(r.Hosts), maxHosts)
	}
	for _, from := range slices.Sorted(maps.Keys(r.Hosts)) {
		name, port, err := splitHostPort(from)
		if err != nil {
			return fmt.Errorf("host %q: %w", from, err)
		}
		if at, ok := loopback(name); ok {
			if synthetic.Contains(at) || netip.AddrPortFrom(at, port) == nameDoor {
				return fmt.Errorf("host %q: that address is taken", from)
			}
		} else if same, ok := canonical(name); !ok || same != name {
			return fmt.Errorf("host %q: want a lower-case host name or an address of 127.0.0.0/8", from)
		}
		if _, _, err := splitHostPort(r.Hosts[from]); err != nil {
			return fmt.Errorf("host %q leads to %q: %w", from, r.Hosts[from], err)
		}
	}
	return nil
}

// allows says whether the turn may reach the host of this name, in canonical form or
// an address of loopback's.
func (r Rules) allows(name string) bool {
	if r.Any {
		// A name of one label is never public: it is of somebody's own network.
		return strings.Contains(name, ".") && !isLoopback(name) || r.hosts(name)
	}
	return slices.ContainsFunc(r.Domains, func(d string) bool {
		if suffix, ok := strings.CutPrefix(d, "*"); ok {
			return len(name) > len(suffix) && strings.HasSuffix(name, suffix)
		}
		return d == name
	})
}

// hosts says whether any of Hosts has this name.
func (r Rules) hosts(name string) bool {
	for from := range r.Hosts {
		if host, _, err := splitHostPort(from); err == nil && host == name {
			return true
		}
	}
	return false
}

// to is where the owner leads name and port, if anywhere.
func (r Rules) to(name string, port uint16) (string, bool) {
	to, ok := r.Hosts[net.JoinHostPort(name, strconv.Itoa(int(port)))]
	return to, ok
}

// canonical gives a host name in lower case and without the dot at its end, and says
// whether it is one. What a resolver might take for an address is none.
func canonical(name string) (string, bool) {
	name = strings.TrimSuffix(name, ".")
	if name == "" || len(name) > 253 {
		return "", false
	}
	lower := []byte(name)
	start := 0
	for i := 0; i <= len(lower); i++ {
		if i == len(lower) || lower[i] == '.' {
			if !goodLabel(lower[start:i]) {
				return "", false
			}
			start = i + 1
			continue
		}
		if c := lower[i]; 'A' <= c && c <= 'Z' {
			lower[i] = c + ('a' - 'A')
		}
	}
	last := lower[strings.LastIndexByte(name, '.')+1:]
	if numeric(string(last)) {
		return "", false
	}
	return string(lower), true
}

func goodLabel(label []byte) bool {
	if len(label) == 0 || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
		return false
	}
	return !slices.ContainsFunc(label, func(c byte) bool {
		return (c < 'a' || 'z' < c) && (c < '0' || '9' < c) && c != '-'
	})
}

// numeric says whether a name that ends in this label is an address to some resolver:
// decimal, octal and hexadecimal numbers all are, in one to four parts.
func numeric(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// loopback gives the address of 127.0.0.0/8 that s spells in the one usual way.
func loopback(s string) (netip.Addr, bool) {
	at, err := netip.ParseAddr(s)
	return at, err == nil && at.Is4() && at.IsLoopback()
}

func isLoopback(s string) bool { _, ok := loopback(s); return ok }

func splitHostPort(s string) (string, uint16, error) {
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, fmt.Errorf("want host:port: %w", err)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 || host == "" || strconv.FormatUint(port, 10) != text {
		return "", 0, fmt.Errorf("want host:port with a number from 1 to 65535")
	}
	return host, uint16(port), nil
}
