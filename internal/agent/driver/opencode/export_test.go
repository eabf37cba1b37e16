package opencode

import (
	"time"

	"turnpike/internal/agent"
)

// Classify is failure.classify, for a table of what providers say.
func Classify(name string, status float64, message, body string, headers map[string]string, now time.Time) (agent.Failure, *agent.RateLimit) {
	f := failure{Name: name}
	f.Data.StatusCode, f.Data.Message, f.Data.ResponseBody, f.Data.ResponseHeaders = status, message, body, headers
	return f.classify(now)
}
