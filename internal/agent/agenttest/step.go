package agenttest

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"
)

// Usage is what a step says its answer consumed, in tokens. Input counts neither
// kind of cached tokens, Output counts Reasoning. Each API tells what it has a
// word for: Messages no Reasoning, the others no CacheWrite.
type Usage struct {
	Input, Output, Reasoning, CacheRead, CacheWrite int
}

// DefaultUsage is the usage of a step that names none. Its figures differ
// from one another so that a test can tell which of them went where.
var DefaultUsage = Usage{Input: 1234, Output: 77, Reasoning: 11, CacheRead: 5000, CacheWrite: 100}

// Step is what one request of a script is answered with. The functions of
// this package make steps; a step's methods return changed copies of it.
type Step struct {
	choose func(*Request) Step

	content []block
	usage   Usage
	header  http.Header
	pace    time.Duration

	status  int // other than 0: an error answer
	problem apiError

	hold  hold
	fault fault
	page  string // an HTML page in place of an answer

	times  int
	repeat bool
}

// block is one piece of an answer: exactly one of its groups is set.
type block struct {
	text     string
	thinking string

	tool   string
	args   any
	search bool // for a tool, before the call that the step is about
}

type apiError struct {
	kind, message string
	resets        time.Time // of a usage limit
}

// usageLimit is the kind of error by which a ChatGPT plan's limit is told.
const usageLimit = "usage_limit_reached"

// hold keeps an answer back at one point. A nil until is never over.
type hold struct {
	at    point
	until <-chan struct{}
}

// point is a place in an answer.
type point int

const (
	nowhere point = iota
	beforeHeaders
	midStream
)

// fault is how a stream breaks off.
type fault int

const (
	sound fault = iota
	cut
	badJSON
	streamError
)

// Text answers with text, which ends the turn.
func Text(text string) Step {
	return Step{content: []block{{text: text}}}
}

// Call answers with a call of the tool of that name; MCP tools go by the name
// they have in the request, such as mcp__server__tool. A freeform tool takes args
// as a string.
func Call(tool string, args any) Step {
	return Step{content: []block{{tool: tool, args: args}}}
}

// Together answers with everything that the given steps would answer, in one
// message: several tool calls, or text and a call. The steps must answer with
// content; how they are sent is for the combined step to say.
func Together(steps ...Step) Step {
	return Func(func(r *Request) Step {
		var all Step
		for _, s := range steps {
			all.content = append(all.content, s.resolve(r).content...)
		}
		return all
	})
}

// Thinking answers with a thinking block before what the step answers with.
func (s Step) Thinking(text string) Step {
	return s.derive(func(s *Step) {
		s.content = append([]block{{thinking: text}}, s.content...)
	})
}

// Fail answers with an HTTP error, its kind and message in the API's form.
func Fail(status int, kind, message string) Step {
	return Step{status: status, problem: apiError{kind: kind, message: message}}
}

// UsageLimit answers that a plan's limit is used up until it resets, as OpenAI does.
func UsageLimit(resets time.Time) Step {
	s := Fail(http.StatusTooManyRequests, usageLimit, "The usage limit has been reached")
	s.problem.resets = resets
	return s
}

// HTML answers with a page and status 200, as a captive portal would.
func HTML() Step {
	return Step{page: "<!doctype html>\n<title>Sign in</title>\n<p>Please sign in to the network.\n"}
}

// Hang never answers: not even headers are sent.
func Hang() Step { return Step{hold: hold{at: beforeHeaders}} }

// HangMid sends the first words of text and then nothing more.
func HangMid(text string) Step {
	return Step{content: []block{{text: text}}, hold: hold{at: midStream}}
}

// Func answers with the step that choose picks once the request is known.
func Func(choose func(*Request) Step) Step { return Step{choose: choose} }

// Held keeps the whole answer, headers included, back until the gate opens.
func (s Step) Held(g *Gate) Step {
	return s.derive(func(s *Step) { s.hold = hold{beforeHeaders, g.open} })
}

// HeldMid sends the beginning of the answer and keeps the rest back until the
// gate opens.
func (s Step) HeldMid(g *Gate) Step {
	return s.derive(func(s *Step) { s.hold = hold{midStream, g.open} })
}

// Cut drops the connection in the middle of the stream. As with BadJSON and
// StreamError, a request for a whole message instead of a stream, with which
// CLIs repeat a broken one, is answered in full.
func (s Step) Cut() Step {
	return s.derive(func(s *Step) { s.fault = cut })
}

// BadJSON sends an event in the middle of the stream that is not JSON.
func (s Step) BadJSON() Step {
	return s.derive(func(s *Step) { s.fault = badJSON })
}

// StreamError ends the stream in the middle with the API's own error event.
func (s Step) StreamError(kind, message string) Step {
	return s.derive(func(s *Step) { s.fault, s.problem = streamError, apiError{kind: kind, message: message} })
}

// Paced pauses before each word of a streamed answer.
func (s Step) Paced(d time.Duration) Step {
	return s.derive(func(s *Step) { s.pace = d })
}

// WithUsage sets what the answer says it consumed.
func (s Step) WithUsage(u Usage) Step {
	return s.derive(func(s *Step) { s.usage = u })
}

// WithHeader adds headers to the answer.
func (s Step) WithHeader(h http.Header) Step {
	return s.derive(func(s *Step) {
		merged := s.header.Clone()
		if merged == nil {
			merged = http.Header{}
		}
		maps.Copy(merged, h)
		s.header = merged
	})
}

// Times lets the step answer n requests and then give way to the step behind
// it, which takes its place in the script.
func (s Step) Times(n int) Step {
	s.times = n
	return s
}

// Once is Times(1).
func (s Step) Once() Step { return s.Times(1) }

// Repeat lets the last step of a script answer every later request as well.
func (s Step) Repeat() Step {
	s.repeat = true
	return s
}

// derive changes the step, or, where the request must be seen first, what it
// will turn out to be.
func (s Step) derive(change func(*Step)) Step {
	if s.choose == nil {
		change(&s)
		return s
	}
	choose := s.choose
	s.choose = func(r *Request) Step { return choose(r).derive(change) }
	return s
}

func (s Step) resolve(r *Request) Step {
	for s.choose != nil {
		s = s.choose(r)
	}
	if s.usage == (Usage{}) {
		s.usage = DefaultUsage
	}
	return s
}

// String says in a few words what the answer is, for a log.
func (s Step) String() string {
	switch {
	case s.choose != nil:
		return "whatever the request calls for"
	case s.status != 0:
		return fmt.Sprintf("%d %s", s.status, s.problem.kind)
	case s.page != "":
		return "an HTML page"
	case s.hold == (hold{at: beforeHeaders}):
		return "silence"
	}
	var parts []string
	for _, b := range s.content {
		switch {
		case b.tool != "":
			parts = append(parts, "call "+b.tool)
		case b.thinking != "":
			parts = append(parts, "thinking")
		default:
			parts = append(parts, "text")
		}
	}
	what := strings.Join(parts, ", ")
	if s.fault != sound || s.hold == (hold{at: midStream}) {
		what += ", broken off"
	}
	return what
}
