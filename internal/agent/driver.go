package agent

import (
	"context"
	"io"
)

// Backend describes one agent CLI.
type Backend struct {
	// Name is the value of Profile.Agent and the basename of the executable.
	Name string
	// Credentials are the variables its provider credential is read from; each
	// one that is set and granted is forwarded.
	Credentials []string
	// ProviderEnv are the variables it is configured and authenticated through.
	// A trailing "*" is a prefix.
	ProviderEnv []string
	// ArgvMarker says whether the command line carries a marker by which a
	// leftover process is found.
	ArgvMarker bool
	// Restricted declares whether read-only turns can be held; nil means the
	// descriptor forgot to say.
	Restricted *RestrictedCapabilities
	// WritableTools declares for every placement whether a turn that may write
	// can be held to the tools its grants name. A placement it does not name is
	// unsupported.
	WritableTools map[Placement]ToolSupport

	// Abilities are beyond the listing.
	Abilities Abilities
}

// ToolSupport is one declaration of Backend.WritableTools.
type ToolSupport struct {
	Supported bool
	Remedy    string // what to do instead; part of the refusal
}

// RestrictedCapabilities is what an agent can do in a read-only turn.
type RestrictedCapabilities struct {
	Supported bool
	FollowUp  bool
	// ReadServer says that the agent needs the runner's read server to read the
	// workspace once its command execution is off.
	ReadServer bool
}

// Driver knows one agent CLI: what it is, how it is started and how to talk with
// it. It starts no process and decides nothing about grants. A Driver is used
// from many goroutines.
type Driver interface {
	Descriptor() Backend
	// Runtime lists what the CLI needs to read beyond the grants to run at all,
	// given its resolved executable.
	Runtime(bin string) ([]Mount, error)
	// Command says how the CLI is run for this turn. It writes only beneath
	// Launch.Home.
	Command(l Launch) (*Command, error)
	// Converse holds the conversation until the CLI has said its last word or
	// its output ends. It reads io.Out to its end or until ctx ends, reports
	// through seen as it learns, and returns what the stream proved. A broken
	// stream is no error: it is told in the Conversation.
	Converse(ctx context.Context, l Launch, io Pipes, seen func(Progress)) Conversation
}

// Conversations is a Driver whose CLI goes on with a conversation in a fresh home, by
// its files alone. A driver that is none refuses Request.ResumeID.
type Conversations interface {
	// ConversationFile says whether the file of this slash-separated name beneath
	// the CLI's home is part of the conversation, so that it may be kept and put
	// into another home. Never is it a setting, a hook, a credential or a server.
	ConversationFile(conversation, name string) bool
}

// What a session directory holds of conversations, as packed files: that of its own
// turn, once it is over, and the one its turn goes on with, which whoever orders the
// turn puts there.
const (
	ConversationFile = "conversation.tar.gz"
	ContinuedFile    = "continued.tar.gz"
	MaxConversation  = 64 << 20 // bytes
)

// Launch is a verified turn about to be started.
type Launch struct {
	Request Request
	Turn    *Turn
	// Bin is the resolved executable.
	Bin string
	// Home is the CLI's own configuration directory on the host, made for this
	// turn alone, and HomeInside the path it has where the CLI runs.
	Home, HomeInside string
	// WorkDir is the working directory as the CLI sees it.
	WorkDir string
	// MCP are all servers of the turn, the report tool's among them.
	MCP map[string]MCPEntry
	// Skills are the prepared directories of the profile's skills.
	Skills []string
	// Title is what the CLI may call the conversation.
	Title string
	// Root says whether the CLI will see itself as uid 0.
	Root bool
}

// Command is how a CLI is started.
type Command struct {
	Args []string // without the executable
	Env  []string // NAME=value pairs that are added to Turn.Env
	// Stdin is written to the CLI and then closed; nil leaves its stdin to the
	// conversation through Pipes.In.
	Stdin io.Reader
}

// Pipes are a started CLI's standard streams.
type Pipes struct {
	In io.WriteCloser // nil when Command.Stdin was given
	// Lines are the lines of the CLI's stdout, in order, without their ends. A
	// line longer than the runner's bound is cut to it and marked. The channel
	// closes at the end of the output.
	Lines <-chan Line
}

// Line is one line an agent printed.
type Line struct {
	Text []byte
	// Cut says that the line was longer than the runner keeps; Text is its head.
	Cut bool
}

// Progress is what is known of a turn so far. Every field is a running total or
// the latest value.
type Progress struct {
	Conversation string
	AgentVersion string
	Turns        int
	ToolCalls    int
	CostUSD      float64
	CostKnown    bool
	RateLimit    *RateLimit
}

// Conversation is what a CLI's whole stream proved.
type Conversation struct {
	Progress
	// Ended says that the stream's own final event came: the turn ended by itself.
	Ended        bool
	IsError      bool
	ErrorSubtype string
	Failure      Failure
	ResultText   string
	Models       map[string]Usage
	Diagnostics  []string
}
