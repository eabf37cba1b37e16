// Package chaos breaks a whole installation at random moments while thousands of turns
// run through it, brings everything up again, lets it come to rest, and then judges what
// is on record. It holds tests, what they measure with, and the agent they run.
//
// What is real: the programs as processes with state directories of their own, Postgres,
// NATS with JetStream, the network between a worker and Postgres (through a proxy), the
// claude driver, and confinement. What stands in is the agent alone: a program that
// speaks the CLI's stream (package standin) and does what its script says.
//
// # Plan
//
// A [Plan] is a pure function of a seed and a number of turns: the jobs with all the
// queue offers, what the agent does in each attempt, and when what is broken. It is
// printed; the same seed makes the same plan again. When exactly an action takes effect
// is the machine's to say. Even seeds set a budget, and odd ones none: with one, selection
// decides about every job, and without, some are dispatched as they are enqueued.
//
// # Ledger
//
// Whether a turn runs is told by the kernel and not by the turn: each holds a connection
// to the [Ledger], which what it forks inherits. The connection ends when the last of its
// tree is gone, however it ended. A tree that stands still holds its connection and says
// nothing; one that runs says so every few milliseconds. So "two at once" is an older
// tree that is heard after a younger one was let begin.
//
// # Check
//
// [Check] holds a [History], which is what Postgres, the ledger, the state directories
// and JetStream have in the end, to the invariants. It is a pure function, and a test of
// its own feeds it each violation: a check that cannot fail proves nothing.
package chaos
