package job

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
)

// ID identifies a job: a UUIDv7 minted by the database, in canonical lower case.
type ID string

var uuidForm = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// ParseID reads a job id as people write it. Its error wraps ErrInvalid.
func ParseID(s string) (ID, error) {
	l := strings.ToLower(strings.TrimSpace(s))
	if !uuidForm.MatchString(l) {
		return "", &FieldError{Field: "id", Problem: fmt.Sprintf("%q is not a job id; a job id looks like 0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11", clip(s))}
	}
	return ID(l), nil
}

// Token proves who holds a lease. It is a random UUID the worker brings.
type Token string

// NewToken returns a fresh random token.
func NewToken() Token {
	var b [16]byte
	rand.Read(b[:]) // never fails: see crypto/rand
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b[:])
	return Token(h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:])
}

// String hides the token: it is a secret of its holder.
func (Token) String() string { return "[token]" }

// GoString hides the token from %#v.
func (Token) GoString() string { return "[token]" }

var (
	poolForm = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)
	// nameForm fits what becomes part of a subject, a path or a log line.
	nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}$`)
)

// DefaultPool is the pool of a request that names none.
const DefaultPool = "default"

// DefaultTenant is the tenant of a request that names none.
const DefaultTenant = "default"

// Lane is one (placement, pool): one stream consumer, served by the workers
// whose machine can enforce the placement.
type Lane struct {
	Placement string // agent.Placement's token
	Pool      string
}

// String is the lane as one word, "none-confined/default".
func (l Lane) String() string { return l.Placement + "/" + l.Pool }

// MarshalText writes String's form, for logs and settings.
func (l Lane) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// ParseLane reads what String writes.
func ParseLane(s string) (Lane, error) {
	placement, pool, ok := strings.Cut(s, "/")
	if !ok || !validPlacement(placement) || !poolForm.MatchString(pool) {
		return Lane{}, &FieldError{Field: "lane", Problem: fmt.Sprintf("%q: want PLACEMENT/POOL with a placement of %s", clip(s), strings.Join(placements, ", "))}
	}
	return Lane{placement, pool}, nil
}

// placements are agent.Placements' tokens. The two contracts import nothing of
// each other; a test in package worker holds the lists equal.
var placements = []string{"none", "none-confined", "claude", "claude-confined", "container", "sbx"}

// Placements lists the placements a lane may have.
func Placements() []string { return append([]string(nil), placements...) }

func validPlacement(p string) bool {
	for _, q := range placements {
		if p == q {
			return true
		}
	}
	return false
}

func clip(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:77], "") + "..."
	}
	return s
}
