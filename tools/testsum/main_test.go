package main

import (
	"strings"
	"testing"
)

const (
	passA = `{"Action":"pass","Package":"a","Test":"T"}
{"Action":"pass","Package":"a","Elapsed":1}
`
	failB = `{"Action":"output","Package":"b","Test":"T","Output":"what went wrong\n"}
{"Action":"fail","Package":"b","Test":"T"}
{"Action":"fail","Package":"b"}
`
	skipC = `{"Action":"skip","Package":"c","Test":"T"}
{"Action":"pass","Package":"c"}
`
	panicD = `{"Action":"run","Package":"d","Test":"T"}
{"Action":"output","Package":"d","Test":"T","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"d"}
`
	brokenE = `{"ImportPath":"e","Action":"build-output","Output":"e.go:1: syntax error\n"}
{"ImportPath":"e","Action":"build-fail"}
{"Action":"fail","Package":"e","FailedBuild":"e"}
`
)

func TestVerdict(t *testing.T) {
	for name, c := range map[string]struct {
		events  string
		must    []string
		noSkips bool
		err     string // part of the error; empty: none
		shows   string
	}{
		"all passed":                {events: passA, must: []string{"a"}, shows: "1 tests passed in 1 packages"},
		"a failure, with its story": {events: passA + failB, err: "failed", shows: "what went wrong"},
		"a panic, with its story":   {events: panicD, err: "failed", shows: "panic: test timed out"},
		"a package does not build":  {events: passA + brokenE, err: "does not build", shows: "syntax error"},
		"a suite that was not there": {
			events: passA, must: []string{"a", "e2e"}, err: "did not run: e2e",
		},
		"a test that was there":     {events: passA, must: []string{"a:T"}},
		"a test that was not there": {events: passA, must: []string{"a:T", "a:T/codex"}, err: "did not run: a:T/codex"},
		"a suite of skips alone":    {events: passA + skipC, must: []string{"a", "c"}, err: "did not run: c"},
		"a skip where none may be":  {events: passA + skipC, noSkips: true, err: "skipped", shows: "skipped  c T"},
		"a skip where it may be":    {events: passA + skipC, must: []string{"a"}},
		"nothing at all":            {err: "no test ran"},
		"a word of go's in between": {events: "go: downloading x\n" + passA, shows: "go: downloading x"},
	} {
		t.Run(name, func(t *testing.T) {
			var shown strings.Builder
			r := newRun(&shown)
			if err := r.read(strings.NewReader(c.events)); err != nil {
				t.Fatal(err)
			}
			err := r.verdict(c.must, c.noSkips)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("verdict: %v, want %q", err, c.err)
			}
			if !strings.Contains(shown.String(), c.shows) {
				t.Errorf("shows %q, want %q in it", shown.String(), c.shows)
			}
		})
	}
}
