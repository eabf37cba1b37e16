package opencode

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/stream"
)

// classify says what a retry or pause policy should do about an error event; nothing
// when the failure is the work's own.
func (f failure) classify(now time.Time) (agent.Failure, *agent.RateLimit) {
	lower := strings.ToLower(f.Data.Message + " " + f.Data.ResponseBody)
	says := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(lower, w) {
				return true
			}
		}
		return false
	}
	status := stream.Count(f.Data.StatusCode)
	switch {
	case f.Name == "ProviderAuthError":
		return agent.FailureCredential, nil
	case f.Name != "APIError":
		// ContextOverflowError, MessageOutputLengthError, MessageAbortedError,
		// StructuredOutputError, UnknownError: nothing a provider is to blame for.
		return "", nil
	case says("insufficient_quota", "billing", "credit balance"):
		return agent.FailureCredential, nil // until somebody pays
	case says("usage_limit_reached", "usage limit"):
		return limited(f.reset(now))
	case status == http.StatusTooManyRequests:
		if reset := f.reset(now); reset.Sub(now) > patience {
			return limited(reset)
		}
		return agent.FailureOverloaded, nil
	case status >= 401 && status <= 403:
		return agent.FailureCredential, nil
	case status >= 500, status == http.StatusRequestTimeout, status == 0, f.Data.IsRetryable:
		// Without a status there was no answer, or none that a provider gives.
		return agent.FailureOverloaded, nil
	}
	return "", nil
}

// classify says what a retry or pause policy should do about a turn that the plugin
// stopped.
func (s stop) classify(now time.Time) (agent.Failure, *agent.RateLimit) {
	if s.Why == stopTurns {
		return "", nil
	}
	if at := s.at(); at.Sub(now) > patience {
		return limited(at)
	}
	return agent.FailureOverloaded, nil
}

func (s stop) at() time.Time {
	if s.Next <= 0 || s.Next > 1<<50 {
		return time.Time{}
	}
	return time.UnixMilli(int64(s.Next)).UTC().Round(time.Second) // the CLI adds up two clocks' readings
}

func limited(reset time.Time) (agent.Failure, *agent.RateLimit) {
	if reset.IsZero() {
		return agent.FailureLimited, nil
	}
	return agent.FailureLimited, &agent.RateLimit{Status: "rejected", ResetsAt: reset}
}

// reset is when a limit passes, by the headers of the provider's answer.
func (f failure) reset(now time.Time) time.Time {
	header := func(name string) string {
		for k, v := range f.Data.ResponseHeaders {
			if strings.EqualFold(k, name) {
				return v
			}
		}
		return ""
	}
	if seconds, err := strconv.ParseFloat(header("anthropic-ratelimit-unified-reset"), 64); err == nil && seconds > 0 && seconds < 1<<40 {
		return time.Unix(int64(seconds), 0).UTC()
	}
	after := header("retry-after")
	if seconds, err := strconv.ParseFloat(after, 64); err == nil && seconds > 0 && seconds < 1<<31 {
		return now.Add(time.Duration(seconds * float64(time.Second))).UTC()
	}
	if at, err := http.ParseTime(after); err == nil {
		return at.UTC()
	}
	return time.Time{}
}
