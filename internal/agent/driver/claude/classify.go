package claude

import (
	"slices"
	"strings"

	"turnpike/internal/agent"
)

// failure is what is known of why a turn failed.
type failure struct {
	status  int    // of the provider's answer; 0 is none
	kind    string // the provider's word for it: "rate_limit_error"
	word    string // the CLI's: "authentication_failed"
	code    string // the CLI's for what is no answer: "connection_failed"
	reason  string // why the turn ended: "api_error"
	errors  []string
	resumed bool // a conversation was to be continued
	blocked bool // the last rate limit event says no
	gaveUp  bool // the CLI may repeat a 429 and did not
}

// unknownConversation opens the CLI's one error for an id it does not know. It has
// no other word for it than this text.
const unknownConversation = "No conversation found"

// classify says what a retry or pause policy should do about it; nothing when
// the failure is the work's own.
func (f failure) classify() agent.Failure {
	is := func(word string, words ...string) bool { return slices.Contains(words, word) }
	unknown := func(e string) bool { return strings.HasPrefix(e, unknownConversation) }
	switch {
	case f.resumed && slices.ContainsFunc(f.errors, unknown):
		return agent.FailureResume

	case f.status == 429 || f.word == "rate_limit" || f.kind == "rate_limit_error":
		// Only a subscription's limits come with an event that names the reset. The
		// CLI also knows how long an API key must wait, does not tell, but does
		// not repeat the request when waiting makes no sense.
		if f.blocked || f.gaveUp || f.code == "usage_limit_reached" {
			return agent.FailureLimited
		}
		return agent.FailureOverloaded

	case f.status >= 401 && f.status <= 403,
		is(f.kind, "authentication_error", "permission_error", "billing_error"),
		is(f.word, "authentication_failed", "billing_error", "oauth_org_not_allowed"):
		return agent.FailureCredential

	case f.status >= 500,
		is(f.kind, "api_error", "overloaded_error", "timeout_error"),
		is(f.word, "server_error", "overloaded"),
		// No answer at all, or one that no provider gives.
		f.reason == "api_error" && f.status == 0:
		return agent.FailureOverloaded
	}
	return ""
}
