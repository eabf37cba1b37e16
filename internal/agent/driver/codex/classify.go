package codex

import (
	"strings"

	"turnpike/internal/agent"
)

// failure is what is known of why a turn failed.
type failure struct {
	problem
	blocked bool // the last rate limit that was told of is used up
	waited  bool // the provider asked for a longer wait than a turn is given
}

// Texts where the CLI has no other word. A quota is an account's money, which no
// wait brings back, and has the same kind as a plan's limit, which resets.
const (
	quotaExceeded = "Quota exceeded"
	streamBroke   = "stream disconnected before completion"
)

// classify says what a retry or pause policy should do about it; nothing when the
// failure is the work's own.
func (f failure) classify() agent.Failure {
	switch {
	case f.Kind == "usageLimitExceeded" && strings.HasPrefix(f.Message, quotaExceeded):
		return agent.FailureCredential
	case f.Kind == "usageLimitExceeded", f.waited:
		return agent.FailureLimited
	case f.Kind == "rateLimitExceeded", f.Status == 429:
		if f.blocked {
			return agent.FailureLimited
		}
		return agent.FailureOverloaded
	case f.Kind == "unauthorized", f.Status >= 401 && f.Status <= 403:
		return agent.FailureCredential
	case f.Status >= 500:
		return agent.FailureOverloaded
	}
	switch f.Kind {
	case "serverOverloaded", "internalServerError", "flexUnavailable", "policyCapacityUnavailable":
		return agent.FailureOverloaded
	case "httpConnectionFailed", "responseStreamConnectionFailed", "responseStreamDisconnected", "responseTooManyFailedAttempts":
		if f.Status == 0 { // no answer at all, or one that broke off
			return agent.FailureOverloaded
		}
	case "other", "":
		if strings.HasPrefix(f.Message, streamBroke) {
			return agent.FailureOverloaded
		}
	}
	return ""
}
