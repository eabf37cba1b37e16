package codex

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"turnpike/internal/agent"
)

// What holds where a Driver says nothing.
const (
	// DefaultMaxRetries is how often a failed request or a broken stream is
	// repeated. The CLI's own defaults multiply to thirty requests.
	DefaultMaxRetries = 2
	// DefaultLinger is how long the CLI may take to write its conversation down
	// and exit.
	DefaultLinger = 15 * time.Second
	// DefaultPatience is how long a turn waits for a provider that said "too many
	// requests". It is longer than a model may think before its first word.
	DefaultPatience = 2 * time.Minute
)

// Driver drives Codex. The zero Driver is ready for use.
type Driver struct {
	// MaxRetries is how often a request that failed, or a stream that broke, is
	// repeated: 0 is DefaultMaxRetries, below 0 is never.
	MaxRetries int
	// Linger is how long the CLI may go on after its turn, or after it was told to
	// break it off, before the conversation counts as over; 0 is DefaultLinger.
	Linger time.Duration
	// Patience is how long the CLI may be silent once a request was answered with
	// 429; after that the turn is limited. 0 is DefaultPatience.
	Patience time.Duration
}

var _ agent.Driver = Driver{}

// The variables the credential is read from. The first one that is set is used.
var credentials = []string{"CODEX_API_KEY", "OPENAI_API_KEY"}

// Descriptor describes the CLI.
func (Driver) Descriptor() agent.Backend {
	tools := map[agent.Placement]agent.ToolSupport{}
	for _, p := range agent.Placements() {
		tools[p] = agent.ToolSupport{Remedy: "codex has no list of allowed tools; grant \"*\" and confine the turn, or use another agent"}
	}
	return agent.Backend{
		Name:          agent.AgentCodex,
		Credentials:   credentials,
		ProviderEnv:   []string{"CODEX_*", "OPENAI_*"},
		Restricted:    &agent.RestrictedCapabilities{Supported: true, FollowUp: true, ReadServer: true},
		WritableTools: tools,
		Abilities: agent.Abilities{
			Pricing: agent.PricingNever,
			Efforts: efforts,
			Skills:  true,
			MCP:     []string{"stdio", "http"},
			Tested:  agent.Releases{First: "0.171.0", Last: "0.171.0"},
		},
	}
}

// packageFile marks the root of the CLI's package: its executable stands in bin, and
// the programs it runs stand there and in the directories beside it.
const packageFile = "codex-package.json"

// Runtime is the package around the executable, or the executable's directory where
// there is no package.
func (Driver) Runtime(bin string) ([]agent.Mount, error) {
	resolved, err := filepath.EvalSymlinks(bin)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w: %w", agent.AgentCodex, agent.ErrUnready, err)
	}
	if err := native(resolved); err != nil {
		return nil, err
	}
	dir := filepath.Dir(resolved)
	if root := filepath.Dir(dir); root != dir {
		if _, err := os.Stat(filepath.Join(root, packageFile)); err == nil {
			dir = root
		}
	}
	return []agent.Mount{{Path: dir, Access: agent.ReadOnly}}, nil
}

// native refuses the npm package's wrapper, a script that needs an interpreter, and
// files, that nobody could list.
func native(bin string) error {
	f, err := os.Open(bin)
	if err != nil {
		return fmt.Errorf("look at %s: %w: %w", agent.AgentCodex, agent.ErrUnready, err)
	}
	defer func() { _ = f.Close() }() // it was only read
	head := make([]byte, 2)
	switch _, err := io.ReadFull(f, head); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // not a script, whatever else
	case err != nil:
		return fmt.Errorf("look at %s: %w: %w", agent.AgentCodex, agent.ErrUnready, err)
	case bytes.Equal(head, []byte("#!")):
		return fmt.Errorf("codex: %w: %s is a script around the CLI; name the native executable it runs", agent.ErrUnsupported, bin)
	}
	return nil
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

func (d Driver) patience() time.Duration {
	if d.Patience <= 0 {
		return DefaultPatience
	}
	return d.Patience
}
