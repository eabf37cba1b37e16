package claude

import "turnpike/internal/agent"

// Failure is what a table test gives classify.
type Failure struct {
	Status                   int
	Kind, Word, Code, Reason string
	Errors                   []string
	Resumed, Blocked, GaveUp bool
}

func (f Failure) Classify() agent.Failure {
	return failure{
		status: f.Status, kind: f.Kind, word: f.Word, code: f.Code, reason: f.Reason,
		errors: f.Errors, resumed: f.Resumed, blocked: f.Blocked, gaveUp: f.GaveUp,
	}.classify()
}
