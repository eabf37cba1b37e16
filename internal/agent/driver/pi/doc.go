// Package pi drives the pi coding agent, headless: the command line and configuration
// of one turn, and the conversation over its RPC mode. It starts nothing, and knows
// neither where the turn runs nor what holds it there.
//
// # RPC and an extension of our own
//
// Of pi's two machine modes the driver uses RPC: there the prompt is a JSON string of
// any size, and the CLI tells of servers that did not start, which JSON mode does not.
// What RPC lacks, a small extension tells from inside (extension.go): the CLI's version,
// how long a provider that refuses wants to be left alone, and a limit of turns, which
// has to act between two requests and so cannot be kept from outside. It speaks through
// status lines, and a turn goes on without it, except that a limit of turns is then kept
// one request late.
//
// # What holds the tools
//
// pi asks nobody before it runs a tool, so what a turn may do is decided before it
// starts: by the operating system where the placement confines, and by the list of
// tools, which the CLI keeps exactly, everywhere.
//
// # The workspace is not the turn's owner
//
// Extensions, skills, prompt templates, themes, settings and servers are taken from the
// turn's own directory alone, and the project in the workspace is never trusted. Its
// AGENTS.md is followed when the turn may read files, since that only ever speaks to
// the model. A prompt is text and nothing else: the one command that is left, /mcp, is
// kept from being one.
//
// # Packages
//
// The worker's owner may name packages of extensions, which the CLI loads, and fetches
// where they are to be fetched, as it starts: inside whatever holds the turn. Their code is
// as free as the turn is. One that could not be fetched ends the turn before the model is
// asked. An adapter package for MCP is not needed: the driver takes what pi has of its own,
// and does not drive the releases before 1.0, which had none.
//
// # What the stream proves
//
// The exit code is 0 whatever happened. A turn ended when agent_settled came, and ended
// well when the assistant's last message stopped with "stop". agent_end is not the end:
// retries and compactions follow it. Usage and cost come with every message and are those
// of this run; a message without a price makes the cost unknown, never zero.
package pi
