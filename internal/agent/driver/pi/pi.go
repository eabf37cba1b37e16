package pi

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"turnpike/internal/agent"
)

// DefaultMaxRetries is how often the CLI repeats a failed request, with pauses of 2, 4,
// 8, ... seconds. Beyond a hiccup the queue retries better.
const DefaultMaxRetries = 2

// Driver drives pi. The zero Driver is ready for use with the providers pi knows.
type Driver struct {
	// Providers are added to those the CLI knows, or change them, by name.
	Providers map[string]Provider
	// MaxRetries is how often the CLI repeats a request that failed: 0 is
	// DefaultMaxRetries, below 0 is never.
	MaxRetries int
}

// Provider is a provider of models as the worker's owner offers it. Of one that the CLI
// knows, every field is optional.
type Provider struct {
	BaseURL string
	API     string // "openai-completions", "openai-responses" or "anthropic-messages"
	KeyEnv  string // the variable that holds the credential
	Models  []Model
}

// Model is one model of a provider.
type Model struct {
	ID            string
	Reasoning     bool // it can be told how hard to think
	ContextWindow int  // in tokens; 0 is the CLI's guess
	MaxTokens     int  // of an answer; 0 is the CLI's guess
	// Price is what it costs; nil is unknown, and so is then the cost of a turn.
	Price *Price
}

// Price is in dollars for a million tokens.
type Price struct {
	Input      float64 `json:"input"`
	Output     float64 `json:"output"`
	CacheRead  float64 `json:"cacheRead"`
	CacheWrite float64 `json:"cacheWrite"`
}

var _ agent.Driver = Driver{}

// credentials are the variables the CLI reads the keys of its own providers from.
var credentials = []string{
	"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_OAUTH_TOKEN", "OPENAI_API_KEY", "GEMINI_API_KEY",
	"OPENROUTER_API_KEY", "AI_GATEWAY_API_KEY", "AZURE_OPENAI_API_KEY", "AWS_BEARER_TOKEN_BEDROCK", "GOOGLE_CLOUD_API_KEY",
	"ANT_LING_API_KEY", "BASETEN_API_KEY", "CEREBRAS_API_KEY", "CLOUDFLARE_API_KEY", "COPILOT_GITHUB_TOKEN",
	"DEEPSEEK_API_KEY", "FIREWORKS_API_KEY", "GROQ_API_KEY", "HF_TOKEN", "KIMI_API_KEY", "META_API_KEY",
	"MINIMAX_API_KEY", "MINIMAX_CN_API_KEY", "MISTRAL_API_KEY", "MOONSHOT_API_KEY", "NVIDIA_API_KEY", "OPENCODE_API_KEY",
	"QWEN_TOKEN_PLAN_TEAM_API_KEY", "QWEN_TOKEN_PLAN_TEAM_CN_API_KEY", "QWEN_TOKEN_PLAN_INDIVIDUAL_API_KEY",
	"QWEN_TOKEN_PLAN_INDIVIDUAL_CN_API_KEY", "RADIUS_API_KEY", "TOGETHER_API_KEY", "TYPESAFE_API_KEY", "XAI_API_KEY",
	"XIAOMI_API_KEY", "XIAOMI_TOKEN_PLAN_AMS_API_KEY", "XIAOMI_TOKEN_PLAN_CN_API_KEY", "XIAOMI_TOKEN_PLAN_SGP_API_KEY",
	"ZAI_API_KEY", "ZAI_CODING_CN_API_KEY",
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
		// --tools is an exact list.
		tools[p] = agent.ToolSupport{Supported: true}
		if p.Sandbox == agent.SandboxClaude {
			tools[p] = agent.ToolSupport{Remedy: notClaude}
		}
	}
	return agent.Backend{
		Name:        agent.AgentPi,
		Credentials: keys,
		ProviderEnv: append(slices.Clone(keys),
			"PI_*", "ANTHROPIC_*", "AZURE_OPENAI_*", "AWS_*", "CLOUDFLARE_*", "GOOGLE_*", "QWEN_TOKEN_PLAN_*",
			"HTTP_PROXY", "HTTPS_PROXY"),
		// Its tools can be cut down to those that read, but nothing here shows yet
		// that such a turn is held to its workspace.
		Restricted:    &agent.RestrictedCapabilities{},
		WritableTools: tools,
		Abilities: agent.Abilities{
			Pricing: agent.PricingStep,
			Efforts: efforts,
			Shell:   true,
			Skills:  true,
			MCP:     []string{"stdio", "http"},
			Tested:  agent.Releases{First: "1.6.0", Last: "1.6.0"},
		},
	}
}

const notClaude = "that sandbox is Claude Code's own; confine the turn instead (sandbox \"none\" with confine)"

// module is where npm puts the CLI beneath a node_modules directory.
const module = "@earendil-works/pi-coding-agent"

// Runtime is what the executable needs: its own directory, the tree of node modules
// that the CLI lies in, and node.
func (Driver) Runtime(bin string) ([]agent.Mount, error) {
	resolved, err := filepath.EvalSymlinks(bin)
	if err != nil {
		return nil, unready("find pi", err)
	}
	dir := filepath.Dir(resolved)
	dirs := []string{dir}
	modules, found := modulesAround(resolved)
	if !found {
		// A script of its installer's, which stands beside node_modules or in a
		// directory beside it.
		for _, beside := range []string{dir, filepath.Dir(dir)} {
			at := filepath.Join(beside, "node_modules")
			if _, err := os.Stat(filepath.Join(at, module)); err == nil {
				modules, found = at, true
				break
			}
		}
	}
	if !found {
		return nil, unready("find what pi needs to run", fmt.Errorf("no node_modules/%s in or beside %s", module, dir))
	}
	dirs = append(dirs, modules)
	node, err := nodeFor(dir)
	if err != nil {
		return nil, unready("find the node that runs pi", err)
	}
	dirs = append(dirs, filepath.Dir(node))
	slices.Sort(dirs)
	var mounts []agent.Mount
	for _, d := range dirs {
		if _, covered := agent.Deciding(mounts, d); !covered {
			mounts = append(mounts, agent.Mount{Path: d, Access: agent.ReadOnly})
		}
	}
	return mounts, nil
}

// modulesAround is the outermost node_modules directory that a path lies in.
func modulesAround(path string) (string, bool) {
	const name = string(filepath.Separator) + "node_modules"
	i := strings.Index(path, name+string(filepath.Separator))
	if i < 0 {
		return "", false
	}
	return path[:i+len(name)], true
}

// nodeFor is the node beside the executable, or else the one on the worker's PATH.
func nodeFor(dir string) (string, error) {
	if node, err := filepath.EvalSymlinks(filepath.Join(dir, "node")); err == nil {
		return node, nil
	}
	node, err := exec.LookPath("node")
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(node)
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
