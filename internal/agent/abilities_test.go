package agent_test

import (
	"testing"

	"turnpike/internal/agent"
)

func TestReleases(t *testing.T) {
	r := agent.Releases{First: "2.1.9", Last: "2.10.0"}
	for said, want := range map[string]bool{
		"2.1.9 (Claude Code)": true, "codex-cli 2.2.0": true, "2.10.0": true, "2.9.99": true,
		"2.1.8": false, "2.10.1": false, "2.2": false, "": false, "none": false, "2.2.0-rc.1": false, "99999999999.1.1": false,
	} {
		if got := r.Has(said); got != want {
			t.Errorf("%q: %v", said, got)
		}
	}
	if r.String() != "2.1.9 to 2.10.0" || (agent.Releases{First: "1.0.0", Last: "1.0.0"}).String() != "1.0.0" || (agent.Releases{}).String() != "none" {
		t.Error(r.String())
	}
}
