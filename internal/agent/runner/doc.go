// Package runner takes one request to its Result: verified, run, and recorded. It
// decides nothing about grants (package boundary does), knows no agent CLI (the
// drivers do) and holds no process to anything (the confiner does); it puts them
// in order and keeps the clocks.
//
// # A turn's states
//
//	verified   The boundary gave a Turn, the executable is there. Nothing was
//	           written. A refusal is final: ErrNotGranted, ErrUnsupported.
//	ready      Session directory, prompts, tools and command are made. What
//	           fails here is ErrUnready; the directory goes again.
//	recorded   Recorder.Creating and Observer.Starting agreed. From here a dead
//	           worker's successor knows of the turn.
//	started    The agent runs. Run returns a *Result and no error from here on,
//	           whatever happens.
//	stopping   Somebody asked for the end: the caller's context, a clock, the
//	           cost cap, a bound on output, or a CLI that stays after its last
//	           word. The first to ask gives the reason. The tree is asked to end,
//	           and after Watch.Grace it is ended.
//	gone       The absence of the whole tree is verified and Recorder.Gone told.
//	           What the pipes still hold is read.
//	ended      result.json stands.
//
// # Who is believed
//
// The conversation alone says that a turn succeeded: no final event, no success,
// whatever the exit code. A final event that came before the tree was asked to end,
// or that reports success, stands against the stop that came too late. Otherwise
// the reason for the stop is the turn's ending, with the cost and the turns that
// were known by then.
//
// # Bounds
//
// What an agent prints is never trusted to end. A line longer than 8 MiB reaches
// the driver as its head, marked; the transcript has it whole. Output or events
// beyond Runner.MaxOutput and MaxEvents are a broken protocol and end the turn. A
// process that kept the pipes open is ended with the tree; should one escape, the
// reading ends a few seconds after the last byte.
package runner
