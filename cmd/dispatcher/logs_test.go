package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/api"
	"turnpike/internal/job"
)

func TestPrinter(t *testing.T) {
	events := []api.Event{
		{Attempt: 1, Line: `{"type":"assistant","message":{"content":[{"type":"text","text":"Hello."}]}}`},
		{Attempt: 1, Dropped: 3},
		{Attempt: 1, End: "attempt"},
		{Attempt: 2, Line: "\x1b[31mno event"},
		{End: "job"},
	}
	usd := job.USD(1_250_000)
	view := job.View{Attempts: []job.AttemptView{
		{Attempt: 1, Ending: job.EndLost, NumTurns: 1, DurationMS: 1234},
		{Attempt: 2, Ending: job.EndDone, NumTurns: 2, CostUSD: &usd, Usage: []job.ModelUsage{{EstimatedUSD: &usd}}},
	}}
	show := func(t *testing.T, p *printer) string {
		t.Helper()
		var out strings.Builder
		p.w = &out
		for _, e := range events {
			if err := p.event(e); err != nil {
				t.Fatal(err)
			}
		}
		if !p.raw {
			if err := p.summary(view); err != nil {
				t.Fatal(err)
			}
		}
		return out.String()
	}

	for name, c := range map[string]struct {
		printer printer
		want    string
	}{
		"sums up, attempt by attempt": {printer{}, `Hello.
... 3 lines were not streamed; the worker's session directory has them
--- attempt 2
[31mno event
=== attempt 1 lost: 1 turns, cost unknown, 1.2s
=== attempt 2 done: 2 turns, cost ` + costs(&usd) + `, 0s
`},
		"tells of one attempt":                {printer{attempt: 1}, "=== attempt 1 lost: 1 turns, cost unknown, 1.2s\n"},
		"prints the agent's own lines":        {printer{raw: true}, events[0].Line + "\n\x1b[31mno event\n"},
		"keeps them from steering a terminal": {printer{raw: true, safe: true}, events[0].Line + "\n [31mno event\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got := show(t, &c.printer)
			if c.printer.attempt != 0 {
				_, after, _ := strings.Cut(got, "===")
				got = "===" + after
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}

	t.Run("says that it was cut off", func(t *testing.T) {
		if err := (&printer{w: &strings.Builder{}}).event(api.Event{End: "error"}); !errors.Is(err, job.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	})
}

func costs(u *job.USD) string { return usd(u) + ", " + estimate(u) + " by the price list" }
