package opencode

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"turnpike/internal/agent"
)

// DefaultMaxRetries is how often one request is repeated, with pauses of 2, 4, 8, ...
// seconds. The CLI itself would go on for ever; beyond a hiccup the queue retries better.
const DefaultMaxRetries = 2

// DefaultStart is how long the CLI may take until it asks its provider. It has been seen
// to hang before it does, and needs its time on a machine that is busy.
const DefaultStart = 3 * time.Minute

// Driver drives opencode. The zero Driver is ready for use with the providers opencode
// knows.
type Driver struct {
	// Providers are added to those the CLI knows, or change them, by name.
	Providers map[string]Provider
	// MaxRetries is how often the CLI repeats a request that failed: 0 is
	// DefaultMaxRetries, below 0 is never.
	MaxRetries int
	// Start is how long the CLI may take until it asks its provider; 0 is DefaultStart.
	Start time.Duration
}

// Provider is a provider of models as the worker's owner offers it. Of one that the CLI
// knows, every field is optional.
type Provider struct {
	Package string // that speaks its API: "@ai-sdk/openai-compatible" comes with the CLI
	BaseURL string
	KeyEnv  string // the variable that holds the credential
	Models  []Model
}

// Model is one model of a provider.
type Model struct {
	ID            string
	Reasoning     bool // it can be told how hard to think
	ContextWindow int  // in tokens
	MaxTokens     int  // of an answer
	// Price is what it costs; nil is unknown, and so is then the cost of a turn.
	Price *Price
}

// Price is in dollars for a million tokens.
type Price struct {
	Input      float64 `json:"input"`
	Output     float64 `json:"output"`
	CacheRead  float64 `json:"cache_read"`
	CacheWrite float64 `json:"cache_write"`
}

var _ agent.Driver = Driver{}

// credentials are the variables the CLI reads the keys of its providers from, of those
// that have one variable for it. There are some 200; a provider that is not here is
// named in Driver.Providers with its variable.
var credentials = []string{
	"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY",
	"OPENCODE_API_KEY", "AI_GATEWAY_API_KEY", "AWS_BEARER_TOKEN_BEDROCK", "AZURE_API_KEY", "BASETEN_API_KEY",
	"CEREBRAS_API_KEY", "CLOUDFLARE_API_TOKEN", "COHERE_API_KEY", "DASHSCOPE_API_KEY", "DEEPINFRA_API_KEY", "DEEPSEEK_API_KEY",
	"FIREWORKS_API_KEY", "GROQ_API_KEY", "HF_TOKEN", "KIMI_API_KEY", "MINIMAX_API_KEY", "MISTRAL_API_KEY", "MOONSHOT_API_KEY",
	"NVIDIA_API_KEY", "PERPLEXITY_API_KEY", "TOGETHER_API_KEY", "VENICE_API_KEY", "XAI_API_KEY", "XIAOMI_API_KEY", "ZHIPU_API_KEY",
}

// Descriptor describes the CLI.
func (d Driver) Descriptor() agent.Backend {
	keys := slices.Clone(credentials)
	for _, p := range d.Providers {
		if p.KeyEnv != "" && !slices.Contains(keys, p.KeyEnv) {
			keys = append(keys, p.KeyEnv)
		}
	}
	slices.Sort(keys[len(credentials):]) // those of a map
	tools := map[agent.Placement]agent.ToolSupport{}
	for _, p := range agent.Placements() {
		// The plugin lets no other tool be run.
		tools[p] = agent.ToolSupport{Supported: true}
		if p.Sandbox == agent.SandboxClaude {
			tools[p] = agent.ToolSupport{Remedy: notClaude}
		}
	}
	return agent.Backend{
		Name:        agent.AgentOpenCode,
		Credentials: keys,
		ProviderEnv: append(slices.Clone(keys),
			"OPENCODE_*", "AWS_*", "AZURE_*", "CLOUDFLARE_*", "GOOGLE_*", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
		// Its tools can be cut down to those that read, but nothing here shows yet
		// that such a turn is held to its workspace.
		Restricted:    &agent.RestrictedCapabilities{},
		WritableTools: tools,
		Abilities: agent.Abilities{
			Pricing: agent.PricingStep,
			Efforts: efforts,
			Skills:  true,
			MCP:     []string{"stdio", "http"},
			Tested:  agent.Releases{First: "1.18.33", Last: "1.18.33"},
		},
	}
}

const notClaude = "that sandbox is Claude Code's own; confine the turn instead (sandbox \"none\" with confine)"

// Runtime is the directory of the executable, which needs nothing else of its own.
func (Driver) Runtime(bin string) ([]agent.Mount, error) {
	resolved, err := filepath.EvalSymlinks(bin)
	if err != nil {
		return nil, unready("find opencode", err)
	}
	return []agent.Mount{{Path: filepath.Dir(resolved), Access: agent.ReadOnly}}, nil
}

func unready(what string, err error) error {
	return fmt.Errorf("%s: %w: %w", what, agent.ErrUnready, err)
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

func (d Driver) start() time.Duration {
	if d.Start <= 0 {
		return DefaultStart
	}
	return d.Start
}
