package claude

import (
	"fmt"
	"path/filepath"
	"time"

	"turnpike/internal/agent"
)

// DefaultMaxRetries is how often the CLI repeats a failed request. Its own default
// of 10 keeps a turn waiting for minutes on a provider that is down, and on a
// credential that will never be right; beyond a hiccup the queue retries better.
const DefaultMaxRetries = 2

// DefaultLinger is how long the CLI may take to write its conversation down and exit.
const DefaultLinger = 15 * time.Second

// Driver drives Claude Code. The zero Driver is ready for use.
type Driver struct {
	// MaxRetries is how often the CLI repeats a request that failed: 0 is
	// DefaultMaxRetries, below 0 is never.
	MaxRetries int
	// Linger is how long the CLI may go on, silently, after a result before the
	// conversation counts as over; 0 is DefaultLinger.
	Linger time.Duration
}

var (
	_ agent.Driver   = Driver{}
	_ agent.Leavings = Driver{}
)

// Descriptor describes the CLI.
func (Driver) Descriptor() agent.Backend {
	tools := map[agent.Placement]agent.ToolSupport{}
	for _, p := range agent.Placements() {
		// --tools is an exact list, and subagents get no other.
		tools[p] = agent.ToolSupport{Supported: true}
	}
	return agent.Backend{
		Name:        agent.AgentClaude,
		Credentials: []string{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"},
		ProviderEnv: []string{
			"ANTHROPIC_*", "CLAUDE_*", "ENABLE_TOOL_SEARCH", "IS_SANDBOX",
			"API_TIMEOUT_MS", "BASH_DEFAULT_TIMEOUT_MS", "BASH_MAX_TIMEOUT_MS", "MCP_TIMEOUT", "MCP_TOOL_TIMEOUT",
		},
		Restricted:    &agent.RestrictedCapabilities{Supported: true, FollowUp: true},
		WritableTools: tools,
		Abilities: agent.Abilities{
			Pricing: agent.PricingEnd,
			Efforts: efforts,
			Shell:   true,
			Skills:  true,
			MCP:     []string{"stdio", "http"},
			Tested:  agent.Releases{First: "2.1.332", Last: "2.1.332"},
		},
	}
}

// Runtime is the directory of the executable, which needs nothing else of its own.
func (Driver) Runtime(bin string) ([]agent.Mount, error) {
	resolved, err := filepath.EvalSymlinks(bin)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w: %w", agent.AgentClaude, agent.ErrUnready, err)
	}
	return []agent.Mount{{Path: filepath.Dir(resolved), Access: agent.ReadOnly}}, nil
}

func (d Driver) retries() int {
	switch {
	case d.MaxRetries < 0:
		return 0
	case d.MaxRetries == 0:
		return DefaultMaxRetries
	}
	return d.MaxRetries
}

func (d Driver) linger() time.Duration {
	if d.Linger <= 0 {
		return DefaultLinger
	}
	return d.Linger
}
