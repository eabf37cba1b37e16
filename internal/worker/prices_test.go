package worker_test

import (
	"strings"
	"testing"

	"turnpike/internal/worker"
)

func TestPricesAreReadStrictly(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"a list":                    {"models:\n  gpt-5*: {input: 1.25, output: 10, cache_read: 0.125}\n", ""},
		"nothing":                   {"", ""},
		"an unknown key":            {"models:\n  m: {input: 1, output: 2, cached: 3}\n", "unknown key cached"},
		"a model given twice":       {"models:\n  m: {input: 1, output: 2}\n  m: {input: 1, output: 2}\n", "already defined"},
		"a star inside":             {"models:\n  g*t: {input: 1, output: 2}\n", "with a trailing *"},
		"a price below nothing":     {"models:\n  m: {input: -1, output: 2}\n", "from 0 to"},
		"no number":                 {"models:\n  m: {input: .nan, output: 2}\n", "from 0 to"},
		"a price for a token":       {"models:\n  m: {input: 1250000, output: 2}\n", "from 0 to"},
		"a price without an output": {"models:\n  m: {input: 1}\n", "are required"},
		"two documents":             {"models: {}\n---\nmodels: {}\n", "one YAML document"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := worker.ParsePrices([]byte(tc.text))
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
}
