package opencode_test

import (
	"testing"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/opencode"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	const api = "APIError"
	after := func(value string) map[string]string { return map[string]string{"Retry-After": value} }
	for name, c := range map[string]struct {
		name, message, body string
		status              float64
		headers             map[string]string
		want                agent.Failure
		resets              time.Time
	}{
		"401":                     {name: api, status: 401, message: "invalid x-api-key", want: agent.FailureCredential},
		"402":                     {name: api, status: 402, want: agent.FailureCredential},
		"403":                     {name: api, status: 403, want: agent.FailureCredential},
		"no credential":           {name: "ProviderAuthError", message: "no key", want: agent.FailureCredential},
		"no quota":                {name: api, status: 429, body: `{"error":{"code":"insufficient_quota"}}`, want: agent.FailureCredential},
		"429":                     {name: api, status: 429, want: agent.FailureOverloaded},
		"429 for a moment":        {name: api, status: 429, headers: after("2"), want: agent.FailureOverloaded},
		"429 for an hour":         {name: api, status: 429, headers: after("3600"), want: agent.FailureLimited, resets: now.Add(time.Hour)},
		"429 until a time":        {name: api, status: 429, headers: after("Mon, 30 Nov 2026 14:00:00 GMT"), want: agent.FailureLimited, resets: now.Add(2 * time.Hour)},
		"a subscription's window": {name: api, status: 429, headers: map[string]string{"anthropic-ratelimit-unified-reset": "1796047200"}, want: agent.FailureLimited, resets: time.Unix(1796047200, 0).UTC()},
		"a plan that is used up":  {name: api, status: 429, message: "The usage limit has been reached", want: agent.FailureLimited},
		"500":                     {name: api, status: 500, want: agent.FailureOverloaded},
		"529":                     {name: api, status: 529, want: agent.FailureOverloaded},
		"no answer":               {name: api, message: "Cannot connect to API", want: agent.FailureOverloaded},
		"prompt too long":         {name: "ContextOverflowError", status: 400, message: "prompt is too long"},
		"an answer cut short":     {name: "MessageOutputLengthError"},
		"no such model":           {name: api, status: 404, message: "model: no-such-model"},
		"stopped":                 {name: "MessageAbortedError"},
		"its own fault":           {name: "UnknownError", message: "Unexpected server error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, limit := opencode.Classify(c.name, c.status, c.message, c.body, c.headers, now)
			if got != c.want || (limit != nil) != !c.resets.IsZero() || limit != nil && !limit.ResetsAt.Equal(c.resets) {
				t.Errorf("%+v is %q, %+v; want %q until %s", c, got, limit, c.want, c.resets)
			}
		})
	}
}
