package worker

import (
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/job"
)

func TestEstimates(t *testing.T) {
	prices, err := ParsePrices([]byte(`
models:
  gpt-5*: {input: 1, output: 10, cache_read: 0.1}
  gpt-5-pro*: {input: 20, output: 100}
  gpt-5-thinker: {input: 1, output: 2, reasoning: 4}
`))
	if err != nil {
		t.Fatal(err)
	}
	known := 0.25
	const million = 1_000_000
	for name, tc := range map[string]struct {
		prices *Prices
		model  string
		usage  agent.Usage
		want   string // empty is no estimate
	}{
		"all kinds of tokens":               {prices, "gpt-5-codex", agent.Usage{InputTokens: million, OutputTokens: million / 10, CacheReadTokens: 10 * million}, "3.00"},
		"a longer prefix goes before":       {prices, "gpt-5-pro-2026", agent.Usage{InputTokens: million}, "20.00"},
		"a name goes before a prefix":       {prices, "gpt-5-thinker", agent.Usage{OutputTokens: million}, "2.00"},
		"what was thought has its price":    {prices, "gpt-5-thinker", agent.Usage{OutputTokens: million, ReasoningTokens: million / 2}, "3.00"},
		"thought costs as output":           {prices, "gpt-5", agent.Usage{OutputTokens: million, ReasoningTokens: million / 2}, "10.00"},
		"more thought than output":          {prices, "gpt-5-thinker", agent.Usage{OutputTokens: million, ReasoningTokens: 2 * million}, "4.00"},
		"tokens without a price":            {prices, "gpt-5", agent.Usage{InputTokens: million, CacheWriteTokens: 1}, ""},
		"a model without a price":           {prices, "o9", agent.Usage{InputTokens: million}, ""},
		"a known cost is not estimated":     {prices, "gpt-5", agent.Usage{InputTokens: million, CostUSD: &known}, ""},
		"without a price list":              {nil, "gpt-5", agent.Usage{InputTokens: million}, ""},
		"nothing used costs nothing by it":  {prices, "gpt-5", agent.Usage{}, "0.00"},
		"numbers below nothing are ignored": {prices, "gpt-5", agent.Usage{InputTokens: -5, OutputTokens: million, ReasoningTokens: -1}, "10.00"},
	} {
		t.Run(name, func(t *testing.T) {
			var rep job.Report
			res := &agent.Result{Models: map[string]agent.Usage{tc.model: tc.usage}}
			fillResult(&rep, res, tc.prices)
			got := ""
			if u := rep.Usage[0].EstimatedUSD; u != nil {
				got = u.String()
			}
			if got != tc.want {
				t.Errorf("estimated %q, want %q", got, tc.want)
			}
			if (rep.Usage[0].CostUSD != nil) != (tc.usage.CostUSD != nil) || rep.CostUSD != nil {
				t.Errorf("the estimate went among the costs: %+v", rep)
			}
		})
	}
}
