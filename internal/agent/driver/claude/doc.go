// Package claude drives Claude Code, headless: the command line and configuration
// of one turn, and what its stream of events proves. It starts nothing, and knows
// neither where the turn runs nor what holds it there.
//
// # Nobody is asked
//
// Permission prompts are bypassed in every placement. What a turn may do was
// decided before it started: by the operating system where the placement confines,
// and by the list of tools, which the CLI keeps exactly, everywhere. A rule that
// the CLI would have to judge call by call, such as Bash(git *), holds nothing once
// there is any other tool, so it is refused rather than passed on.
//
// # The workspace is not the turn's owner
//
// A workspace can bring settings with hooks, another API address, key helpers and
// MCP servers (CVE-2026-21852), and an agent can write such settings while it runs.
// The CLI is told to read no settings file at all, the user's own included, and no
// MCP server but the turn's. It still reads the workspace's CLAUDE.md, when it may
// read files, since that only ever speaks to the model. A prompt is text and nothing
// else: slash commands and file mentions in it, which would act without a tool, are
// off. Background tasks and schedules are off too, because a headless turn ends with
// the model's last word.
//
// # What the stream proves
//
// The CLI's exit code and the word "success" prove nothing: a refused credential
// ends as subtype success with is_error true. Only result events count. There may be
// several; their costs add up, and the last one says how the turn ended. Costs and
// tokens are those of this run: the totals of a continued conversation include its
// earlier runs. A line that is no event is counted and skipped, a line that was cut
// gives what its head holds, and an unknown event is no error.
package claude
