package agenttest

import (
	"net/http"
	"strconv"
	"time"
)

// RetryAfter is the header that asks for a pause before the next try.
func RetryAfter(d time.Duration) http.Header {
	return http.Header{"Retry-After": {strconv.Itoa(int(d.Seconds()))}}
}

// SubscriptionLimit is the headers that tell a subscription's user about the
// five hour limit: status is allowed, allowed_warning or rejected, used the
// fraction of the limit that is spent.
func SubscriptionLimit(status string, used float64, reset time.Time) http.Header {
	const unified = "Anthropic-Ratelimit-Unified-"
	at := strconv.FormatInt(reset.Unix(), 10)
	h := http.Header{}
	h.Set(unified+"Status", status)
	h.Set(unified+"Reset", at)
	h.Set(unified+"5h-Status", status)
	h.Set(unified+"5h-Reset", at)
	h.Set(unified+"5h-Utilization", strconv.FormatFloat(used, 'f', -1, 64))
	h.Set(unified+"Representative-Claim", "five_hour")
	if status == "allowed_warning" {
		h.Set(unified+"5h-Surpassed-Threshold", "0.9")
	}
	return h
}

// PlanLimit is the headers that tell a ChatGPT plan's user about its first window:
// used is the fraction of the limit that is spent.
func PlanLimit(used float64, window time.Duration, reset time.Time) http.Header {
	const primary = "X-Codex-Primary-"
	h := http.Header{}
	h.Set(primary+"Used-Percent", strconv.FormatFloat(100*used, 'f', -1, 64))
	h.Set(primary+"Window-Minutes", strconv.Itoa(int(window.Minutes())))
	h.Set(primary+"Reset-At", strconv.FormatInt(reset.Unix(), 10))
	return h
}
