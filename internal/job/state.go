package job

// State is where a job is in its life.
type State string

// The states, in order.
const (
	Scheduled  State = "scheduled" // waits for its time
	Queued     State = "queued"    // may be selected
	Dispatched State = "dispatched"
	Running    State = "running"
	Succeeded  State = "succeeded"
	Failed     State = "failed"
	Cancel     State = "cancelled"
)

// States lists every state in order.
func States() []State {
	return []State{Scheduled, Queued, Dispatched, Running, Succeeded, Failed, Cancel}
}

// Final says whether s is one of the states that never change.
func (s State) Final() bool { return s == Succeeded || s == Failed || s == Cancel }

// Ending is how an attempt ended. What follows from it is the policy's decision,
// made in the database.
type Ending string

// The endings. See design notes in docs/life-of-a-job.md for what follows each.
const (
	EndRefused    Ending = "refused"    // outside grants or ceiling, or cannot be enforced; nothing started
	EndUnready    Ending = "unready"    // this worker could not make it ready; nothing started
	EndDone       Ending = "done"       // the agent ended its turn
	EndLimited    Ending = "limited"    // usage limit, with or without a reset time
	EndOverloaded Ending = "overloaded" // transient provider trouble
	EndCredential Ending = "credential" // the provider refuses the credential
	EndCapped     Ending = "capped"     // cost cap or budget reached
	EndTimeout    Ending = "timeout"    // profile, first-event or idle limit
	EndCancelled  Ending = "cancelled"  // by a person
	EndDrained    Ending = "drained"    // the worker was told to stop
	EndLost       Ending = "lost"       // its worker died: written by the reaper, or by the worker's successor
	EndFenced     Ending = "fenced"     // the worker found its lease gone and stopped the turn
)

// Endings lists every ending.
func Endings() []Ending {
	return []Ending{EndRefused, EndUnready, EndDone, EndLimited, EndOverloaded, EndCredential,
		EndCapped, EndTimeout, EndCancelled, EndDrained, EndLost, EndFenced}
}

// Reasons lists why a job failed or was cancelled: the word after the slash, as in
// failed/crashed. Most are how its last attempt ended.
func Reasons() []string {
	reasons := []string{"agent", "crashed", "deadline", "dependency"}
	for _, e := range Endings() {
		if e != EndDone { // then it is the agent's
			reasons = append(reasons, string(e))
		}
	}
	return reasons
}

// RetryPolicy says what follows an attempt that failed for no fault of the
// request.
type RetryPolicy string

// The policies.
const (
	RetryNever        RetryPolicy = "never"
	RetryIfNotStarted RetryPolicy = "if_not_started" // the default: also when no tool was called yet
	RetryResume       RetryPolicy = "resume"         // the next attempt continues the conversation
	RetryAlways       RetryPolicy = "always"
)

// RetryPolicies lists every policy.
func RetryPolicies() []RetryPolicy {
	return []RetryPolicy{RetryNever, RetryIfNotStarted, RetryResume, RetryAlways}
}
