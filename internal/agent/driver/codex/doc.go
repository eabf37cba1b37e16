// Package codex drives the Codex CLI, headless, through its app server: the
// configuration of one turn, the conversation in JSON-RPC over its pipes, and what
// that conversation proves. It starts nothing, and knows neither where the turn runs
// nor what holds it there.
//
// # Nobody is asked
//
// The approval policy is "never" and the turn runs without the CLI's own sandbox,
// which cannot work inside the one that holds the turn. What a turn may do was
// decided before it started. The server can still ask its client: for an approval, a
// person's answer, a token. Every such request is answered at once, with no, and the
// refusal is a diagnostic. The CLI has no list of allowed tools: a turn has all of
// them, or, with an empty list, nothing that runs a command or writes a file.
//
// # The workspace is not the turn's owner
//
// A thread that is started without a sandbox has the server write "trusted" beside
// the workspace into its configuration, and with that start the MCP servers and hooks
// the workspace asks for. A workspace that is marked "untrusted" in advance loses its
// AGENTS.md too. So the thread is started read-only, which trusts nothing and reads
// the instructions, and the turn in it is given its access.
//
// The configuration directory is the turn's own, and the whole configuration beside
// what the machine's owner put into /etc/codex. It names variables, never their
// values; features that would fetch, send, snapshot the environment or start another
// agent are off. A prompt is text: the CLI adds to it, where it names one ($name), a
// skill's text from the workspace, which like AGENTS.md only ever speaks to the model.
// A turn with skills of its own is offered those: what the CLI finds elsewhere is off.
//
// # A conversation goes on
//
// It is kept beneath sessions in the configuration directory, which is all that a
// fresh one needs to continue it. The instructions it began with stay in it, and the
// CLI drops others without a word; the driver puts the system prompt of a later turn
// into the conversation itself, as one that replaces them.
//
// # What the conversation proves
//
// The exit code proves nothing: a failed turn exits with 0. Only turn/completed of our
// own thread ends the turn. Token counts are totals of the whole conversation, and a
// resumed one tells its old total first; what this turn used is the difference. The
// CLI never prices them. It tells of a response's tokens only once the tools that the
// response called are done, so a response counts as a turn at the first sign of it.
//
// # What has no end of its own
//
// The CLI knows no limit of turns, and waits without a word for as long as a provider
// asks with 429. The driver interrupts the turn when the limit of turns is reached
// (at most one more request is begun by then, and broken off), and when a wait that
// began with 429 is longer than Driver.Patience. All other silence is for the
// runner's clocks.
package codex
