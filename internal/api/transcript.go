package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"turnpike/internal/job"
)

// Transcripts are what turns said, as they say it.
type Transcripts interface {
	// Tail calls emit for each chunk after seq, of one attempt or, when attempt is 0, of
	// all. When following it goes on until ctx ends.
	Tail(ctx context.Context, id job.ID, attempt int, after uint64, follow bool, emit func(job.TranscriptChunk) error) error
}

// Event is one thing that a transcript's reader is told. Exactly one of Line, Dropped
// and End is set.
type Event struct {
	Attempt int    `json:"attempt,omitempty"`
	Seq     uint64 `json:"seq,omitempty"` // continue after it
	// Line is one line of the agent's own stream, without its newline.
	Line string `json:"line,omitempty"`
	// Dropped lines are missing here; the worker's session directory has them.
	Dropped int `json:"dropped,omitempty"`
	// End is why nothing follows: "attempt", when an attempt's transcript was closed, or
	// "job", when the job is finished; State tells how.
	End   string    `json:"end,omitempty"`
	State job.State `json:"state,omitempty"`
}

type transcriptInput struct {
	JobInput
	Attempt int    `query:"attempt" minimum:"0" doc:"only this attempt; absent, all"`
	Follow  bool   `query:"follow" doc:"go on until the job is finished"`
	After   uint64 `query:"after" doc:"continue after this seq"`
	LastID  uint64 `header:"Last-Event-ID" hidden:"true"`
	Accept  string `header:"Accept" hidden:"true"`
}

const (
	// followFor is how long a follower goes without looking whether the job is finished.
	followFor = 2 * time.Second
	// alive is how often an idle stream shows that it is one.
	alive = 15 * time.Second
	// patience is how long a reader may take for one write.
	patience = 30 * time.Second
)

func (s *Server) registerTranscript(api huma.API) {
	op := huma.Operation{
		OperationID: "transcript", Method: http.MethodGet, Path: "/v1/jobs/{id}/transcript",
		Summary:     "What the agent said, one event per line",
		Description: "As application/x-ndjson, or as text/event-stream when the Accept header asks for it.",
		Errors:      []int{401, 403, 404, 422, 503},
	}
	huma.Register(api, op, s.transcript)
	event := api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Event](), true, "Event")
	api.OpenAPI().Paths[op.Path].Get.Responses["200"] = &huma.Response{
		Description: "Events",
		Content: map[string]*huma.MediaType{
			"application/x-ndjson": {Schema: event},
			"text/event-stream":    {Schema: event},
		},
	}
}

func (s *Server) transcript(ctx context.Context, in *transcriptInput) (*huma.StreamResponse, error) {
	_, view, err := s.find(ctx, in.JobInput, Producer, Operator, Reporter)
	if err != nil {
		return nil, s.fail(err)
	}
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		r, w := humago.Unwrap(hctx)
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(s.stopping, cancel)() // a follower would hold up the end
		e := &events{w: w, control: http.NewResponseController(w), sse: strings.Contains(in.Accept, "text/event-stream"), last: max(in.After, in.LastID)}
		err := s.tell(ctx, e, view, in)
		if err == nil || ctx.Err() != nil {
			return
		}
		if !e.begun { // the status is not sent yet
			s.write(w, err)
			return
		}
		s.log.Warn("a transcript ended early", "job", view.ID, "err", err)
		_ = e.send("", Event{End: "error"}) // the reader may be the one that is gone
	}}, nil
}

// tell sends what there is and, when following, what comes until the job is finished.
func (s *Server) tell(ctx context.Context, e *events, view job.View, in *transcriptInput) error {
	tail := func(ctx context.Context, follow bool) error {
		return s.transcripts.Tail(ctx, view.ID, in.Attempt, e.last, follow, e.chunk)
	}
	state := view.State
	for in.Follow && !state.Final() {
		some, cancel := context.WithTimeout(ctx, followFor)
		err := tail(some, true)
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			return nil // the one attempt that was asked for ended
		case errors.Is(err, context.DeadlineExceeded):
		default:
			return err
		}
		if err := e.idle(); err != nil {
			return err
		}
		now, err := s.jobs.Get(ctx, view.ID)
		if err != nil {
			return err
		}
		state = now.State
	}
	if err := tail(ctx, false); err != nil {
		return err
	}
	if state.Final() {
		return e.send("end", Event{End: "job", State: state})
	}
	return e.begin()
}

// events writes a transcript for a reader.
type events struct {
	w       http.ResponseWriter
	control *http.ResponseController
	sse     bool
	begun   bool
	last    uint64 // seq of the latest chunk
	wrote   time.Time
}

func (e *events) begin() error {
	if e.begun {
		return nil
	}
	e.begun = true
	kind := "application/x-ndjson"
	if e.sse {
		kind = "text/event-stream"
	}
	e.w.Header().Set("Content-Type", kind)
	e.w.Header().Set("X-Accel-Buffering", "no") // a proxy that gathers would hide a slow turn
	e.w.WriteHeader(http.StatusOK)
	return e.flush()
}

// chunk sends a chunk's events.
func (e *events) chunk(c job.TranscriptChunk) error {
	e.last = c.Seq
	if c.Dropped > 0 {
		if err := e.send("dropped", Event{Attempt: c.Attempt, Seq: c.Seq, Dropped: c.Dropped}); err != nil {
			return err
		}
	}
	for line := range bytes.Lines(c.Lines) {
		text := strings.ToValidUTF8(string(bytes.TrimSuffix(line, []byte("\n"))), "\uFFFD")
		if err := e.send("line", Event{Attempt: c.Attempt, Seq: c.Seq, Line: text}); err != nil {
			return err
		}
	}
	if c.End {
		if err := e.send("end", Event{Attempt: c.Attempt, Seq: c.Seq, End: "attempt"}); err != nil {
			return err
		}
	}
	return e.flush()
}

// send writes one event. Agent output is a value in it and can never pass for an event
// of ours.
func (e *events) send(kind string, event Event) error {
	if err := e.begin(); err != nil {
		return err
	}
	body, err := json.Marshal(event)
	if err != nil {
		return err
	}
	if err := e.control.SetWriteDeadline(time.Now().Add(patience)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if e.sse {
		if event.Seq > 0 {
			_, err = fmt.Fprintf(e.w, "id: %d\n", event.Seq)
		}
		if err == nil && kind != "" {
			_, err = fmt.Fprintf(e.w, "event: %s\n", kind)
		}
		if err == nil {
			_, err = fmt.Fprintf(e.w, "data: %s\n\n", body)
		}
	} else {
		_, err = e.w.Write(append(body, '\n'))
	}
	e.wrote = time.Now()
	return err
}

// idle shows that the stream is alive, now and then.
func (e *events) idle() error {
	if err := e.begin(); err != nil {
		return err
	}
	if !e.sse || time.Since(e.wrote) < alive {
		return nil
	}
	e.wrote = time.Now()
	if _, err := fmt.Fprint(e.w, ": alive\n\n"); err != nil {
		return err
	}
	return e.flush()
}

func (e *events) flush() error {
	if err := e.control.SetWriteDeadline(time.Now().Add(patience)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return e.control.Flush()
}
