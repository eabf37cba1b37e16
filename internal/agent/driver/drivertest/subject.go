package drivertest

import (
	"net/http"
	"testing"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/agenttest"
)

// Subject is a driver with its CLI, and what can be expected of the two.
type Subject struct {
	Driver agent.Driver
	Bin    string // the CLI's executable
	Model  string

	// At is the driver for a provider at a base URL, where that is no matter of the
	// environment. Nil: Driver, wherever it is.
	At func(base string) agent.Driver
	// Credentials are those of the descriptor's that are tried. Nil: all of them.
	Credentials []string
	// Usage is what the API of the Model tells of agenttest.DefaultUsage. Zero: all of it.
	Usage agenttest.Usage

	// Provider is the environment that leads the CLI to the provider at a base URL
	// with a credential, given by its variable.
	Provider func(base, credential string) []string

	// Limit is how a provider tells of a used up limit, and until when. Nil: the CLI
	// never tells of a reset.
	Limit func(reset time.Time) http.Header
	// LimitAnswer is the whole answer where headers alone do not say it. Nil: 429 with
	// the headers of Limit.
	LimitAnswer func(reset time.Time) agenttest.Step
	// LimitCredential is the variable of a credential that is told of limits; empty
	// is the first of the descriptor's.
	LimitCredential string

	// Effort is an effort the CLI knows, and SeesEffort reads it from a request's body.
	Effort     string
	SeesEffort func(body []byte) string

	// MaxTurns is the error subtype of a turn that came to its limit. Empty: the CLI
	// has no such limit.
	MaxTurns string
	// Overrun is how many requests may have begun beyond that limit.
	Overrun int

	// StartsAnew says that a conversation the CLI does not know begins anew under its id.
	StartsAnew bool

	// KeepsPrompts says that a conversation that goes on keeps its earlier system
	// prompts; the turn's own then comes behind them.
	KeepsPrompts bool

	// Prices says that the CLI prices Model itself.
	Prices bool

	// MostRequests bounds how often a request that always fails is made.
	MostRequests int

	// NoTools is how many tools a turn without tools still offers the model.
	NoTools int
	// ReadTool is the name of the tool that reads files. Of a CLI that cannot be held
	// to a list of tools, as its descriptor says, it is not asked.
	ReadTool string

	// Skill has the model load a skill, by the plugin it is of and its own name.
	Skill func(plugin, name string) agenttest.Step

	// Instructions is the workspace's file whose text reaches the model. Empty: none does.
	Instructions string

	// Hostile are files of a workspace, by path, that would have the CLI ask another
	// provider, run a command, or start a server, if it believed them.
	Hostile func(elsewhere, command string) map[string]string
	// Takeover is such a file in the CLI's configuration directory, which an agent
	// could write while it runs.
	Takeover func(elsewhere, command string) (path, content string)

	// Commands are prompts that an interactive user would see run as commands.
	Commands []string
	// Mention is how an interactive user has a file read into the prompt; %s is its path.
	Mention string
}

// Exercise runs the suite.
func Exercise(t *testing.T, s Subject) {
	t.Helper()
	for _, c := range []struct {
		name string
		run  func(*testing.T, Subject)
	}{
		{"declares every placement", placements},
		{"mounts what its executable lies in", runtimeFiles},
		{"ends a turn with a text", text},
		{"sends any of its credentials", credentials},
		{"uses tools", tools},
		{"reports the outcome over MCP", outcome},
		{"appends the system prompt", systemPrompt},
		{"takes a prompt for text and nothing else", prompts},
		{"takes a prompt longer than an argument may be", longPrompt},
		{"asks for the effort", effort},
		{"offers only the tools of the turn", toolList},
		{"runs commands in the shell of the profile", shell},
		{"loads the skills of the turn and runs nothing of them", skills},
		{"stops at the limit of turns", maxTurns},
		{"calls the conversation by the turn's title", title},
		{"continues a conversation and tells of this run alone", resume},
		{"does not know a conversation that never was", resumeUnknown},
		{"tells a refused credential", credential},
		{"tells a used up limit and its reset", limited},
		{"tells a throttled provider", throttled},
		{"tells a failing provider", failing},
		{"gets over a failure that passes", passing},
		{"gets over a broken stream or fails", broken},
		{"can be stopped while the provider is silent", silent},
		{"tells of a server that does not start", deadServer},
		{"asks nobody but its provider", quiet},
		{"follows the workspace's instructions", instructions},
		{"does not believe the workspace's settings", hostile},
		{"does not believe settings the agent wrote", takeover},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, s)
		})
	}
}
