package job

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Decode reads one request strictly, fills in what it leaves to defaults and
// validates it. Unknown and duplicate members, bad UTF-8, NUL, depth over
// MaxDepth and anything over MaxRequestBytes are refused by the name of the
// field. Its error is a *FieldError or an Invalid, and wraps ErrInvalid.
func Decode(b []byte) (Request, error) {
	if !plain(b) {
		if err := scan(b); err != nil {
			return Request{}, err
		}
	}
	var r Request
	if err := json.Unmarshal(b, &r, json.RejectUnknownMembers(true)); err != nil {
		if better := scan(b); better != nil {
			return Request{}, better
		}
		return Request{}, fieldError(err)
	}
	r.fill()
	if err := r.validate(); err != nil {
		return Request{}, err
	}
	return r, nil
}

// plain says, from a look that costs next to nothing, that unmarshalling lets nothing
// pass in b which scan refuses. Most requests are.
func plain(b []byte) bool {
	return len(b) <= MaxRequestBytes && bytes.HasPrefix(b, []byte("{")) &&
		bytes.Count(b, []byte("{"))+bytes.Count(b, []byte("[")) <= MaxDepth && !bytes.Contains(b, []byte(`\u0000`))
}

// scan walks the text once for what unmarshalling would let pass or report
// without saying where.
func scan(b []byte) error {
	if len(b) > MaxRequestBytes {
		return &FieldError{Problem: fmt.Sprintf("the request is %d bytes; at most %d are taken: put large material into the workspace", len(b), MaxRequestBytes)}
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return &FieldError{Problem: "the request is empty; want a JSON object"}
	}
	dec := jsontext.NewDecoder(bytes.NewReader(b))
	for first := true; ; first = false {
		tok, err := dec.ReadToken()
		if errors.Is(err, io.EOF) && !first {
			return nil
		}
		if err != nil {
			return fieldError(err)
		}
		if first && tok.Kind() != '{' {
			return &FieldError{Problem: "want a JSON object, not " + kindName(tok.Kind())}
		}
		if !first && dec.StackDepth() == 0 && tok.Kind() != '}' {
			return &FieldError{Problem: "there is more after the request's closing brace"}
		}
		if dec.StackDepth() > MaxDepth {
			return &FieldError{Field: fieldPath(dec.StackPointer()), Problem: fmt.Sprintf("nested deeper than %d levels", MaxDepth)}
		}
		if tok.Kind() == '"' && strings.ContainsRune(tok.String(), 0) {
			return &FieldError{Field: fieldPath(dec.StackPointer()), Problem: "contains a NUL character, which no program can be given"}
		}
	}
}

// fieldError says in a producer's terms what the decoder found wrong, and where.
func fieldError(err error) *FieldError {
	if sem, ok := errors.AsType[*json.SemanticError](err); ok {
		fe := &FieldError{Field: fieldPath(sem.JSONPointer)}
		switch {
		case errors.Is(sem.Err, json.ErrUnknownName):
			fe.Problem = "unknown field; see the request reference for the names there are"
		case sem.GoType == reflect.TypeFor[Profile]() && sem.JSONKind == '"':
			fe.Problem = "want an object, not a string: a profile is written out in the request, it has no name to be called by"
		case sem.GoType == reflect.TypeFor[Duration](), sem.GoType == reflect.TypeFor[USD](), sem.GoType == reflect.TypeFor[time.Time]():
			fe.Problem = typeName(sem.GoType)
			if sem.JSONKind == '"' && sem.Err != nil && sem.GoType != reflect.TypeFor[time.Time]() {
				fe.Problem = sem.Err.Error()
			}
		default:
			fe.Problem = fmt.Sprintf("want %s, not %s", typeName(sem.GoType), kindName(sem.JSONKind))
		}
		return fe
	}
	if syn, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		fe := &FieldError{Field: fieldPath(syn.JSONPointer)}
		switch {
		case errors.Is(syn.Err, jsontext.ErrDuplicateName):
			fe.Problem = "the field is there twice"
		case errors.Is(syn.Err, io.ErrUnexpectedEOF), errors.Is(err, io.ErrUnexpectedEOF):
			fe.Problem = "the JSON ends too early"
		default:
			fe.Problem = fmt.Sprintf("not JSON at byte %d: %v", syn.ByteOffset, syn.Err)
		}
		return fe
	}
	return &FieldError{Problem: "not JSON: " + err.Error()}
}

// fieldPath writes a JSON pointer the way people write fields: a.b[2].c.
func fieldPath(p jsontext.Pointer) string {
	var s strings.Builder
	for t := range p.Tokens() {
		t = clip(t)
		switch _, err := strconv.ParseUint(t, 10, 32); {
		case err == nil:
			s.WriteString("[" + t + "]")
		case s.Len() > 0:
			s.WriteString("." + t)
		default:
			s.WriteString(t)
		}
		if s.Len() > 200 {
			s.WriteString("...")
			break
		}
	}
	return s.String()
}

func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "true or false"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{', '}':
		return "an object"
	case '[', ']':
		return "a list"
	}
	return "something else"
}

func typeName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[Duration]():
		return `want a duration as a string, such as "15m" or "1h30m"`
	case reflect.TypeFor[USD]():
		return `want US dollars as a decimal string, such as "2.50"`
	case reflect.TypeFor[time.Time]():
		return `want a time in RFC 3339, such as "2030-01-31T09:00:00Z"`
	case nil:
		return "another value"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Slice:
		return "a list"
	case reflect.Pointer:
		return typeName(t.Elem())
	default:
		return "an object"
	}
}

// MarshalText writes d in Go's form.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads Go's form, "1h30m".
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("%q is not a duration; want such as \"15m\" or \"1h30m\"", clip(string(b)))
	}
	*d = Duration(v)
	return nil
}

// fill sets what a request leaves out.
func (r *Request) fill() {
	set := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	set(&r.Pool, DefaultPool)
	set(&r.Tenant, DefaultTenant)
	if r.Retry.Policy == "" {
		r.Retry.Policy = RetryIfNotStarted
		if r.Restricted {
			r.Retry.Policy = RetryAlways // what only reads may be begun anew whatever it did
		}
	}
	if r.Retry.MaxTries == 0 {
		r.Retry.MaxTries = 3
	}
	if r.Retry.Backoff == 0 {
		r.Retry.Backoff = Duration(30 * time.Second)
	}
	if r.After != nil && r.After.OnFailure == "" {
		r.After.OnFailure = AfterFail
	}
	for p := &r.Profile; p != nil; p = p.Fallback {
		set(&p.Agent, "claude")
		set(&p.Sandbox, "none")
		if p.Timeout == 0 && !r.Restricted { // a read-only turn has its own
			p.Timeout = Duration(DefaultTimeout)
		}
	}
}

// Lane is the lane r waits on.
func (r *Request) Lane() Lane { return Lane{Placement: r.Profile.Placement(), Pool: r.Pool} }
