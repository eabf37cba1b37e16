package stream_test

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/stream"
)

type record struct {
	Type string  `json:"type"`
	N    float64 `json:"n"`
	Sub  struct {
		Text string `json:"text"`
	} `json:"sub"`
}

func TestObject(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		cut  bool
		want record
		ok   bool
	}{
		"whole":                      {`{"type":"a","n":12}`, false, record{Type: "a", N: 12}, true},
		"with room around it":        {" {\"type\":\"a\"} \r", false, record{Type: "a"}, true},
		"with a member of odd type":  {`{"n":"x","type":"a","sub":7}`, false, record{Type: "a"}, true},
		"cut in a number":            {`{"type":"a","n":12`, true, record{Type: "a"}, true},
		"cut in a name":              {`{"type":"a","n":12,"su`, true, record{Type: "a", N: 12}, true},
		"cut in an object":           {`{"type":"a","sub":{"text":"b"`, true, record{Type: "a"}, true},
		"cut before anything":        {`{"ty`, true, record{}, true},
		"not cut, but not whole":     {`{"type":"a"`, false, record{}, false},
		"an array":                   {`[{"type":"a"}]`, false, record{}, false},
		"a word":                     {"Warning: x", false, record{}, false},
		"a cut word":                 {"Warning: x", true, record{}, false},
		"null, which is no object":   {"null", false, record{}, false},
		"nothing":                    {" ", false, record{}, false},
		"followed by something else": {`{"type":"a"} x`, false, record{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got record
			ok := stream.Object(agent.Line{Text: []byte(c.text), Cut: c.cut}, &got)
			if ok != c.ok || ok && got != c.want {
				t.Errorf("%q is %+v, %t; want %+v, %t", c.text, got, ok, c.want, c.ok)
			}
		})
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for in, want := range map[float64]int64{-1: 0, 0: 0, 12.9: 12, 1e300: 1 << 50, math.Inf(-1): 0} {
		if got := stream.Count(in); got != want {
			t.Errorf("%v counts %d, want %d", in, got, want)
		}
	}
	for in, want := range map[float64]bool{-0.01: false, 0: true, 12.5: true, 1e10: false, math.Inf(1): false} {
		if got, ok := stream.Money(in); ok != want || ok && got != in {
			t.Errorf("%v is %v dollars, %t", in, got, ok)
		}
	}
	if _, ok := stream.Money(math.NaN()); ok {
		t.Error("no number is an amount")
	}
	if got := stream.Clip(strings.Repeat("é", 100)); len(got) > 128 || !strings.HasPrefix(got, "éé") {
		t.Errorf("clipped to %q", got)
	}
}

func TestLedger(t *testing.T) {
	t.Parallel()
	price := func(usd float64) *float64 { return &usd }
	var l stream.Ledger
	if usd, known := l.Cost(); known || usd != 0 || l.Models() != nil {
		t.Errorf("nothing costs %v, %t", usd, known)
	}
	l.Add("a", agent.Usage{InputTokens: 1, CostUSD: price(0.5)})
	l.Add("a", agent.Usage{InputTokens: 2, OutputTokens: 3, CostUSD: price(0.25)})
	l.Add("b", agent.Usage{ReasoningTokens: 4, CacheReadTokens: 5, CacheWriteTokens: 6, CostUSD: price(0)})
	if usd, known := l.Cost(); !known || usd != 0.75 {
		t.Errorf("cost %v, %t", usd, known)
	}
	want := map[string]agent.Usage{
		"a": {InputTokens: 3, OutputTokens: 3, CostUSD: price(0.75)},
		"b": {ReasoningTokens: 4, CacheReadTokens: 5, CacheWriteTokens: 6, CostUSD: price(0)},
	}
	if diff := cmp.Diff(want, l.Models()); diff != "" {
		t.Errorf("models (-want +got):\n%s", diff)
	}
	l.Add("b", agent.Usage{InputTokens: 1})
	l.Add("b", agent.Usage{InputTokens: 1, CostUSD: price(1)})
	if usd, known := l.Cost(); known || usd != 0 || l.Models()["b"].CostUSD != nil {
		t.Errorf("cost %v, %t of an answer without a price", usd, known)
	}
}

func TestNotes(t *testing.T) {
	t.Parallel()
	var n stream.Notes
	n.Add("a\n b")
	n.Add("a %s", "b")
	for i := range 100 {
		n.Add("%d %s", i, strings.Repeat("é", 1000))
	}
	got := n.Lines()
	if got[0] != "a b" || len(got) != 64 || len(got[1]) > 600 || !strings.HasSuffix(got[1], " ...") {
		t.Errorf("%d notes, the first two %q", len(got), got[:2])
	}
}

// FuzzObject: a line's head gives what the whole line says, or nothing of it.
func FuzzObject(f *testing.F) {
	f.Add([]byte(`{"type":"a","n":123,"sub":{"text":"b"},"more":[1,2,{"x":"\u00e9"}]}`), 20)
	f.Fuzz(func(t *testing.T, text []byte, at int) {
		var whole, head map[string]any
		if !stream.Object(agent.Line{Text: text}, &whole) {
			return
		}
		text = bytes.TrimSpace(text)
		if members(text) != len(whole) {
			return // a name that stands twice has its last value, which the head may lack
		}
		if at < 0 || at >= len(text) || !stream.Object(agent.Line{Text: text[:at], Cut: true}, &head) {
			return
		}
		for name, value := range head {
			last, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			want, err := json.Marshal(whole[name])
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(last, want) {
				t.Errorf("%s: %s in the head, %s in the whole", name, last, want)
			}
		}
	})
}

// members counts the members of an object, however they are called.
func members(text []byte) int {
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil {
		return -1
	}
	n := 0
	for ; d.More(); n++ {
		if _, err := d.Token(); err != nil {
			return -1
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return -1
		}
	}
	return n
}
