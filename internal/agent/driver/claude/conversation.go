package claude

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"turnpike/internal/agent"
)

// Bounds on what a stream may make the worker keep.
const (
	maxDiagnostics = 64
	maxDiagnostic  = 512 // bytes
	maxCalls       = 256 // MCP calls without an answer yet
)

// Converse follows the stream to its end, or until the CLI lingers after a result.
func (d Driver) Converse(ctx context.Context, l agent.Launch, io agent.Pipes, seen func(agent.Progress)) agent.Conversation {
	s := stream{resumed: l.Request.ResumeID != "", repeats: d.retries() > 0}
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

// stream is what was learned from the events so far.
type stream struct {
	resumed bool // the conversation has earlier runs
	repeats bool // the CLI may repeat requests

	progress    agent.Progress
	models      map[string]agent.Usage
	diagnostics []string

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
func (s *stream) take(line agent.Line) bool {
	if line.Cut {
		s.cut++
	}
	e, ok := parse(line)
	if !ok {
		if len(bytes.TrimSpace(line.Text)) > 0 {
			s.skipped++
		}
		return false
	}
	s.events++
	changed := false
	if id := clip(e.SessionID); id != "" && e.Type != "result" && s.progress.Conversation != id {
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

func (s *stream) system(e event) bool {
	switch e.Subtype {
	case "init":
		for _, m := range e.MCPServers {
			if m.Status != "connected" && m.Status != "pending" {
				s.diagnose("MCP server %s: %s", clip(m.Name), clip(m.Status))
			}
		}
		if v := clip(e.Version); v != "" && v != s.progress.AgentVersion {
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

func (s *stream) assistant(e event, cut bool) bool {
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
			s.calls[b.ID] = clip(b.Name)
		}
	}
	return changed
}

// results looks for MCP calls that failed. A built-in tool's failure is part of the
// agent's work; a server's is for its owner to know.
func (s *stream) results(content blocks) {
	for _, b := range content {
		tool, ours := s.calls[b.ToolUseID]
		if b.Type != "tool_result" || !ours {
			continue
		}
		delete(s.calls, b.ToolUseID)
		if b.IsError {
			s.diagnose("MCP call of %s failed: %s", tool, string(b.Content))
		}
	}
}

// end takes one result. Another may follow.
func (s *stream) end(e event, cut bool) {
	s.ended, s.result = true, e
	if e.NumTurns != nil {
		s.progress.Turns = max(s.progress.Turns, int(count(*e.NumTurns)))
	}
	for _, d := range e.Denials {
		s.diagnose("permission denied: %s", clip(d.Tool))
	}
	for _, text := range e.Errors {
		s.diagnose("%s", text)
	}
	if cut && e.Result == nil {
		s.diagnose("the result was too long a line to be kept; its text is lost")
	}
	switch total, told := money(e.TotalCost); {
	case e.SinceLast != nil:
		for model, told := range e.SinceLast {
			s.add(model, told.told())
		}
		s.progress.CostUSD, s.progress.CostKnown = 0, true
		for _, u := range s.models {
			if u.CostUSD == nil {
				s.progress.CostKnown = false
				continue
			}
			s.progress.CostUSD += *u.CostUSD
		}
	case s.resumed && total > 0:
		// Releases before 2.1.332 tell only what all runs cost together.
	case told:
		s.progress.CostUSD, s.progress.CostKnown = total, true
		s.models = nil
		for model, told := range e.ModelUsage {
			s.add(model, told.told())
		}
	}
}

func (s *stream) add(model string, u agent.Usage) {
	if s.models == nil {
		s.models = map[string]agent.Usage{}
	}
	model = clip(model)
	sum := s.models[model]
	if _, there := s.models[model]; !there {
		sum.CostUSD = u.CostUSD
	} else if sum.CostUSD != nil && u.CostUSD != nil {
		cost := *sum.CostUSD + *u.CostUSD
		sum.CostUSD = &cost
	} else {
		sum.CostUSD = nil
	}
	sum.InputTokens += u.InputTokens
	sum.OutputTokens += u.OutputTokens
	sum.CacheReadTokens += u.CacheReadTokens
	sum.CacheWriteTokens += u.CacheWriteTokens
	sum.ReasoningTokens += u.ReasoningTokens
	s.models[model] = sum
}

// diagnose keeps one line for a person, once.
func (s *stream) diagnose(format string, args ...any) {
	line := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	if len(line) > maxDiagnostic {
		line = strings.ToValidUTF8(line[:maxDiagnostic], "") + " ..."
	}
	for _, told := range s.diagnostics {
		if told == line {
			return
		}
	}
	if len(s.diagnostics) < maxDiagnostics {
		s.diagnostics = append(s.diagnostics, line)
	}
}

// conclude says what the stream, as far as it came, proved.
func (s *stream) conclude() agent.Conversation {
	if s.skipped > 0 {
		s.diagnose("%d lines of the agent's output were no events and were skipped", s.skipped)
	}
	if s.cut > 0 {
		s.diagnose("%d lines of the agent's output were too long and were cut", s.cut)
	}
	c := agent.Conversation{Progress: s.progress, Ended: s.ended, Models: s.models, Diagnostics: s.diagnostics}
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
func (s *stream) judge(c *agent.Conversation) {
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
		c.ErrorSubtype = clip(r.Subtype)
	case r.TerminalReason != "":
		c.ErrorSubtype = clip(r.TerminalReason)
	default:
		c.ErrorSubtype = "error"
	}
	f := failure{
		status: int(count(r.APIStatus)), kind: r.APIType, code: r.APIError, reason: r.TerminalReason, errors: r.Errors,
		word: s.failed.Error, resumed: s.resumed,
		blocked: s.progress.RateLimit.Blocking(), gaveUp: s.repeats && s.limitTries == 0,
	}
	if f.status == 0 {
		f.status = int(count(s.failed.APIStatus))
	}
	if f.code == "" {
		f.code = s.failed.APIError
	}
	c.Failure = f.classify()
}
