package claude_test

import (
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/claude"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	const api = "api_error"
	for name, c := range map[string]struct {
		f    claude.Failure
		want agent.Failure
	}{
		"401":                       {claude.Failure{Status: 401, Kind: "authentication_error", Word: "authentication_failed", Reason: api}, agent.FailureCredential},
		"402":                       {claude.Failure{Status: 402, Kind: "billing_error", Word: "unknown", Reason: api}, agent.FailureCredential},
		"403":                       {claude.Failure{Status: 403, Kind: "permission_error", Word: "authentication_failed", Reason: api}, agent.FailureCredential},
		"no credential":             {claude.Failure{Word: "authentication_failed", Reason: api}, agent.FailureCredential},
		"no credit":                 {claude.Failure{Status: 400, Kind: "invalid_request_error", Word: "billing_error", Reason: api}, agent.FailureCredential},
		"429 repeated in vain":      {claude.Failure{Status: 429, Kind: "rate_limit_error", Word: "rate_limit", Reason: api}, agent.FailureOverloaded},
		"429 not worth repeating":   {claude.Failure{Status: 429, Word: "rate_limit", Reason: api, GaveUp: true}, agent.FailureLimited},
		"429 with a reset":          {claude.Failure{Status: 429, Word: "rate_limit", Reason: api, Blocked: true}, agent.FailureLimited},
		"429 of a used up plan":     {claude.Failure{Status: 429, Word: "rate_limit", Code: "usage_limit_reached", Reason: api}, agent.FailureLimited},
		"500":                       {claude.Failure{Status: 500, Kind: "api_error", Word: "server_error", Reason: api}, agent.FailureOverloaded},
		"503":                       {claude.Failure{Status: 503, Kind: "api_error", Word: "server_error", Reason: api}, agent.FailureOverloaded},
		"529":                       {claude.Failure{Status: 529, Kind: "overloaded_error", Word: "server_error", Reason: api}, agent.FailureOverloaded},
		"no connection":             {claude.Failure{Code: "connection_failed", Word: "server_error", Reason: api}, agent.FailureOverloaded},
		"not the provider's answer": {claude.Failure{Word: "unknown", Reason: api}, agent.FailureOverloaded},
		"prompt too long":           {claude.Failure{Status: 400, Kind: "invalid_request_error", Word: "invalid_request", Reason: "prompt_too_long"}, ""},
		"no such model":             {claude.Failure{Status: 404, Kind: "not_found_error", Word: "model_not_found", Reason: api}, ""},
		"too large":                 {claude.Failure{Status: 413, Kind: "request_too_large", Word: "invalid_request", Reason: "image_error"}, ""},
		"too many turns":            {claude.Failure{Reason: "max_turns", Errors: []string{"Reached maximum number of turns (3)"}}, ""},
		"too many turns, limit near": {
			claude.Failure{Reason: "max_turns", Blocked: true, GaveUp: true}, "",
		},
		"stopped": {claude.Failure{Reason: "aborted_tools"}, ""},
		"unknown conversation": {
			claude.Failure{Resumed: true, Errors: []string{"No conversation found with session ID: x"}}, agent.FailureResume,
		},
		"a text that sounds like it": {claude.Failure{Errors: []string{"No conversation found with session ID: x"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := c.f.Classify(); got != c.want {
				t.Errorf("%+v is %q, want %q", c.f, got, c.want)
			}
		})
	}
}
