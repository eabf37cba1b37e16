// Package e2e holds tests of the whole system: the two programs as they are
// shipped, real Postgres and NATS, the real Claude Code CLI, the kernel's real
// confinement. Only the model is scripted. Each test reads as something that
// happens to an installation; the harness is in system_test.go.
package e2e
