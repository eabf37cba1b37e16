package worker

import (
	"errors"
	"slices"
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/job"
)

func TestMCPReferences(t *testing.T) {
	r, c := full()
	r.Grants.Mounts, r.HostMCP = nil, ""
	c.MCP.Commands = map[string]MCPCommand{"docs": {Path: "/opt/docs", Args: []string{"--keep=${ROOT}"}, MoreArgs: true}}
	r.Profile.Sandbox, r.Env, r.Profile.Env = "none", map[string]string{"ROOT": "/of-the-request"}, map[string]string{"ROOT": "/of-the-profile", "MORE": "more"}
	r.Profile.MCP = map[string]job.MCPEntry{"docs": {Command: "docs", Args: []string{"${ROOT}", "${MORE}"}}}
	got, _, err := mapping{request: r, profile: r.Profile, ceiling: c}.agentRequest()
	// The owner's own arguments are not the producer's to fill.
	want := []string{"--keep=${ROOT}", "/of-the-request", "more"}
	if err != nil || got.Profile.MCP["docs"].Command != "/opt/docs" || !slices.Equal(got.Profile.MCP["docs"].Args, want) {
		t.Errorf("got %+v, %v", got.Profile.MCP, err)
	}
	r.Profile.MCP["docs"] = job.MCPEntry{Command: "docs", Args: []string{"${SECRET}"}}
	if _, _, err := (mapping{request: r, profile: r.Profile, ceiling: c, environ: []string{"SECRET=s"}}).agentRequest(); !errors.Is(err, agent.ErrNotGranted) {
		t.Errorf("a variable of the worker's: %v", err)
	}
}
