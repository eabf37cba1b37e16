package claude

import (
	"context"
	"strings"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/stream"
)

// maxCalls is how many MCP calls without an answer yet a stream may make the worker keep.
const maxCalls = 256

// Converse follows the stream to its end, or until the CLI lingers after a result.
func (d Driver) Converse(ctx context.Context, l agent.Launch, io agent.Pipes, seen func(agent.Progress)) agent.Conversation {
	s := conversation{resumed: l.Request.ResumeID != "", repeats: d.retries() > 0}
	linger := time.NewTimer(d.linger())
	linger.Stop()
	for {
		select {
		case <-ctx.Done():
			return s.conclude()
		case <-linger.C:
			return s.conclude()
		case line, open := <-io.Lines:
			if !open {
				return s.conclude()
			}
			if s.take(line) {
				seen(s.progress)
			}
			if s.ended {
				linger.Reset(d.linger())
			}
		}
	}
}

// conversation is what was learned from the events so far.
type conversation struct {
	resumed bool // the conversation has earlier runs
	repeats bool // the CLI may repeat requests

	progress agent.Progress
	ledger   stream.Ledger
	notes    stream.Notes

	lastMessage string            // id of the last message of the agent itself
	calls       map[string]string // MCP calls under way: id to tool
	events      int
	skipped     int // lines that are no event
	cut         int // lines of which only the head is known

	failed     event // the last request's failure, when it failed
	limitTries int   // how often a 429 was repeated

	ended  bool
	result event
}

// take learns from one line and says whether the progress changed.
func (s *conversation) take(line agent.Line) bool {
	if line.Cut {
		s.cut++
	}
	e, ok := parse(line)
	if !ok {
		if !stream.Blank(line) {
			s.skipped++
		}
		return false
	}
	s.events++
	changed := false
	if id := stream.Clip(e.SessionID); id != "" && e.Type != "result" && s.progress.Conversation != id {
		// The result that says that there is no such conversation bears an id too,
		// of one that never was.
		s.progress.Conversation, changed = id, true
	}
	switch e.Type {
	case "system":
		return s.system(e) || changed
	case "assistant":
		return s.assistant(e, line.Cut) || changed
	case "user":
		s.results(e.Message.Content)
	case "rate_limit_event":
		if e.RateLimit != nil {
			s.progress.RateLimit = e.RateLimit.told()
			return true
		}
	case "result":
		s.end(e, line.Cut)
		return true
	case "":
		// Cut before it said what it is. A tool call is the one thing that must
		// not be overlooked: without any, a turn counts as having changed nothing.
		s.progress.ToolCalls++
		return true
	}
	return changed
}

func (s *conversation) system(e event) bool {
	switch e.Subtype {
	case "init":
		for _, m := range e.MCPServers {
			if m.Status != "connected" && m.Status != "pending" {
				s.notes.Add("MCP server %s: %s", stream.Clip(m.Name), stream.Clip(m.Status))
			}
		}
		if v := stream.Clip(e.Version); v != "" && v != s.progress.AgentVersion {
			s.progress.AgentVersion = v
			return true
		}
	case "api_retry":
		if e.ErrorStatus == 429 {
			s.limitTries++
		}
	}
	return false
}

// synthetic is the model of messages that the CLI makes up.
const synthetic = "<synthetic>"

func (s *conversation) assistant(e event, cut bool) bool {
	changed := false
	own := e.Parent == ""
	if own {
		s.failed = event{}
		if e.Error != "" {
			s.failed = e
		}
	}
	if own && e.Message.Model != synthetic && e.Message.ID != "" && e.Message.ID != s.lastMessage {
		s.lastMessage = e.Message.ID
		s.progress.Turns++
		changed = true
	}
	if cut && len(e.Message.Content) == 0 {
		// What makes a message long is what a tool is to write.
		s.progress.ToolCalls++
		changed = true
	}
	for _, b := range e.Message.Content {
		if b.Type != "tool_use" {
			continue
		}
		s.progress.ToolCalls++
		changed = true
		if strings.HasPrefix(b.Name, agent.MCPToolPrefix) && b.ID != "" && len(s.calls) < maxCalls {
			if s.calls == nil {
				s.calls = map[string]string{}
			}
			s.calls[b.ID] = stream.Clip(b.Name)
		}
	}
	return changed
}

// results looks for MCP calls that failed. A built-in tool's failure is part of the
// agent's work; a server's is for its owner to know.
func (s *conversation) results(content blocks) {
	for _, b := range content {
		tool, ours := s.calls[b.ToolUseID]
		if b.Type != "tool_result" || !ours {
			continue
		}
		delete(s.calls, b.ToolUseID)
		if b.IsError {
			s.notes.Add("MCP call of %s failed: %s", tool, string(b.Content))
		}
	}
}

// end takes one result. Another may follow.
func (s *conversation) end(e event, cut bool) {
	s.ended, s.result = true, e
	if e.NumTurns != nil {
		s.progress.Turns = max(s.progress.Turns, int(stream.Count(*e.NumTurns)))
	}
	for _, d := range e.Denials {
		s.notes.Add("permission denied: %s", stream.Clip(d.Tool))
	}
	for _, text := range e.Errors {
		s.notes.Add("%s", text)
	}
	if cut && e.Result == nil {
		s.notes.Add("the result was too long a line to be kept; its text is lost")
	}
	switch total, told := money(e.TotalCost); {
	case e.SinceLast != nil:
		for model, told := range e.SinceLast {
			s.ledger.Add(model, told.told())
		}
		if s.progress.CostUSD, s.progress.CostKnown = s.ledger.Cost(); s.ledger.Models() == nil {
			s.progress.CostKnown = true // nothing was used
		}
	case s.resumed && total > 0:
		// Releases before 2.1.332 tell only what all runs cost together.
	case told:
		s.progress.CostUSD, s.progress.CostKnown = total, true
		s.ledger = stream.Ledger{}
		for model, told := range e.ModelUsage {
			s.ledger.Add(model, told.told())
		}
	}
}

// conclude says what the stream, as far as it came, proved.
func (s *conversation) conclude() agent.Conversation {
	if s.skipped > 0 {
		s.notes.Add("%d lines of the agent's output were no events and were skipped", s.skipped)
	}
	if s.cut > 0 {
		s.notes.Add("%d lines of the agent's output were too long and were cut", s.cut)
	}
	c := agent.Conversation{Progress: s.progress, Ended: s.ended, Models: s.ledger.Models(), Diagnostics: s.notes.Lines()}
	switch {
	case s.ended:
		s.judge(&c)
	case s.events == 0 && s.skipped > 0:
		c.IsError, c.ErrorSubtype = true, agent.SubtypeProtocol
	default:
		c.IsError, c.ErrorSubtype = true, agent.SubtypeNoResult
	}
	return c
}

// judge reads the last result. "success" is its subtype even when it is an error, so
// is_error goes first.
func (s *conversation) judge(c *agent.Conversation) {
	r := s.result
	if r.Result != nil {
		c.ResultText = *r.Result
	}
	succeeded := r.Subtype == "success" || r.Subtype == ""
	c.IsError = r.IsError || !succeeded
	if !c.IsError {
		return
	}
	switch {
	case !succeeded:
		c.ErrorSubtype = stream.Clip(r.Subtype)
	case r.TerminalReason != "":
		c.ErrorSubtype = stream.Clip(r.TerminalReason)
	default:
		c.ErrorSubtype = "error"
	}
	f := failure{
		status: int(stream.Count(r.APIStatus)), kind: r.APIType, code: r.APIError, reason: r.TerminalReason, errors: r.Errors,
		word: s.failed.Error, resumed: s.resumed,
		blocked: s.progress.RateLimit.Blocking(), gaveUp: s.repeats && s.limitTries == 0,
	}
	if f.status == 0 {
		f.status = int(stream.Count(s.failed.APIStatus))
	}
	if f.code == "" {
		f.code = s.failed.APIError
	}
	c.Failure = f.classify()
}
