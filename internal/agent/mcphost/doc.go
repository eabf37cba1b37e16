// Package mcphost serves tools to one turn for as long as it runs: report_outcome,
// through which the agent itself says how its turn ended (Start); tools that read the
// workspace, for an agent that has none of its own (StartRead); and, for a turn in a
// container or a sandbox, a server of the worker's owner that runs on the host
// (StartServer). Starting the agent, and telling its CLI of the servers, are left to
// others.
//
// The first two live in the worker, outside whatever confines the turn, so that an
// outcome is never read from something the agent can write. Each listens on a unix
// socket in a directory of the turn's own, and nowhere else. The agent's CLI
// starts it like any stdio server: the command is the worker's own executable, run
// as a bridge (see Entry) that copies its standard streams to the socket.
//
// # Who may connect
//
// A turn that is held by Landlock alone can connect to the sockets of other turns,
// so the path is no secret and no right. The bridge sends a token first, one for
// each turn, and a connection with another token is closed unheard. Within the
// turn the token is no secret: whatever the agent runs may report the outcome, once.
//
// # What each side may assume
//
// A connection that closes is nothing to the Host: the CLI starts its bridge anew
// when it wants to. The outcome is kept by the Host, not by a connection, and stays
// readable after Close. A connection that sends a message over the bound, or
// anything that is no message, is closed; the outcome stays what it was.
//
// # What the read server shows
//
// It has the worker's rights, so what it shows is decided by how it opens things: every
// path is opened beneath one directory through os.Root, which no ".." and no link
// leaves; only directories and regular files are opened, never something that could
// block or act; what is returned, walked over, scanned and waited for is bounded. It
// has no tool that writes.
//
// # A server of the owner's
//
// It is a process tree of its own, with its own record, that listens on one address of
// the host and demands a token made for this turn. The configuration the agent can read
// names the variable that holds the token, never the token. One that answers without it
// is not used.
package mcphost
