// Package stream reads what agent CLIs print: lines of JSON that nobody may trust to
// be whole, well-formed, of the expected types or within reason. What the events mean
// is left to the drivers.
package stream

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"turnpike/internal/agent"
)

// Object reads the object that a line holds into the struct at into: of a line that
// was cut, the members its head holds in full. A member of another type than expected
// is left out. It says no when the line holds no object.
func Object(line agent.Line, into any) bool {
	data := bytes.TrimSpace(line.Text)
	if line.Cut {
		data = whole(data)
	}
	if !bytes.HasPrefix(data, []byte("{")) {
		return false
	}
	return Forgive(json.Unmarshal(data, into)) == nil
}

// Forgive leaves a value of another type than expected out: everything else of its text has
// been read.
func Forgive(err error) error {
	if mismatch := (*json.UnmarshalTypeError)(nil); errors.As(err, &mismatch) {
		return nil
	}
	return err
}

// Blank says that a line holds nothing.
func Blank(line agent.Line) bool { return len(bytes.TrimSpace(line.Text)) == 0 }

// whole makes an object of those members that head holds in full.
func whole(head []byte) []byte {
	d := json.NewDecoder(bytes.NewReader(head))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil
	}
	var members [][]byte
	for d.More() {
		name, err := d.Token()
		if err != nil {
			break
		}
		key, isName := name.(string)
		var value json.RawMessage
		// A member that nothing follows may itself be cut: 12 out of 123.
		if !isName || d.Decode(&value) != nil || !d.More() {
			break
		}
		quoted, err := json.Marshal(key)
		if err != nil {
			break
		}
		members = append(members, slices.Concat(quoted, []byte(":"), value))
	}
	return slices.Concat([]byte("{"), bytes.Join(members, []byte(",")), []byte("}"))
}

// Clip bounds what is kept of a name a CLI told.
func Clip(s string) string {
	const most = 128
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}

// Count is a number of things that was told: whole, and never below nothing. Its
// bound leaves room to add many of them up.
func Count(f float64) int64 { return int64(min(max(f, 0), 1<<50)) }

// Money is an amount in dollars that was told, and whether it can be one.
func Money(f float64) (float64, bool) {
	if f < 0 || f > 1e9 || math.IsNaN(f) {
		return 0, false
	}
	return f, true
}

// Ledger adds usage up by model. The zero Ledger is empty.
type Ledger struct{ models map[string]agent.Usage }

// Add adds what one answer of a model consumed. A model of which one answer has no
// price has none.
func (l *Ledger) Add(model string, u agent.Usage) {
	if l.models == nil {
		l.models = map[string]agent.Usage{}
	}
	model = Clip(model)
	sum, there := l.models[model]
	switch {
	case !there:
		sum.CostUSD = u.CostUSD
	case sum.CostUSD != nil && u.CostUSD != nil:
		cost := *sum.CostUSD + *u.CostUSD
		sum.CostUSD = &cost
	default:
		sum.CostUSD = nil
	}
	sum.InputTokens += u.InputTokens
	sum.OutputTokens += u.OutputTokens
	sum.CacheReadTokens += u.CacheReadTokens
	sum.CacheWriteTokens += u.CacheWriteTokens
	sum.ReasoningTokens += u.ReasoningTokens
	l.models[model] = sum
}

// Models is the usage by model; nil when there was none.
func (l *Ledger) Models() map[string]agent.Usage { return maps.Clone(l.models) }

// Cost is what everything cost, which is known when every model has its price and
// there was any.
func (l *Ledger) Cost() (usd float64, known bool) {
	for _, model := range slices.Sorted(maps.Keys(l.models)) { // sums of floats depend on their order
		cost := l.models[model].CostUSD
		if cost == nil {
			return 0, false
		}
		usd += *cost
	}
	return usd, len(l.models) > 0
}

// Bounds on what a stream may make the worker keep.
const (
	maxNotes = 64
	maxNote  = 512 // bytes
)

// Notes are lines for a person, each once, and not too many or too long.
type Notes struct{ lines []string }

// Add keeps one line.
func (n *Notes) Add(format string, args ...any) {
	line := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	if len(line) > maxNote {
		line = strings.ToValidUTF8(line[:maxNote], "") + " ..."
	}
	if len(n.lines) < maxNotes && !slices.Contains(n.lines, line) {
		n.lines = append(n.lines, line)
	}
}

// Lines are the notes in the order they were added.
func (n *Notes) Lines() []string { return slices.Clone(n.lines) }
