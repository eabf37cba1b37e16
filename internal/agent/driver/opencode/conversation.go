package opencode

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/stream"
)

// Subtypes of errors, beside the runner's and the CLI's own names of them.
const (
	subtypeMaxTurns = "error_max_turns"
	subtypeProvider = "provider"
	subtypeUnknown  = "unknown_conversation"
)

// Why the plugin stops a turn.
const (
	stopTurns = "turns"
	stopLoop  = "loop"
)

// mostBroken is how many steps without an answer, one after the other, are let pass
// beyond the retries where the plugin does not count them.
const mostBroken = 5

// Converse follows the stream to its end. It gives up before that when the CLI does not
// come to ask its provider, or when a bound is passed that the plugin should have kept.
func (d Driver) Converse(ctx context.Context, l agent.Launch, io agent.Pipes, seen func(agent.Progress)) agent.Conversation {
	s := conversation{launch: l, most: d.retries() + mostBroken, needsPlugin: d.rules(l).needed(), now: time.Now, model: cmp.Or(l.Request.Profile.Model, "unknown")}
	start := time.NewTimer(d.start())
	defer start.Stop()
	for !s.over() {
		select {
		case <-ctx.Done():
			return s.conclude()
		case <-start.C:
			s.giveUp(agent.SubtypeFirstEvent, "the CLI did not come to ask its provider within %s", d.start())
		case line, open := <-io.Lines:
			if !open {
				s.drained = true
				return s.conclude()
			}
			if s.take(line) {
				seen(s.progress)
			}
			if s.asked {
				start.Stop()
			}
		}
	}
	return s.conclude()
}

// conversation is what was learned from the events so far.
type conversation struct {
	launch      agent.Launch
	most        int // steps without an answer, one after the other
	needsPlugin bool
	now         func() time.Time

	progress agent.Progress
	ledger   stream.Ledger
	notes    stream.Notes

	model  string // of the turn's own session
	priced bool

	hello   bool     // the plugin is there
	asked   bool     // the provider was, or an error came before that
	open    bool     // a step began that did not end
	finish  string   // why the last step stopped; empty before the first did, and while one runs
	texts   []string // of the last step
	failed  *failure // the error that came last, if no step finished after it
	broken  int      // steps without an answer, since there was one
	stopped *stop
	exited  bool
	code    int64
	drained bool // the output came to its end

	gaveUp string // the subtype for it

	events  int
	skipped int // lines that are no event
	cut     int // lines of which only the head is known
}

func (s *conversation) over() bool { return s.exited || s.gaveUp != "" }

func (s *conversation) giveUp(subtype, format string, args ...any) {
	s.gaveUp = subtype
	s.notes.Add(format, args...)
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
	if e.Type == "turnpike" {
		return s.told(e)
	}
	changed := s.named(e.SessionID)
	if s.needsPlugin && !s.hello && e.Type != "error" {
		s.giveUp(agent.SubtypeProtocol, "the plugin that holds the turn to its tools and its limit of turns was not loaded")
		return changed
	}
	switch e.Type {
	case "step_start":
		s.asked, s.open, s.finish, s.texts = true, true, "", nil
		s.breaks()
	case "text":
		s.texts = append(s.texts, e.Part.Text)
	case "tool_use":
		s.broken = 0
		s.toolDone(e)
		if !s.hello {
			s.progress.ToolCalls++
			changed = true
		}
	case "step_finish":
		s.stepDone(e)
		changed = true
	case "error":
		s.asked, s.open, s.failed = true, false, &e.Error
	case "":
		// Cut before it said what it is. A tool call is the one thing that must not be
		// overlooked: without any, a turn counts as having changed nothing.
		s.progress.ToolCalls++
		changed = true
	}
	return changed
}

// breaks counts one more step that is yet to bring an answer.
func (s *conversation) breaks() {
	if s.broken++; s.broken > s.most {
		s.giveUp(agent.SubtypeProtocol, "the CLI asks its provider again and again without an answer")
	}
}

// told takes what the plugin tells.
func (s *conversation) told(e event) bool {
	changed := false
	switch {
	case e.Hello:
		s.hello = true
	case e.Session != "":
		return s.named(e.Session)
	case e.Model != nil:
		s.model, s.priced = stream.Clip(e.Model.Name), e.Model.Priced
	case e.Asking != nil:
		s.asked = true
		for _, m := range e.Asking.Servers {
			if m.Status != "connected" && m.Status != "disabled" {
				s.notes.Add("MCP server %s: %s: %s", stream.Clip(m.Name), stream.Clip(m.Status), m.Error)
			}
		}
		if effort := s.launch.Request.Profile.Effort; effort != "" && !slices.Contains(e.Asking.Efforts, effort) {
			s.notes.Add("effort %q is not among the model's: %s", effort, stream.Clip(strings.Join(e.Asking.Efforts, ", ")))
		}
		s.progress.AgentVersion = stream.Clip(e.Asking.Version)
		return true
	case e.Kept != "":
		s.notes.Add("code that the workspace would have the CLI run was kept out: %s", e.Kept)
	case e.Lost != "":
		s.notes.Add("the conversation's file: %s", e.Lost)
	case e.Tool != "":
		s.progress.ToolCalls++
		changed = true
	case e.Spent != nil:
		changed = s.consumed(cmp.Or(e.Spent.Model, s.model), e.Spent.Tokens, e.Spent.Cost, e.Spent.Priced)
	case e.Stop != nil:
		s.stopped = e.Stop
	case e.Exit != nil:
		s.exited, s.code = true, stream.Count(e.Exit.Code)
	}
	return changed
}

func (s *conversation) named(id string) bool {
	if id = stream.Clip(id); id == "" || id == s.progress.Conversation {
		return false
	}
	s.progress.Conversation = id
	return true
}

// toolDone looks for MCP calls that failed. A built-in tool's failure is part of the
// agent's work; a server's is for its owner to know.
func (s *conversation) toolDone(e event) {
	if e.Part.State.Status != "error" {
		return
	}
	ours := func(server string) bool { return strings.HasPrefix(e.Part.Tool, server+"_") }
	if slices.ContainsFunc(slices.Collect(maps.Keys(s.launch.MCP)), ours) {
		s.notes.Add("MCP call of %s failed: %s", stream.Clip(e.Part.Tool), e.Part.State.Error)
	}
}

func (s *conversation) stepDone(e event) {
	s.open, s.finish, s.failed = false, cmp.Or(e.Part.Reason, "unknown"), nil
	if s.finish != "unknown" {
		s.broken = 0
		s.progress.Turns++
	}
	s.consumed(s.model, e.Part.Tokens, e.Part.Cost, s.priced)
}

func (s *conversation) consumed(model string, t tokens, cost float64, priced bool) bool {
	told, any := t.told(cost, priced)
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
		s.notes.Add("%d lines of the agent's output were no events and were skipped", s.skipped)
	}
	if s.cut > 0 {
		s.notes.Add("%d lines of the agent's output were too long and were cut", s.cut)
	}
	c := agent.Conversation{Models: s.ledger.Models(), ResultText: strings.Join(s.texts, "\n")}
	s.judge(&c)
	c.Progress, c.Diagnostics = s.progress, s.notes.Lines()
	return c
}

func (s *conversation) judge(c *agent.Conversation) {
	fail := func(subtype string) { c.IsError, c.ErrorSubtype = true, subtype }
	c.Ended = s.exited
	switch {
	case s.gaveUp != "":
		fail(s.gaveUp)
		if s.broken > s.most {
			c.Failure = agent.FailureOverloaded
		}
	case s.stopped != nil:
		s.halted(c)
	case s.failed != nil:
		fail(cmp.Or(stream.Clip(s.failed.Name), "error"))
		s.notes.Add("%s: %s", stream.Clip(s.failed.Name), s.failed.Data.Message)
		c.Failure, s.progress.RateLimit = s.failed.classify(s.now())
	case s.finish == "stop" && (s.exited && s.code == 0 || s.drained):
		c.Ended = true // there is no other word for it
	case s.exited && s.launch.Request.ResumeID != "" && s.progress.Conversation == "":
		// It looks for the conversation first, and says only on its stderr that there is none.
		fail(subtypeUnknown)
		c.Failure = agent.FailureResume
	case s.exited && s.finish != "" && s.finish != "stop":
		fail(stream.Clip("stopped_" + s.finish))
	case s.events == 0 && s.skipped > 0:
		fail(agent.SubtypeProtocol)
	default:
		fail(agent.SubtypeNoResult)
	}
	if !s.hello && s.open {
		// Without the plugin nothing says that a tool began. One may have.
		s.progress.ToolCalls++
	}
}

// halted says how a turn did that the plugin stopped.
func (s *conversation) halted(c *agent.Conversation) {
	c.IsError = true
	c.Failure, s.progress.RateLimit = s.stopped.classify(s.now())
	switch s.stopped.Why {
	case stopTurns:
		c.ErrorSubtype = subtypeMaxTurns
		s.notes.Add("stopped at the limit of %d turns", s.launch.Request.Profile.MaxTurns)
	case stopLoop:
		c.ErrorSubtype = agent.SubtypeProtocol
		s.notes.Add("stopped after requests that brought neither an answer nor a tool call")
	default:
		c.ErrorSubtype = subtypeProvider
		s.notes.Add("%s", cmp.Or(s.stopped.Message, fmt.Sprintf("stopped: %s", s.stopped.Why)))
	}
}
