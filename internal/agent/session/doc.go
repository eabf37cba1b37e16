// Package session reads and writes session directories: what one turn leaves on
// the worker. It decides nothing about a turn and nothing about how long its
// directory is kept; it starts nothing.
//
// A directory is used for one turn. Its life is told by its files alone, so that
// a worker which finds it after a crash knows as much as the one that died:
//
//	meta.json without started_at    made, but nothing was started in it
//	meta.json with started_at       an agent was, or was about to be, started
//	killed                          the turn was stopped on purpose, and why
//	result.json                     the turn ended and this is what is known of it
//
// result.json and meta.json appear whole or not at all. transcript.jsonl holds
// what the agent printed, byte for byte, and may end anywhere.
//
//	prompt.md  system-prompt.md  transcript.jsonl  stderr.log  result.json  meta.json  killed
//	home/      the agent CLI's own configuration directory
//	run/       sockets of the servers that live as long as the turn
//	tmp/       temporary files of a turn that has no /tmp of its own
//	shims/     stand-ins for executables that are denied to the turn
//	continued.tar.gz     the conversation this turn goes on with, as it was kept
//	conversation.tar.gz  the files of this turn's conversation, to go on with
//
// Only home, run, tmp and shims are ever shown to an agent. The rest is the
// worker's: an agent that could write its own result would be believed.
package session
