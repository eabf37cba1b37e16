// Package mcphost serves tools to one turn for as long as it runs. Today that is
// report_outcome, through which the agent itself says how its turn ended. Starting
// the agent, and telling its CLI of the server, are left to others.
//
// The server lives in the worker, outside whatever confines the turn, so that an
// outcome is never read from something the agent can write. It listens on a unix
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
package mcphost
