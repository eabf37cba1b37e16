package pi_test

import (
	"testing"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/pi"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		message string
		away    time.Duration
		want    agent.Failure
	}{
		"401":                      {`401: {"code":"authentication_error","message":"invalid x-api-key"}`, 0, agent.FailureCredential},
		"402":                      {`402: {"message":"Payment required"}`, 0, agent.FailureCredential},
		"403":                      {`403: {"type":"permission_error"}`, 0, agent.FailureCredential},
		"no key":                   {"No API key found for scripted.", 0, agent.FailureCredential},
		"no quota":                 {`429: {"code":"insufficient_quota","message":"You exceeded your current quota, please check your plan and billing details"}`, 0, agent.FailureCredential},
		"429":                      {`429: {"code":"rate_limit_error"}`, 0, agent.FailureOverloaded},
		"429 for a moment":         {`429: {"code":"rate_limit_error"}`, 2 * time.Second, agent.FailureOverloaded},
		"429 for an hour":          {`429: {"code":"rate_limit_error"}`, time.Hour, agent.FailureLimited},
		"a plan that is used up":   {`429: {"type":"usage_limit_reached","message":"The usage limit has been reached"}`, 0, agent.FailureLimited},
		"408":                      {`408: {}`, 0, agent.FailureOverloaded},
		"500":                      {`500: {"code":"api_error"}`, 0, agent.FailureOverloaded},
		"529":                      {`529 {"type":"error"}`, 0, agent.FailureOverloaded},
		"an error in the stream":   {"Overloaded", 0, agent.FailureOverloaded},
		"a stream that broke off":  {"terminated", 0, agent.FailureOverloaded},
		"no connection":            {"Connection error.", 0, agent.FailureOverloaded},
		"a web page":               {"Stream ended without finish_reason", 0, agent.FailureOverloaded},
		"prompt too long":          {`400: {"message":"prompt is too long: 250000 tokens > 200000 maximum"}`, 0, ""},
		"no such model":            {`404: {"message":"model: no-such-model"}`, 0, ""},
		"too large":                {`413: {}`, 0, ""},
		"a number that is no code": {"4040 things went wrong", 0, agent.FailureOverloaded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := pi.Classify(c.message, c.away); got != c.want {
				t.Errorf("%q is %q, want %q", c.message, got, c.want)
			}
		})
	}
}
