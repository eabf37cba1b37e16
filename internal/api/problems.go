package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"turnpike/internal/job"
)

// ProblemType begins the type of every problem; the kind's name follows.
const ProblemType = "urn:turnpike:problem:"

// kinds is how each kind of error is answered, the first that fits. Detail is what the
// caller reads; nothing else of the error is shown.
var kinds = []struct {
	kind   error
	name   string
	status int
	detail string
	retry  string // Retry-After, in seconds
}{
	{kind: errTooLarge, name: "too-large", status: http.StatusRequestEntityTooLarge, detail: "the request is larger than 1 MiB: put large material into the workspace"},
	{kind: errMediaType, name: "media-type", status: http.StatusUnsupportedMediaType, detail: "the body must be application/json"},
	{kind: errMalformed, name: "malformed", status: http.StatusBadRequest, detail: "the body cannot be read as a request"},
	{kind: job.ErrInvalid, name: "invalid", status: http.StatusUnprocessableEntity, detail: "the request is not valid; nothing was written"},
	{kind: errNoToken, name: "unauthorized", status: http.StatusUnauthorized, detail: errNoToken.Error()},
	{kind: errBadToken, name: "unauthorized", status: http.StatusUnauthorized, detail: errBadToken.Error()},
	{kind: errElsewhere, name: "wrong-host", status: http.StatusMisdirectedRequest, detail: errElsewhere.Error()},
	{kind: errCrossOrigin, name: "cross-origin", status: http.StatusForbidden, detail: errCrossOrigin.Error()},
	{kind: job.ErrDenied, name: "denied", status: http.StatusForbidden, detail: "this token's role does not permit that"},
	{kind: job.ErrNotFound, name: "not-found", status: http.StatusNotFound, detail: "there is no such job"},
	{kind: job.ErrNoSchedule, name: "not-found", status: http.StatusNotFound, detail: "the tenant has no such schedule"},
	{kind: job.ErrNoBudget, name: "not-found", status: http.StatusNotFound, detail: "there is no such budget: its scope, name and window (per) name it"},
	{kind: job.ErrNoOrphan, name: "not-found", status: http.StatusNotFound, detail: "nothing of this kind is left of this attempt"},
	{kind: job.ErrNotKept, name: "not-kept", status: http.StatusNotFound, detail: "it is not kept, or not any more; the attempt says where else it may be"},
	{kind: job.ErrFinished, name: "finished", status: http.StatusConflict, detail: "the job is finished; its result stands"},
	{kind: job.ErrUnfinished, name: "unfinished", status: http.StatusConflict, detail: "the job is not finished; it can be repeated when it is"},
	{kind: job.ErrConflict, name: "conflict", status: http.StatusConflict, detail: "the request conflicts with an earlier one"},
	{kind: job.ErrQueueFull, name: "queue-full", status: http.StatusTooManyRequests, detail: "the tenant has as many unfinished jobs as it may have; try again when some are done", retry: "30"},
	{kind: job.ErrUnavailable, name: "unavailable", status: http.StatusServiceUnavailable, detail: "the database or the broker is away; try again, with the same Idempotency-Key when enqueueing", retry: "5"},
	{kind: job.ErrLaneMissing, name: "unavailable", status: http.StatusServiceUnavailable, detail: "the broker is yet to be set up; try again", retry: "5"},
}

var (
	errTooLarge    = errors.New("request too large")
	errMediaType   = errors.New("not JSON")
	errMalformed   = errors.New("malformed request")
	errElsewhere   = errors.New("without tokens, this server answers only requests addressed to a loopback name")
	errCrossOrigin = errors.New("a web page of another origin may not do this")
)

// problem is the answer to an error, and whether the error was expected: the others are
// for the log.
func problem(err error) (p *huma.ErrorModel, headers http.Header, expected bool) {
	headers = make(http.Header)
	for _, k := range kinds {
		if !errors.Is(err, k.kind) {
			continue
		}
		p = &huma.ErrorModel{Type: ProblemType + k.name, Title: http.StatusText(k.status), Status: k.status, Detail: k.detail}
		if k.retry != "" {
			headers.Set("Retry-After", k.retry)
		}
		if k.status == http.StatusUnauthorized {
			headers.Set("WWW-Authenticate", `Bearer realm="turnpike"`)
		}
		p.Errors = details(err)
		return p, headers, true
	}
	return &huma.ErrorModel{
		Type: ProblemType + "internal", Title: http.StatusText(http.StatusInternalServerError),
		Status: http.StatusInternalServerError, Detail: "something went wrong here; the log says what",
	}, headers, false
}

// typed makes huma's own refusals problems like ours: with a type, and without the body
// in them, which may hold what belongs in no log.
func typed(_ huma.Context, _ string, answer any) (any, error) {
	p, ok := answer.(*huma.ErrorModel)
	if !ok || p.Type != "" {
		return answer, nil
	}
	for _, k := range kinds {
		if k.status == p.Status {
			p.Type = ProblemType + k.name
			break
		}
	}
	for _, d := range p.Errors {
		if strings.HasPrefix(d.Location, "body") {
			d.Value = nil
		}
	}
	return p, nil
}

// details lists the fields that are wrong.
func details(err error) []*huma.ErrorDetail {
	var all job.Invalid
	if !errors.As(err, &all) {
		var one *job.FieldError
		if !errors.As(err, &one) {
			return nil
		}
		all = job.Invalid{one}
	}
	out := make([]*huma.ErrorDetail, len(all))
	for i, p := range all {
		location := p.Field
		if location == "" {
			location = "body"
		}
		out[i] = &huma.ErrorDetail{Message: p.Problem, Location: location}
	}
	return out
}

// malformed says whether a request could not be read at all, so that no field is to
// blame.
func malformed(err error) bool {
	var all job.Invalid
	if errors.As(err, &all) {
		return len(all) > 0 && all[0].Field == ""
	}
	var one *job.FieldError
	return errors.As(err, &one) && one.Field == ""
}

// fail turns an error into what huma answers with.
func (s *Server) fail(err error) error {
	if malformed(err) {
		err = errors.Join(errMalformed, err)
	}
	p, headers, expected := problem(err)
	if !expected {
		s.log.Error("answer a request", "err", err)
	} else if p.Status >= http.StatusInternalServerError {
		s.log.Warn("answer a request", "err", err)
	}
	if len(headers) == 0 {
		return p
	}
	return huma.ErrorWithHeaders(p, headers)
}

// write answers outside of huma.
func (s *Server) write(w http.ResponseWriter, err error) {
	p, headers, expected := problem(err)
	if !expected {
		s.log.Error("answer a request", "err", err)
	}
	for name, values := range headers {
		w.Header()[name] = values
	}
	writeProblem(w, p)
}

func writeProblem(w http.ResponseWriter, p *huma.ErrorModel) {
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // a struct of strings and numbers
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Del("Content-Length")
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // nobody is left to tell
}
