// Package work names what a turn works on, in the producer's own terms. Nothing
// here is interpreted: Turnpike stores a Ref, reports by it and hands it back.
package work

// Ref is an opaque reference to a producer's unit of work: an issue, a task, a
// change. It comes with the request and may be replaced by what the agent reports.
type Ref struct {
	Key  string   `json:"key,omitempty"`
	Tags []string `json:"tags,omitempty"`
}

// IsZero says whether r refers to nothing.
func (r Ref) IsZero() bool { return r.Key == "" && len(r.Tags) == 0 }
