package pi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/stream"
)

// Subtypes of errors, beside the runner's and the CLI's own words for why a message
// stopped.
const (
	subtypeMaxTurns = "error_max_turns"
	subtypeRejected = "prompt_rejected"
	subtypeMissing  = "package_missing"
)

// The ids of the commands that the driver gives.
const (
	askState  = "state"
	askPrompt = "prompt"
	askAbort  = "abort"
)

// Converse gives the prompt and follows the stream until the CLI has settled, which
// closing its input then ends.
func (d Driver) Converse(ctx context.Context, l agent.Launch, pipes agent.Pipes, seen func(agent.Progress)) agent.Conversation {
	input := talker{to: pipes.In, says: make(chan any, 16)}
	var hand sync.WaitGroup
	hand.Go(input.run)
	defer hand.Wait()
	defer input.stop()

	s := conversation{launch: l, say: input.say, now: time.Now}
	s.say(command{ID: askState, Type: "get_state"})
	s.say(command{ID: askPrompt, Type: "prompt", Message: prompt(l.Request.Prompt)})
	for !s.ended {
		select {
		case <-ctx.Done():
			return s.conclude()
		case line, open := <-pipes.Lines:
			if !open {
				return s.conclude()
			}
			if s.take(line) {
				seen(s.progress)
			}
		}
	}
	return s.conclude()
}

// prompt keeps a prompt that opens with a slash from being run as a command.
func prompt(text string) string {
	if strings.HasPrefix(text, "/") {
		return "\n" + text
	}
	return text
}

// command is a record of the CLI's input.
type command struct {
	ID        string `json:"id"`
	Type      string `json:"type"`
	Message   string `json:"message,omitempty"`
	Cancelled bool   `json:"cancelled,omitempty"`
}

// talker writes commands, so that a CLI that does not read keeps nobody waiting.
type talker struct {
	to   io.WriteCloser
	says chan any
}

func (t *talker) run() {
	broken := false
	for c := range t.says {
		data, err := json.Marshal(c)
		if err == nil && !broken {
			_, err = t.to.Write(append(data, '\n'))
		}
		broken = broken || err != nil // the CLI went away, and its output says so
	}
}

// say gives one command. A CLI that takes none for so long misses it.
func (t *talker) say(c any) {
	select {
	case t.says <- c:
	default:
	}
}

// stop closes the CLI's input, which also ends a write that waits.
func (t *talker) stop() {
	_ = t.to.Close() // it may be closed already
	close(t.says)
}

// conversation is what was learned from the records so far.
type conversation struct {
	launch agent.Launch
	say    func(any)
	now    func() time.Time

	progress agent.Progress
	ledger   stream.Ledger
	notes    stream.Notes

	priced  bool   // the turn's model has a price
	model   string // the last one that answered
	last    message
	any     bool // there is a last message
	limited time.Time
	stopped bool // at the limit of turns

	events  int
	skipped int // lines that are no record
	cut     int // lines of which only the head is known

	ended    bool
	rejected string // why the prompt was not taken
	handled  bool   // the prompt was taken for something else
	missing  string // packages that could not be fetched
}

// take learns from one line and says whether the progress changed.
func (s *conversation) take(line agent.Line) bool {
	var e event
	switch ok := stream.Object(line, &e); {
	case line.Cut:
		s.cut++
		if !ok {
			e = event{}
		}
	case stream.Blank(line):
		return false
	case !ok || e.Type == "":
		s.skipped++
		return false
	}
	s.events++
	switch e.Type {
	case "response":
		return s.response(e)
	case "session":
		return s.named(e.ID) // of JSON mode, which captures are of
	case "extension_ui_request":
		return s.extension(e)
	case "extension_error":
		s.notes.Add("pi: an extension failed: %s", e.Error)
	case "turn_start":
		// The extension stops at the limit before there is another turn.
		if most := s.launch.Request.Profile.MaxTurns; most > 0 && s.progress.Turns >= most && !s.stopped {
			s.stopped = true
			s.say(command{ID: askAbort, Type: "abort"})
		}
	case "message_end":
		return s.message(e.Message)
	case "tool_execution_start":
		s.progress.ToolCalls++
		return true
	case "tool_execution_end":
		// A built-in tool's failure is part of the agent's work; a server's is for its
		// owner to know.
		if e.IsError && strings.HasPrefix(e.ToolName, agent.MCPToolPrefix) {
			s.notes.Add("MCP call of %s failed: %s", stream.Clip(e.ToolName), message{Content: e.Result.Content}.text())
		}
	case "compaction_end":
		return s.consumed(s.model, e.Result.Usage)
	case "agent_settled":
		s.ended = true
		return true
	case "":
		// Cut before it said what it is. A tool call is the one thing that must not be
		// overlooked: without any, a turn counts as having changed nothing.
		s.progress.ToolCalls++
		return true
	}
	return false
}

func (s *conversation) response(e event) bool {
	switch e.Command {
	case "get_state":
		if !e.Success {
			break
		}
		price := e.Data.Model.Cost
		s.priced = price.Input > 0 || price.Output > 0 || price.CacheRead > 0 || price.CacheWrite > 0
		s.model = e.Data.Model.Provider + "/" + e.Data.Model.ID
		if asked, got := s.launch.Request.Profile.Effort, e.Data.ThinkingLevel; asked != "" && got != "" && asked != got {
			s.notes.Add("effort %q is not among the model's, it thinks at %q", asked, stream.Clip(got))
		}
		if id := s.launch.Request.ResumeID; id != "" && e.Data.MessageCount == 0 {
			s.notes.Add("conversation %s was not found and begins anew under its id", id)
		}
		return s.named(e.Data.SessionID)
	case "prompt":
		switch {
		case !e.Success:
			s.rejected, s.ended = e.Error, true
		case e.Data.Disposition == "handled":
			s.handled, s.ended = true, true
		}
		return s.ended
	}
	if !e.Success {
		s.notes.Add("pi: %s: %s", stream.Clip(e.Command), e.Error)
	}
	return false
}

func (s *conversation) named(id string) bool {
	if id = stream.Clip(id); id == "" || id == s.progress.Conversation {
		return false
	}
	s.progress.Conversation = id
	return true
}

// extension takes what an extension wants to show a person.
func (s *conversation) extension(e event) bool {
	switch e.Method {
	case "select", "confirm", "input", "editor":
		s.notes.Add("pi: nobody is there to answer a question of an extension")
		s.say(command{ID: e.ID, Type: "extension_ui_response", Cancelled: true})
	case "notify":
		if e.NotifyType == "warning" || e.NotifyType == "error" {
			s.notes.Add("pi: %s", e.Message.bare)
		}
	case "setStatus":
		return s.status(e.StatusKey, e.StatusText)
	}
	return false
}

// status takes what our own extension tells.
func (s *conversation) status(key, text string) bool {
	switch key {
	case statusVersion:
		s.progress.AgentVersion = stream.Clip(text)
		// A progress that does not say of which conversation is of no use yet.
		return s.progress.Conversation != ""
	case statusLimit:
		var l limit
		s.limited = time.Time{}
		if text != "" && json.Unmarshal([]byte(text), &l) == nil {
			s.limited = l.until(s.now())
		}
	case statusTurns:
		s.stopped = true
	case statusMissing:
		s.missing = text
	}
	return false
}

func (s *conversation) message(m message) bool {
	if m.Role != "assistant" {
		// A tool may have asked a model as well.
		return s.consumed(s.model, m.Usage)
	}
	s.last, s.any = m, true
	if m.Model != "" {
		s.model = m.Provider + "/" + m.Model
	}
	s.consumed(s.model, m.Usage)
	if m.StopReason != "error" && m.StopReason != "aborted" {
		s.progress.Turns++ // each has its turn_end, once its tools are done
	}
	return true
}

func (s *conversation) consumed(model string, u *usage) bool {
	told, any := u.told(s.priced)
	if !any {
		return false
	}
	s.ledger.Add(model, told)
	s.progress.CostUSD, s.progress.CostKnown = s.ledger.Cost()
	return true
}

// conclude says what the stream, as far as it came, proved.
func (s *conversation) conclude() agent.Conversation {
	if s.skipped > 0 {
		s.notes.Add("%d lines of the agent's output were no records and were skipped", s.skipped)
	}
	if s.cut > 0 {
		s.notes.Add("%d lines of the agent's output were too long and were cut", s.cut)
	}
	c := agent.Conversation{Ended: s.ended, Models: s.ledger.Models()}
	switch {
	case s.ended:
		s.judge(&c)
	case s.events == 0 && s.skipped > 0:
		c.IsError, c.ErrorSubtype = true, agent.SubtypeProtocol
	default:
		c.IsError, c.ErrorSubtype = true, agent.SubtypeNoResult
	}
	c.Progress, c.Diagnostics = s.progress, s.notes.Lines()
	return c
}

// judge says how a turn that ended did.
func (s *conversation) judge(c *agent.Conversation) {
	fail := func(subtype, format string, args ...any) {
		c.IsError, c.ErrorSubtype = true, subtype
		s.notes.Add(format, args...)
	}
	c.ResultText = s.last.text()
	switch why := s.last.StopReason; {
	case s.rejected != "":
		fail(subtypeRejected, "pi: %s", s.rejected)
		c.Failure = classify(s.rejected, 0)
	case s.missing != "":
		// Who keeps packages may be away as a provider may be. Nothing was asked yet.
		fail(subtypeMissing, "packages could not be fetched: %s", s.missing)
		c.Failure = agent.FailureOverloaded
	case s.handled:
		fail(agent.SubtypeProtocol, "pi took the prompt for a command of its own")
	case s.stopped:
		fail(subtypeMaxTurns, "stopped at the limit of %d turns", s.launch.Request.Profile.MaxTurns)
	case !s.any:
		fail(agent.SubtypeProtocol, "pi settled without an answer")
	case why == "error":
		fail("error", "%s", s.last.ErrorMessage)
		s.blame(c)
	case why != "stop":
		fail(stream.Clip(fmt.Sprintf("stopped_%s", why)), "the model's last message ended with %q", why)
	}
}

// blame says what a failed request was about.
func (s *conversation) blame(c *agent.Conversation) {
	until := s.limited
	if told := resetIn(s.last.ErrorMessage); !told.IsZero() {
		until = told
	}
	away := time.Duration(0)
	if !until.IsZero() {
		away = until.Sub(s.now())
	}
	c.Failure = classify(s.last.ErrorMessage, away)
	if c.Failure == agent.FailureLimited && !until.IsZero() {
		s.progress.RateLimit = &agent.RateLimit{Status: "rejected", ResetsAt: until}
	}
}
