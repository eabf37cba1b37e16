package api

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"turnpike/internal/job"
)

// Role is what a token allows.
type Role string

// The roles.
const (
	Producer Role = "producer" // enqueues; sees, cancels and retries its own jobs
	Operator Role = "operator" // everything
	Reporter Role = "reporter" // reads everything
)

// Token lets its bearer in. Only its hash is known here.
type Token struct {
	Name   string // on record as producer, and as who cancelled
	Role   Role
	SHA256 string // of the token, in hex
	// Tenants are those a producer may enqueue for; none is job.DefaultTenant alone.
	Tenants []string
}

// HashToken is the form in which a token is configured. Tokens are long and random, so
// that a plain hash cannot be turned back.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// caller is who asks.
type caller struct {
	name    string
	role    Role
	tenants []string
}

// local is everyone, while no tokens are configured.
var local = caller{name: "local", role: Operator}

// producer is the caller as one who enqueues.
func (c caller) producer() job.Producer {
	switch {
	case c.role == Operator:
		return job.Producer{Name: c.name, Tenants: []string{job.AnyTenant}}
	case len(c.tenants) == 0:
		return job.Producer{Name: c.name, Tenants: []string{job.DefaultTenant}}
	}
	return job.Producer{Name: c.name, Tenants: c.tenants}
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// bearers are the callers by the hash of their token.
type bearers map[string]caller

func newBearers(tokens []Token) (bearers, error) {
	all := make(bearers, len(tokens))
	names := make(map[string]bool)
	for i, t := range tokens {
		hash := strings.ToLower(t.SHA256)
		raw, err := hex.DecodeString(hash)
		switch {
		case !nameForm.MatchString(t.Name):
			return nil, fmt.Errorf("token %d: %q is not a name: want letters, digits, dots, dashes and underscores", i, t.Name)
		case names[t.Name]:
			return nil, fmt.Errorf("token %q is configured twice", t.Name)
		case !slices.Contains([]Role{Producer, Operator, Reporter}, t.Role):
			return nil, fmt.Errorf("token %q: %q is not a role: want producer, operator or reporter", t.Name, t.Role)
		case err != nil || len(raw) != sha256.Size:
			return nil, fmt.Errorf("token %q: its hash is not a SHA-256 in hex", t.Name)
		case len(t.Tenants) > 0 && t.Role != Producer:
			return nil, fmt.Errorf("token %q: tenants bind a producer, not role %s", t.Name, t.Role)
		case slices.Contains(t.Tenants, ""):
			return nil, fmt.Errorf("token %q: a tenant without a name", t.Name)
		}
		if other, taken := all[hash]; taken {
			return nil, fmt.Errorf("tokens %q and %q are the same", other.name, t.Name)
		}
		names[t.Name] = true
		all[hash] = caller{t.Name, t.Role, t.Tenants}
	}
	return all, nil
}

var (
	errNoToken  = errors.New("a bearer token is required")
	errBadToken = errors.New("the bearer token is not known")
)

// who reads an Authorization header. Looking up the hash tells an onlooker nothing of
// the token.
func (b bearers) who(authorization string) (caller, error) {
	if len(b) == 0 {
		return local, nil
	}
	scheme, token, _ := strings.Cut(authorization, " ")
	if !strings.EqualFold(scheme, "bearer") || token == "" {
		return caller{}, errNoToken
	}
	c, known := b[HashToken(strings.TrimSpace(token))]
	if !known {
		return caller{}, errBadToken
	}
	return c, nil
}

// authorize asks for one of the roles.
func (b bearers) authorize(authorization string, roles ...Role) (caller, error) {
	c, err := b.who(authorization)
	if err != nil {
		return c, err
	}
	if !slices.Contains(roles, c.role) {
		return c, fmt.Errorf("%w: %s %s", job.ErrDenied, c.role, c.name)
	}
	return c, nil
}

// owns says whether the caller may deal with a job of a producer.
func (c caller) owns(producer string) bool { return c.role != Producer || c.name == producer }

// CheckListen refuses an address that others than this machine can reach while no
// tokens are configured.
func CheckListen(addr string, tokens []Token) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("listen address %q: %w", addr, err)
	}
	if len(tokens) > 0 || loopback(host) {
		return nil
	}
	return fmt.Errorf("listen address %q can be reached from elsewhere, and no tokens are configured: configure tokens or listen on 127.0.0.1", addr)
}

// loopback says whether a host is this machine by name or address.
func loopback(host string) bool {
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// addressed says whether the request was made to a loopback name.
func addressed(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	return loopback(host)
}
