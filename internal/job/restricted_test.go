package job_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/job"
)

// question is a read-only turn; MORE stands for members of the request, and PROFILE for
// more of its profile.
const question = `{"api_version": "turnpike/v1", "prompt": "Why?", "restricted": true, "workspace": {"dir": "/repo"},
	"profile": {"agent": "codex", "confine": true PROFILE} MORE}`

func asking(profile, more string) []byte {
	return []byte(strings.NewReplacer("PROFILE", profile, "MORE", more).Replace(question))
}

func TestRestricted(t *testing.T) {
	r, err := job.Decode(asking(`, "name": "reader", "model": "m", "account": "a", "effort": "low", "max_turns": 3, "timeout": "5m", "sandbox": "none",
		"fallback": {"agent": "claude"}`, `, "system_prompt": "s", "resume_id": "c", "cost_cap_usd": "1", "account": "b", "work": {"key": "W"}, "pool": "p",
		"tenant": "t", "priority": 1, "dedup_key": "d", "concurrency_key": "k", "limits": {"idle": "5m"}, "grants": null, "env": {}`))
	if err != nil {
		t.Fatal(err)
	}
	if r.Profile.Fallback.Timeout != 0 || r.Retry.Policy != job.RetryAlways {
		t.Errorf("a timeout of %s and the policy %s, want none of its own and always", r.Profile.Fallback.Timeout, r.Retry.Policy)
	}
	for field, body := range map[string][]byte{
		"grants":                         asking("", `, "grants": {}`),
		"valid_outcomes":                 asking("", `, "valid_outcomes": []`),
		"env":                            asking("", `, "env": {"A": "b"}`),
		"vcs_container_path":             asking("", `, "vcs_container_path": ["/a"]`),
		"host_mcp":                       asking("", `, "host_mcp": "h"`),
		"profile.sandbox":                asking(`, "sandbox": "claude"`, ""),
		"profile.allowed_tools":          asking(`, "allowed_tools": ["Read"]`, ""),
		"profile.sandbox_domains":        asking(`, "sandbox_domains": []`, ""),
		"profile.skills":                 asking(`, "skills": ["s"]`, ""),
		"profile.fallback.vcs_access":    asking(`, "fallback": {"vcs_access": true}`, ""),
		"profile.fallback.sandbox_image": asking(`, "fallback": {"sandbox": "container", "sandbox_image": "i"}`, ""),
	} {
		_, err := job.Decode(body)
		all, ok := errors.AsType[job.Invalid](err)
		if !ok {
			t.Errorf("%s: %v, want it refused", field, err)
			continue
		}
		var fields []string
		for _, p := range all {
			fields = append(fields, p.Field)
		}
		if !strings.Contains(strings.Join(fields, " ")+" ", field+" ") {
			t.Errorf("refused for %v, want %s", fields, field)
		}
	}
}

func TestFallbacks(t *testing.T) {
	same := `{"agent": "claude", "model": "m"}`
	for what, profile := range map[string]string{
		"its own fallback": `{"agent": "claude", "model": "m", "fallback": ` + same + `}`,
		"one further on":   `{"agent": "pi", "fallback": {"agent": "claude", "model": "m", "fallback": {"agent": "codex", "fallback": ` + same + `}}}`,
	} {
		if _, err := job.Decode([]byte(with("profile", profile))); !errors.Is(err, job.ErrInvalid) || !strings.Contains(err.Error(), "circle") {
			t.Errorf("%s: %v", what, err)
		}
	}
	const profile = `{"name": "a", "confine": true, "fallback": {"name": "b", "agent": "codex", "sandbox": "container", "account": "own",
		"fallback": {"name": "c", "confine": true, "model": "m"}}}`
	at := func(i int, name, placement, agent, account string) job.Place {
		return job.Place{Profile: i, Name: name, Lane: job.Lane{Placement: placement, Pool: "default"}, Agent: agent, Account: account}
	}
	a, b, c := at(0, "a", "none-confined", "claude", "team"), at(1, "b", "container", "codex", "own"), at(2, "c", "none-confined", "claude", "team")
	for resume, want := range map[string][]job.Place{"": {a, b, c}, `, "resume_id": "conv"`: {a, c}} {
		r, err := job.Decode([]byte(with("profile", profile+`, "account": "team"`+resume)))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, r.Places()); diff != "" {
			t.Errorf("places of %q (-want +got):\n%s", resume, diff)
		}
	}
}
