// Package agent is the contract of one confined turn: the words every other
// package beneath it shares, and pure questions about them. It starts nothing,
// reads no environment and knows no vendor's technology.
//
// A Request asks for a turn. A Boundary verifies it against its Grants and
// gives a Turn, or refuses; whatever is not granted, or cannot be enforced, is
// refused before anything is written or started. A Driver says how one agent
// CLI is run for a Turn and holds the conversation with it. A Confiner starts
// the command so that the operating system holds it to the Turn, and an Engine in a
// box, a container or a virtual machine, that another program keeps. A Recorder is
// told of everything that is started, before it is started, so that whatever
// outlives a dead worker is found. The runner (package runner) drives them all
// and none of them knows it.
//
// The names follow the API listing this project implements; what was added to
// it (Limits, Network, Findings, per-model usage, failure kinds) is said where
// it stands.
package agent
