//go:build !linux

package sbx

// The arguments by which this program is known inside a sandbox.
const (
	lineArg  = "turnpike-sbx-line"
	agentArg = "turnpike-sbx-agent"
)

// Entry returns at once: sandboxes run Linux.
func Entry() {}
