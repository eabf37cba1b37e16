package codex

import "turnpike/internal/agent"

// Failure is what a table test gives classify.
type Failure struct {
	Kind, Message   string
	Status          int
	Blocked, Waited bool
}

func (f Failure) Classify() agent.Failure {
	return failure{
		problem: problem{Kind: f.Kind, Message: f.Message, Status: f.Status},
		blocked: f.Blocked, waited: f.Waited,
	}.classify()
}

// Whole closes a JSON text that was cut.
var Whole = whole
