package codex

import (
	"maps"
	"slices"
	"strings"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/stream"
)

// Bounds on what a stream may make the worker keep.
const (
	maxItems = 256  // tools under way
	maxSay   = 1024 // answers the server does not read
)

// Subtypes of a turn's end, beside the server's own kinds of error.
const (
	// subtypeMaxTurns is the word of the CLI that has a limit of turns of its own.
	subtypeMaxTurns = "error_max_turns"
	subtypeRefused  = "error_refused" // the server answered one of our requests with an error
	subtypeFailed   = "error"
	subtypeWaiting  = "retry_timeout" // the provider asked for too long a wait
)

// stop is why the driver broke the turn off.
type stop int

const (
	stopNone stop = iota
	stopCancelled
	stopMaxTurns
	stopWaited
)

// talk is what was learned from the messages so far, and what is to be said.
type talk struct {
	launch agent.Launch
	say    [][]byte

	// Occasions for alarms, see alarm.keep.
	throttled, throttles int // the provider asked for a pause
	awaited              int // the turn is yet to start
	over                 int // nothing more is to be expected

	progress agent.Progress
	usage    stream.Ledger
	notes    stream.Notes
	messages int
	skipped  int // lines that are no message
	cut      int // lines of which only the head is known

	greeted      bool // the server knows us
	thread, turn string
	instructing  bool // the turn's instructions are yet to be taken
	model        string
	servers      map[string]bool // by name: not started yet
	before       *tokens         // the last total; nil while none was told
	tools        map[string]bool // by item: tools under way
	// Of the response that is being told of: did it begin, say and call something?
	responding, spoke, acted bool
	text                     string

	stopped stop
	ended   bool
	status  string  // of the turn
	failed  problem // the turn's, the last retry's, or the answer to our request
	fatal   bool    // it was not to be repeated
	refused int     // our request that was answered with an error
}

func newTalk(l agent.Launch) *talk {
	s := &talk{launch: l, servers: map[string]bool{}, tools: map[string]bool{}, model: l.Request.Profile.Model}
	for name := range l.MCP {
		s.servers[name] = true
	}
	s.ask(askInitialize, methodInitialize, object{
		"clientInfo": object{"name": provider, "title": nil, "version": "1"},
	})
	return s
}

type object = map[string]any

func (s *talk) ask(id int, method string, params object) {
	s.say = append(s.say, encode(object{"id": id, "method": method, "params": params}))
}

// stray are the skills that the CLI found elsewhere, in the workspace above all.
func (s *talk) stray(found result) []any {
	var off []any
	for _, dir := range found.Data {
		for _, skill := range dir.Skills {
			if !slices.ContainsFunc(s.launch.Skills, func(own string) bool { return agent.Inside(skill.Path, own) }) {
				off = append(off, object{"path": skill.Path, "enabled": false})
			}
		}
	}
	return off
}

// startThread starts or continues the conversation. Its sandbox holds no turn: it
// keeps the server from trusting the workspace. Off are the skills it is not offered.
func (s *talk) startThread(off []any) {
	r := s.launch.Request
	p := object{"cwd": s.launch.WorkDir, "approvalPolicy": "never", "sandbox": "read-only"}
	if r.Profile.Model != "" {
		p["model"] = r.Profile.Model
	}
	if len(off) > 0 {
		p["config"] = object{"skills": object{"config": off}}
	}
	if r.ResumeID == "" {
		if r.SystemPrompt != "" {
			p["developerInstructions"] = r.SystemPrompt
		}
		s.ask(askThread, methodThreadStart, p)
		return
	}
	p["threadId"] = r.ResumeID
	p["excludeTurns"] = true // or all of the conversation comes back in one line
	s.ask(askThread, methodThreadResume, p)
}

// replacing opens the system prompt of a turn that continues a conversation.
const replacing = "These instructions replace the ones given earlier in this conversation by the same source:\n\n"

// instruct gives a conversation that goes on the system prompt of this turn. The CLI
// takes instructions for a thread only when it begins, and drops later ones without a
// word; the first ones stay in the conversation for ever.
func (s *talk) instruct() {
	r := s.launch.Request
	if r.ResumeID == "" || r.SystemPrompt == "" {
		return
	}
	s.instructing = true
	s.ask(askInject, methodInject, object{"threadId": s.thread, "items": []any{object{
		"type": "message", "role": "developer",
		"content": []any{object{"type": "input_text", "text": replacing + r.SystemPrompt}},
	}}})
}

// startTurn gives the thread its turn, once.
func (s *talk) startTurn() {
	s.awaited = 0
	for _, name := range slices.Sorted(maps.Keys(s.servers)) {
		s.notes.Add("MCP server %s: it did not start in time", name)
	}
	r := s.launch.Request
	p := object{
		"threadId":       s.thread,
		"input":          []any{object{"type": "text", "text": r.Prompt}},
		"approvalPolicy": "never",
	}
	if !toolless(s.launch) {
		p["sandboxPolicy"] = object{"type": "dangerFullAccess"}
	}
	if r.Profile.Effort != "" {
		p["effort"] = r.Profile.Effort
	}
	s.ask(askTurn, methodTurnStart, p)
}

// interrupt breaks the turn off, for the first reason that was given.
func (s *talk) interrupt(why stop) {
	if s.stopped != stopNone || s.ended {
		return
	}
	s.stopped, s.throttled, s.over = why, 0, 1
	if s.turn != "" {
		s.ask(askInterrupt, methodInterrupt, object{"threadId": s.thread, "turnId": s.turn})
	}
}

// take learns from one line and says whether the progress changed.
func (s *talk) take(line agent.Line) bool {
	if line.Cut {
		s.cut++
	}
	m, ok := parse(line)
	if !ok {
		if !stream.Blank(line) {
			s.skipped++
		}
		return false
	}
	s.messages++
	switch {
	case m.request():
		s.answer(m)
		return false
	case m.Method == "":
		return s.answered(m)
	}
	p := m.Params
	own := p.ThreadID == "" || p.ThreadID == s.thread
	if own && strings.HasPrefix(m.Method, "item/") {
		s.throttled = 0 // what the CLI waited for has come
	}
	switch m.Method {
	case "item/started", "item/completed":
		return s.item(p.Item, own, m.Method == "item/completed", line.Cut)
	case "thread/tokenUsage/updated":
		if own {
			return s.used(p)
		}
	case "model/rerouted":
		if own && p.ToModel != "" {
			s.model = p.ToModel
		}
	case "mcpServer/startupStatus/updated":
		s.server(p)
	case "account/rateLimits/updated":
		if told := p.RateLimits.told(); told != nil {
			s.progress.RateLimit = told
			return true
		}
	case "error":
		if own {
			s.trouble(p)
		}
	case "turn/started":
		if own && s.turn == "" {
			s.turn = stream.Clip(p.Turn.ID)
		}
	case "turn/completed":
		if own && (s.turn == "" || p.Turn.ID == "" || stream.Clip(p.Turn.ID) == s.turn) {
			s.end(p.Turn, line.Cut)
			return true
		}
	}
	return false
}

// answered takes the answer to one of our requests.
func (s *talk) answered(m message) bool {
	id := m.reply()
	if m.Error != nil && id == askName {
		return false // the turn goes on as well without
	}
	if m.Error != nil && id != 0 && id != askInterrupt && !s.ended {
		s.refused, s.failed = id, *m.Error
		s.ended, s.over = true, 1
		return true
	}
	switch id {
	case askInitialize:
		if s.greeted {
			return false
		}
		s.greeted = true
		s.progress.AgentVersion = release(m.Result.UserAgent)
		s.say = append(s.say, encode(object{"method": methodInitialized}))
		if len(s.launch.Skills) > 0 {
			s.ask(askSkillRoots, methodSkillRoots, object{"extraRoots": skillRoots(s.launch.Skills)})
			return false
		}
		s.startThread(nil)
	case askSkillRoots:
		s.ask(askSkillList, methodSkillList, object{"cwds": []string{s.launch.WorkDir}})
	case askSkillList:
		s.startThread(s.stray(m.Result))
	case askThread:
		if s.thread != "" || s.ended {
			return false
		}
		if s.thread = stream.Clip(m.Result.Thread.ID); s.thread == "" {
			s.refused, s.failed = id, problem{Message: "the server gave the thread no id"}
			s.ended, s.over = true, 1
			return true
		}
		s.progress.Conversation = s.thread
		if m.Result.Model != "" {
			s.model = stream.Clip(m.Result.Model)
		}
		s.awaited = 1
		if s.launch.Title != "" {
			s.ask(askName, methodName, object{"threadId": s.thread, "name": s.launch.Title})
		}
		s.instruct()
		s.ready()
		return true
	case askInject:
		s.instructing = false
		s.ready()
	case askTurn:
		if s.turn == "" {
			s.turn = stream.Clip(m.Result.Turn.ID)
		}
	}
	return false
}

// release reads the CLI's version from how it names itself: "turnpike/0.171.0 (...)".
func release(userAgent string) string {
	_, rest, _ := strings.Cut(userAgent, "/")
	version, _, _ := strings.Cut(rest, " ")
	return stream.Clip(version)
}

// ready starts the turn as soon as every server started or failed: what a server
// offers later than that, the model would not be offered.
func (s *talk) ready() {
	if s.awaited != 0 && len(s.servers) == 0 && !s.instructing {
		s.startTurn()
	}
}

func (s *talk) server(p params) {
	switch p.Status {
	case "starting":
		return
	case "ready":
	default:
		s.notes.Add("MCP server %s: %s: %s", stream.Clip(p.Name), stream.Clip(p.Status), p.Error.Message)
	}
	delete(s.servers, p.Name)
	s.ready()
}

// item takes the begin or the end of something the agent did.
func (s *talk) item(i item, own, done, cut bool) bool {
	id := stream.Clip(i.ID)
	// A command may be done long after the response that called it. One that is only
	// told of when it is done began as well.
	began := !done || i.tool() && !s.tools[id]
	changed := false
	if own && began && i.response() {
		changed = s.respond()
	}
	if own && i.Type == "agentMessage" {
		s.spoke = true
		if done {
			s.text = i.Text
			if cut {
				s.notes.Add("a message of the agent was too long a line to be kept")
			}
		}
	}
	if !i.tool() {
		return changed
	}
	if began {
		s.progress.ToolCalls++
		s.acted = s.acted || own
		changed = true
	}
	switch {
	case done:
		delete(s.tools, id)
		if why, failed := i.failed(); failed {
			s.notes.Add("MCP call of %s%s__%s failed: %s", agent.MCPToolPrefix, stream.Clip(i.Server), stream.Clip(i.Tool), why)
		}
	case len(s.tools) < maxItems:
		s.tools[id] = true
	}
	return changed
}

// respond notes that the model has begun to answer a request.
func (s *talk) respond() bool {
	if s.responding {
		return false
	}
	s.responding = true
	s.progress.Turns++
	if s.beyond(s.progress.Turns > s.launch.Request.Profile.MaxTurns) {
		s.interrupt(stopMaxTurns)
	}
	return true
}

// beyond says whether a limit of turns is passed.
func (s *talk) beyond(passed bool) bool {
	return s.launch.Request.Profile.MaxTurns > 0 && passed
}

// used takes the total of all tokens of the conversation, which is told once a
// response, and whatever it called, is done.
func (s *talk) used(p params) bool {
	total, last := p.TokenUsage.Total, p.TokenUsage.Last
	if s.turn == "" || p.TurnID != "" && stream.Clip(p.TurnID) != s.turn {
		s.before = &total // of earlier turns
		return false
	}
	before := s.before
	if before == nil {
		before = &tokens{}
		if s.launch.Request.ResumeID != "" {
			// What the earlier turns used was not told; the request's own count was.
			total, before = last, &tokens{}
		}
	}
	defer func() { t := p.TokenUsage.Total; s.before = &t }()
	if total.Total <= before.Total {
		return false // told again
	}
	s.usage.Add(s.model, total.since(*before))
	s.respond()
	// A response that neither said nor visibly called anything called what the server
	// does not show.
	goesOn := s.acted || !s.spoke
	s.responding, s.spoke, s.acted = false, false, false
	if goesOn && s.beyond(s.progress.Turns >= s.launch.Request.Profile.MaxTurns) {
		s.interrupt(stopMaxTurns)
	}
	return true
}

// trouble takes a failed request, which may be repeated.
func (s *talk) trouble(p params) {
	s.throttled, s.failed, s.fatal = 0, p.Error, !p.WillRetry
	if p.WillRetry && p.Error.Status == 429 && s.stopped == stopNone {
		s.throttles++
		s.throttled = s.throttles
	}
}

// end takes the end of the turn.
func (s *talk) end(t turn, cut bool) {
	s.ended, s.over, s.throttled = true, 1, 0
	s.status = stream.Clip(t.Status)
	if cut && s.status == "" && !s.fatal && s.stopped == stopNone {
		// Its text is what was too long, and the status stands behind it.
		s.status = "completed"
	}
	if t.Error.Message != "" || t.Error.Kind != "" {
		s.failed = t.Error
	}
}

// refusals are the answers to what the server may ask its client, each in the
// form of its kind.
var refusals = map[string]object{
	"item/commandExecution/requestApproval": {"decision": "decline"},
	"item/fileChange/requestApproval":       {"decision": "decline"},
	"execCommandApproval":                   {"decision": "denied"},
	"applyPatchApproval":                    {"decision": "denied"},
	"mcpServer/elicitation/request":         {"action": "decline"},
	"item/tool/requestUserInput":            {"answers": object{}},
	"item/tool/call":                        {"success": false, "contentItems": []any{}},
}

// answer refuses whatever the server asks. An answer that it waits for in vain
// would hold the turn for ever.
func (s *talk) answer(m message) {
	s.notes.Add("the agent asked for what nobody can give, and was refused: %s", stream.Clip(m.Method))
	if len(s.say) >= maxSay {
		return // it does not read the answers
	}
	reply := object{"id": m.ID}
	if refusal, known := refusals[m.Method]; known {
		reply["result"] = refusal
	} else {
		reply["error"] = object{"code": -32601, "message": "nobody is here to answer"}
	}
	s.say = append(s.say, encode(reply))
}

// conclude says what the conversation, as far as it came, proved.
func (s *talk) conclude() agent.Conversation {
	if s.skipped > 0 {
		s.notes.Add("%d lines of the agent's output were no messages and were skipped", s.skipped)
	}
	if s.cut > 0 {
		s.notes.Add("%d lines of the agent's output were too long and were cut", s.cut)
	}
	c := agent.Conversation{Ended: s.ended, ResultText: s.text, Models: s.usage.Models()}
	s.judge(&c) // which may still learn
	c.Progress, c.Diagnostics = s.progress, s.notes.Lines()
	return c
}

// judge says how the turn ended. A turn that completed before it could be broken off
// is a success.
func (s *talk) judge(c *agent.Conversation) {
	completed := s.ended && s.status == "completed"
	c.IsError = !completed
	f := failure{problem: s.failed, blocked: s.progress.RateLimit.Blocking(), waited: s.stopped == stopWaited}
	switch {
	case completed:
		return
	case s.ended && s.status == "failed":
		c.ErrorSubtype = stream.Clip(s.failed.Kind)
		if c.ErrorSubtype == "" || c.ErrorSubtype == "other" {
			c.ErrorSubtype = subtypeFailed
		}
		c.Failure = f.classify()
		s.notes.Add("%s", s.failed.Message)
	case s.stopped == stopMaxTurns:
		c.ErrorSubtype = subtypeMaxTurns
	case s.stopped == stopWaited:
		c.ErrorSubtype, c.Failure = subtypeWaiting, f.classify()
		s.notes.Add("the provider asked for a longer wait than the turn is given: %s", s.failed.Message)
	case s.refused != 0:
		c.ErrorSubtype, c.Failure = subtypeRefused, f.classify()
		if s.refused == askThread && s.launch.Request.ResumeID != "" {
			c.Failure = agent.FailureResume
		}
		s.notes.Add("%s", s.failed.Message)
	case s.ended:
		c.ErrorSubtype = s.status // interrupted
		if c.ErrorSubtype == "" {
			c.ErrorSubtype = subtypeFailed
		}
	case s.messages == 0 && s.skipped > 0:
		c.ErrorSubtype = agent.SubtypeProtocol
	default:
		c.ErrorSubtype = agent.SubtypeNoResult
	}
	if c.Failure == agent.FailureLimited {
		s.limit()
	}
}

// limit marks the limit that was told of as used up: the provider tells a share of
// the limit, not whether it refuses.
func (s *talk) limit() {
	if s.progress.RateLimit == nil {
		return
	}
	limit := *s.progress.RateLimit
	limit.Status = statusRejected
	s.progress.RateLimit = &limit
}
