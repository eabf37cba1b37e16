package pi

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"turnpike/internal/agent"
)

// patience is how soon a limit must pass to be a throttled provider's and not one that
// is used up.
const patience = time.Minute

var statusOf = regexp.MustCompile(`^(\d{3})\b`)

// classify says what a retry or pause policy should do about a message of the CLI's
// about a request that failed; nothing when the failure is the work's own. The message
// opens with the status of the provider's answer, if there was any. away is how long
// the provider wants to be left alone; 0 is unknown.
func classify(message string, away time.Duration) agent.Failure {
	lower := strings.ToLower(message)
	says := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(lower, w) {
				return true
			}
		}
		return false
	}
	status := 0
	if m := statusOf.FindString(message); m != "" {
		status, _ = strconv.Atoi(m) // three digits
	}
	switch {
	case says("insufficient_quota", "billing", "credit balance", "out of budget"):
		return agent.FailureCredential // until somebody pays
	case says("usage_limit_reached", "usage limit"):
		return agent.FailureLimited
	case status == http.StatusTooManyRequests:
		if away > patience {
			return agent.FailureLimited
		}
		return agent.FailureOverloaded
	case status >= 401 && status <= 403, status == 0 && says("no api key", "not authenticated", "authentication"):
		return agent.FailureCredential
	case status == http.StatusRequestTimeout, status >= 500:
		return agent.FailureOverloaded
	case status == 0:
		// No answer at all, one that broke off, or one that no provider gives.
		return agent.FailureOverloaded
	}
	return ""
}

// until is when a limit passes, as far as it can be known.
func (l limit) until(now time.Time) time.Time {
	if seconds, err := strconv.ParseFloat(l.Reset, 64); err == nil && seconds > 0 && seconds < 1<<40 {
		return time.Unix(int64(seconds), 0).UTC()
	}
	if seconds, err := strconv.ParseFloat(l.RetryAfter, 64); err == nil {
		if seconds <= 0 || seconds > 1<<31 {
			return time.Time{}
		}
		return now.Add(time.Duration(seconds * float64(time.Second))).UTC()
	}
	if at, err := http.ParseTime(l.RetryAfter); err == nil {
		return at.UTC()
	}
	return time.Time{}
}

// resetIn is when a limit passes by the body of the provider's answer, which follows
// its status in the message.
func resetIn(message string) time.Time {
	_, body, _ := strings.Cut(message, "{")
	var told struct {
		ResetsAt float64 `json:"resets_at"`
	}
	if json.Unmarshal([]byte("{"+body), &told) != nil || told.ResetsAt <= 0 || told.ResetsAt > 1<<40 {
		return time.Time{}
	}
	return time.Unix(int64(told.ResetsAt), 0).UTC()
}
