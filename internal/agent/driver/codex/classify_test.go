package codex_test

import (
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/codex"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	const (
		http   = "httpConnectionFailed"
		tries  = "responseTooManyFailedAttempts"
		stream = "responseStreamDisconnected"
	)
	for name, c := range map[string]struct {
		f    codex.Failure
		want agent.Failure
	}{
		"401":                         {codex.Failure{Kind: http, Status: 401}, agent.FailureCredential},
		"402":                         {codex.Failure{Kind: http, Status: 402}, agent.FailureCredential},
		"403":                         {codex.Failure{Kind: http, Status: 403}, agent.FailureCredential},
		"unauthorized":                {codex.Failure{Kind: "unauthorized"}, agent.FailureCredential},
		"no credit":                   {codex.Failure{Kind: "usageLimitExceeded", Message: "Quota exceeded. Check your plan and billing details."}, agent.FailureCredential},
		"a plan's limit":              {codex.Failure{Kind: "usageLimitExceeded", Message: "You’ve hit your usage limit."}, agent.FailureLimited},
		"429 repeated in vain":        {codex.Failure{Kind: tries, Status: 429}, agent.FailureOverloaded},
		"429 with a limit used up":    {codex.Failure{Kind: tries, Status: 429, Blocked: true}, agent.FailureLimited},
		"429 with a long wait":        {codex.Failure{Kind: stream, Status: 429, Waited: true}, agent.FailureLimited},
		"rate limit in the stream":    {codex.Failure{Kind: "rateLimitExceeded"}, agent.FailureOverloaded},
		"rate limit, and used up":     {codex.Failure{Kind: "rateLimitExceeded", Blocked: true}, agent.FailureLimited},
		"500":                         {codex.Failure{Kind: "internalServerError"}, agent.FailureOverloaded},
		"503":                         {codex.Failure{Kind: http, Status: 503}, agent.FailureOverloaded},
		"529":                         {codex.Failure{Kind: "serverOverloaded"}, agent.FailureOverloaded},
		"no flexible capacity":        {codex.Failure{Kind: "flexUnavailable"}, agent.FailureOverloaded},
		"no capacity for the policy":  {codex.Failure{Kind: "policyCapacityUnavailable"}, agent.FailureOverloaded},
		"no connection":               {codex.Failure{Kind: http}, agent.FailureOverloaded},
		"no stream":                   {codex.Failure{Kind: "responseStreamConnectionFailed"}, agent.FailureOverloaded},
		"stream cut":                  {codex.Failure{Kind: stream}, agent.FailureOverloaded},
		"stream silent":               {codex.Failure{Kind: "other", Message: "stream disconnected before completion: idle timeout waiting for SSE"}, agent.FailureOverloaded},
		"404":                         {codex.Failure{Kind: http, Status: 404}, ""},
		"400":                         {codex.Failure{Kind: "other", Message: `{"error":{"message":"prompt is too long"}}`}, ""},
		"bad request":                 {codex.Failure{Kind: "badRequest"}, ""},
		"no such model":               {codex.Failure{Kind: "modelNotFound"}, ""},
		"context full":                {codex.Failure{Kind: "contextWindowExceeded"}, ""},
		"policy":                      {codex.Failure{Kind: "cyberPolicy"}, ""},
		"its own sandbox":             {codex.Failure{Kind: "sandboxError"}, ""},
		"a kind of a later release":   {codex.Failure{Kind: "hologram"}, ""},
		"a text that sounds like 401": {codex.Failure{Kind: "other", Message: "unexpected status 401 Unauthorized"}, ""},
		"nothing":                     {codex.Failure{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := c.f.Classify(); got != c.want {
				t.Errorf("%+v is %q, want %q", c.f, got, c.want)
			}
		})
	}
}
