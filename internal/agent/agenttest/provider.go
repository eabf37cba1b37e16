package agenttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// DefaultScript is the script of requests whose base URL names none.
const DefaultScript = "demo"

// maxBody bounds what one request may send; a CLI's whole conversation fits.
const maxBody = 64 << 20

// Provider speaks the Anthropic Messages API and both OpenAI ones, and answers
// from scripts. The zero Provider has none; use NewProvider in tests.
type Provider struct {
	Log    *slog.Logger // told of each request; nil: silent
	Forget bool         // keep no requests, for a provider that runs for long

	mu      sync.Mutex // guards what follows
	scripts map[string]*Script
	base    string // where it is served, as a URL
}

// NewProvider serves an empty provider on a free loopback port until the test
// ends.
func NewProvider(t testing.TB) *Provider {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen for the scripted provider: %v", err)
	}
	p := &Provider{}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	p.setBase(l.Addr())
	go func() { ended <- p.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("scripted provider: %v", err)
		}
	})
	return p
}

// Serve answers on l until ctx ends, then drops the connections that are left
// and waits for what serves them. It returns nil on such an ordered stop.
func (p *Provider) Serve(ctx context.Context, l net.Listener) error {
	p.setBase(l.Addr())
	var open sync.WaitGroup
	srv := &http.Server{
		Handler:           p,
		ReadHeaderTimeout: 10 * time.Second,
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew: // told before the listener takes the next one
				open.Add(1)
			case http.StateClosed:
				open.Done()
			}
		},
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve the scripted provider: %w", err)
	case <-ctx.Done():
	}
	// Hung answers never end by themselves, so there is nothing to wait for
	// before the connections are dropped.
	err := srv.Close()
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	open.Wait()
	return err
}

func (p *Provider) setBase(addr net.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.base = "http://" + addr.String()
}

// Script is one named list of steps, and what was asked of it.
type Script struct {
	Name string

	p     *Provider
	slots []slot

	mu       sync.Mutex // guards what follows and the slots' used counts
	count    int
	requests []*Request
	arrived  chan struct{} // closed and replaced with every request
}

// slot is one place in a script: steps that give way, then the one that stays.
type slot struct {
	passing []Step
	used    []int
	staying Step
	stays   bool
}

// Script adds a script, or replaces the one of that name. It panics when the
// script can never be followed as written.
func (p *Provider) Script(name string, steps ...Step) *Script {
	if name == "" || name != url.PathEscape(name) {
		panic(fmt.Sprintf("agenttest: script name %q does not fit into a URL's path", name))
	}
	s := &Script{Name: name, p: p, arrived: make(chan struct{})}
	var at slot
	for i, step := range steps {
		if step.repeat && i != len(steps)-1 {
			panic(fmt.Sprintf("agenttest: script %s: only the last step can repeat", name))
		}
		if step.times > 0 {
			at.passing = append(at.passing, step)
			continue
		}
		at.staying, at.stays = step, true
		s.slots = append(s.slots, at)
		at = slot{}
	}
	if len(at.passing) > 0 {
		s.slots = append(s.slots, at)
	}
	for i := range s.slots {
		s.slots[i].used = make([]int, len(s.slots[i].passing))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.scripts == nil {
		p.scripts = map[string]*Script{}
	}
	p.scripts[name] = s
	return s
}

// URL is the base URL that leads a CLI of Anthropic's API to the script. Those of
// OpenAI's APIs want the version in it: URL() + "/v1".
func (s *Script) URL() string {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return s.p.base + "/s/" + s.Name
}

// Requests is everything asked so far.
func (s *Script) Requests() []*Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Wait returns the nth request, from 1, as soon as it has arrived. It does
// not wait for the answer.
func (s *Script) Wait(ctx context.Context, n int) (*Request, error) {
	for {
		s.mu.Lock()
		requests, arrived := s.requests, s.arrived
		s.mu.Unlock()
		if len(requests) >= n {
			return requests[n-1], nil
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return nil, fmt.Errorf("script %s: wait for request %d, %d arrived: %w",
				s.Name, n, len(requests), context.Cause(ctx))
		}
	}
}

// next records the request and picks the step it gets.
func (s *Script) next(r *Request) (Step, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	r.N = s.count
	if !s.p.Forget {
		s.requests = append(s.requests, r)
	}
	close(s.arrived)
	s.arrived = make(chan struct{})

	at := r.Step
	if last := len(s.slots) - 1; at > last && last >= 0 && s.slots[last].staying.repeat {
		at = last
	}
	if at < len(s.slots) {
		slot := &s.slots[at]
		for i, step := range slot.passing {
			if slot.used[i] < step.times {
				slot.used[i]++
				return step, nil
			}
		}
		if slot.stays {
			return slot.staying, nil
		}
	}
	return Step{}, fmt.Errorf("script %s has nothing for step %d", s.Name, r.Step)
}

// ServeHTTP answers one request of a CLI.
func (p *Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, path := DefaultScript, r.URL.Path
	if rest, ok := strings.CutPrefix(path, "/s/"); ok {
		name, path, _ = strings.Cut(rest, "/")
		path = "/" + path
	}
	api, asks := codecs[path]
	switch {
	case asks && r.Method == http.MethodPost:
		p.serve(w, r, name, path)
	case asks && r.Header.Get("Upgrade") != "":
		// Codex tries a WebSocket first, and takes only this for an advice to do
		// without.
		reply(w, http.StatusUpgradeRequired, api.problem(apiError{kind: "invalid_request_error", message: "no WebSocket here"}))
	case r.Method == http.MethodPost && path == "/v1/messages/count_tokens":
		reply(w, http.StatusOK, object{"input_tokens": DefaultUsage.Input})
	case r.Method == http.MethodGet && path == "/v1/models":
		reply(w, http.StatusOK, object{"object": "list", "data": []any{}, "has_more": false})
	case r.Method == http.MethodHead:
	default:
		reply(w, http.StatusNotFound, messages{}.problem(apiError{kind: "not_found_error", message: "no such path: " + path}))
	}
}

func (p *Provider) serve(w http.ResponseWriter, hr *http.Request, name, path string) {
	refuse := func(status int, kind, message string) {
		reply(w, status, codecs[path].problem(apiError{kind: kind, message: message}))
	}
	p.mu.Lock()
	script := p.scripts[name]
	p.mu.Unlock()
	if script == nil {
		refuse(http.StatusNotFound, "not_found_error", "no such script: "+name)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, hr.Body, maxBody))
	if err != nil {
		refuse(http.StatusRequestEntityTooLarge, "request_too_large", err.Error())
		return
	}
	r, err := ParseRequest(path, body)
	if err != nil {
		refuse(http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	r.Path, r.Header = hr.URL.Path, hr.Header.Clone()
	defer close(r.done)
	step, err := script.next(r)
	if err != nil {
		// Not an answer a CLI repeats: a script that is too short shows at once.
		refuse(http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	step = step.resolve(r)
	if p.Log != nil {
		p.Log.Info("answering", "script", name, "request", r.N, "step", r.Step, "with", step.String())
	}
	ctx := hr.Context()
	if step.hold.at == beforeHeaders && !wait(ctx, step.hold.until) {
		panic(http.ErrAbortHandler) // without it an empty 200 would be sent
	}
	for k, v := range step.header {
		w.Header()[k] = v
	}
	id := fmt.Sprintf("req_%s_%d", name, r.N)
	w.Header().Set("Request-Id", id)
	w.Header().Set("X-Request-Id", id)
	switch {
	case step.status != 0:
		reply(w, step.status, r.codec.problem(step.problem))
	case step.page != "":
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, step.page) // the client went away: so be it
	default:
		err = step.send(ctx, w, r)
	}
	if errors.Is(err, errCut) {
		panic(http.ErrAbortHandler)
	}
	if err != nil && ctx.Err() == nil {
		// The headers may be out already; a dropped connection is the one thing
		// that cannot be mistaken for an answer.
		if p.Log != nil {
			p.Log.Error("answering", "script", name, "request", r.N, "err", err)
		}
		panic(http.ErrAbortHandler)
	}
}

// errCut ends an answer by dropping the connection.
var errCut = errors.New("cut as scripted")

// send answers with the step's content, as a stream or whole.
func (s Step) send(ctx context.Context, w http.ResponseWriter, r *Request) error {
	a, err := s.answer(r)
	if err != nil {
		return err
	}
	if !r.Stream {
		if s.hold.at == midStream && !wait(ctx, s.hold.until) {
			return ctx.Err()
		}
		reply(w, http.StatusOK, r.codec.whole(a))
		return nil
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	flusher := http.NewResponseController(w)
	said := 0
	for _, e := range r.codec.events(a) {
		if e.word && s.pace > 0 && !pause(ctx, s.pace) {
			return ctx.Err()
		}
		if err := write(w, e); err != nil {
			return err
		}
		if err := flusher.Flush(); err != nil {
			return err
		}
		if !e.word {
			continue
		}
		if said++; said > 1 {
			continue
		}
		// The first word is out: this is the middle of the stream.
		if s.hold.at == midStream && !wait(ctx, s.hold.until) {
			return ctx.Err()
		}
		if s.fault != sound {
			return s.breakOff(w, e, r.codec.failure(a, s.problem))
		}
	}
	return nil
}

// breakOff ends a stream after an event of it.
func (s Step) breakOff(w io.Writer, after, failure event) error {
	switch s.fault {
	case badJSON:
		name := ""
		if after.name != "" {
			name = "event: " + after.name + "\n"
		}
		_, err := io.WriteString(w, name+"data: {\"type\":\"content_blo\n\n")
		return err
	case streamError:
		return write(w, failure)
	default:
		return errCut
	}
}

func write(w io.Writer, e event) error {
	data, err := e.encode()
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client went away: so be it
}

// wait is false when the request ended before the hold did.
func wait(ctx context.Context, until <-chan struct{}) bool {
	select {
	case <-until:
		return true
	case <-ctx.Done():
		return false
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
