package chaos

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"turnpike/internal/job"
)

// Script is what the agent does in one attempt, one step after the other. An empty one
// does nothing and gives no result.
type Script struct {
	Steps []Step `json:"steps"`
	// Deaf agents do not end when they are asked to.
	Deaf bool `json:"deaf,omitempty"`
	// Keeps says that the conversation is written down, so that it can be continued.
	Keeps bool `json:"keeps,omitempty"`
}

// Step is one thing an agent does, after a while.
type Step struct {
	After time.Duration `json:"after,omitempty"`
	Do    Deed          `json:"do"`
	Cost  job.USD       `json:"cost,omitempty"` // of what has a result
}

// Deed is what a step does.
type Deed string

// The deeds.
const (
	Say        Deed = "say"        // a message
	Tool       Deed = "tool"       // a tool call: from here on the turn has done something
	Fork       Deed = "fork"       // a child that leaves the session and never ends
	Result     Deed = "result"     // a good result; more may follow
	Wrong      Deed = "wrong"      // a result that is the work's own error
	Overloaded Deed = "overloaded" // a result that is the provider's
	Limited    Deed = "limited"    // a result that is a usage limit
	Hang       Deed = "hang"       // nothing more, for ever
	Crash      Deed = "crash"      // the end, without a result
)

// Hello is the first line of a turn to the ledger, which answers with its Script.
type Hello struct {
	Turn         string `json:"turn"` // job and attempt, as the worker names it
	Plan         int    `json:"plan"` // the job of the plan
	Conversation string `json:"conversation"`
	Resumed      bool   `json:"resumed"`
}

// Word is every further line to the ledger. An empty one says that its process runs.
type Word struct {
	Heard Deed    `json:"heard,omitempty"` // a step was carried out: the worker can read it
	Will  Deed    `json:"will,omitempty"`  // the step with a result that is carried out next
	Cost  job.USD `json:"cost,omitempty"`
}

var prompt = regexp.MustCompile(`ledger (\S+) job ([0-9]+)`)

// Prompt tells the agent where its ledger is and which job of the plan it is.
func Prompt(ledger string, n int) string { return fmt.Sprintf("ledger %s job %d", ledger, n) }

// ParsePrompt reads what Prompt wrote, wherever it stands in text.
func ParsePrompt(text string) (ledger string, n int, err error) {
	found := prompt.FindStringSubmatch(text)
	if found == nil {
		return "", 0, fmt.Errorf("the prompt names no ledger: %.100q", text)
	}
	n, err = strconv.Atoi(found[2])
	return found[1], n, err
}

// Line is v as a line of JSON.
func Line(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain data
	}
	return append(b, '\n')
}
