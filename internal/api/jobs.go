package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"turnpike/internal/job"
)

// Intake accepts requests. It returns job.ErrInvalid with every problem, job.ErrConflict,
// job.ErrQueueFull or job.ErrUnavailable.
type Intake interface {
	Accept(ctx context.Context, by job.Producer, key string, request json.RawMessage) (job.Accepted, error)
	// AcceptAll accepts all or none.
	AcceptAll(ctx context.Context, by job.Producer, key string, requests []json.RawMessage) ([]job.Accepted, error)
}

// Jobs is what is on record. It returns job.ErrNotFound or job.ErrUnavailable.
type Jobs interface {
	Get(ctx context.Context, id job.ID) (job.View, error)
	List(ctx context.Context, f job.Filter) ([]job.Summary, error)
	Report(ctx context.Context, by string, since time.Time) ([]job.ReportRow, error)
}

// Control changes jobs. It returns job.ErrNotFound, job.ErrFinished, job.ErrUnfinished,
// job.ErrNoBudget, job.ErrNoOrphan or job.ErrUnavailable.
type Control interface {
	Cancel(ctx context.Context, id job.ID, by, why string) (job.CancelAnswer, error)
	Retry(ctx context.Context, id job.ID, by string) (job.Accepted, error)
	Redrive(ctx context.Context, r job.Redrive, by string) (job.RedriveAnswer, error)
	Pause(ctx context.Context, scope job.Scope, name string, until time.Time, by, why string) (int, error)
	Lift(ctx context.Context, scope job.Scope, name, by, why string) error
	Pauses(ctx context.Context) ([]job.Pause, error)
	SetLimit(ctx context.Context, tenant string, most int, by string) error
	SetWeight(ctx context.Context, tenant string, weight int, by string) error
	Weights(ctx context.Context) ([]job.Weight, error)
	SetBudget(ctx context.Context, b job.Budget, by, why string) error
	RemoveBudget(ctx context.Context, k job.BudgetKey, by, why string) error
	Budgets(ctx context.Context) ([]job.Budget, error)
	OrphansLeft(ctx context.Context) ([]job.Orphan, error)
	CloseOrphan(ctx context.Context, o job.Orphan, by, why string) error
}

// Bearer is part of every operation's input. It is exported, as JobInput is, because
// huma does not look into embedded structs that are not.
type Bearer struct {
	Authorization string `header:"Authorization" hidden:"true"`
}

type enqueueInput struct {
	Bearer
	Key         string `header:"Idempotency-Key" maxLength:"200" pattern:"^[!-~]*$" doc:"Repeating a request with its key returns the job of the first time. The key is the producer's own."`
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/json"`
}

type enqueueOutput struct {
	Status   int
	Location string `header:"Location"`
	Body     any
}

// JobInput names a job.
type JobInput struct {
	Bearer
	ID string `path:"id" doc:"the job's id"`
}

type viewOutput struct{ Body job.View }

type listInput struct {
	Bearer
	States  []string `query:"state" doc:"only jobs in these states" enum:"scheduled,queued,dispatched,running,succeeded,failed,cancelled"`
	Tenant  string   `query:"tenant" maxLength:"128"`
	Pool    string   `query:"pool" maxLength:"32"`
	Name    string   `query:"name" maxLength:"200"`
	WorkKey string   `query:"work" maxLength:"200" doc:"only jobs that work on this"`
	Before  string   `query:"before" doc:"continue a listing: the next of the page before"`
	Limit   int      `query:"limit" minimum:"1" maximum:"1000" default:"50"`
}

// jobsPage is a part of a listing, newest first.
type jobsPage struct {
	Jobs []job.Summary `json:"jobs" nullable:"false"`
	Next job.ID        `json:"next,omitempty" doc:"before of the next page; absent on the last"`
}

type listOutput struct{ Body jobsPage }

type cancelInput struct {
	JobInput
	Body *struct {
		Why string `json:"why,omitempty" maxLength:"500" doc:"for the record"`
	}
}

type cancelOutput struct {
	Status int
	Body   job.CancelAnswer
}

type reportInput struct {
	Bearer
	By    string    `query:"by" required:"true" enum:"tenant,agent,model,pool,name,day"`
	Since time.Time `query:"since" doc:"only jobs created since"`
}

// reportBody is costs and outcomes, one row per group.
type reportBody struct {
	By   string          `json:"by"`
	Rows []job.ReportRow `json:"rows" nullable:"false"`
}

type reportOutput struct{ Body reportBody }

func (s *Server) registerJobs(api huma.API) {
	const readTimeout = 30 * time.Second
	huma.Register(api, huma.Operation{
		OperationID: "enqueue", Method: http.MethodPost, Path: "/v1/jobs", DefaultStatus: http.StatusCreated,
		Summary:      "Enqueue one request, or all of an array or none",
		MaxBodyBytes: s.maxBody, BodyReadTimeout: readTimeout, SkipValidateBody: true, // job.Decode does
		Errors: []int{400, 401, 403, 409, 413, 415, 422, 429, 503},
	}, s.enqueue)
	huma.Register(api, huma.Operation{
		OperationID: "get", Method: http.MethodGet, Path: "/v1/jobs/{id}",
		Summary: "One job, with its attempts", Errors: []int{401, 403, 404, 422, 503},
	}, s.get)
	huma.Register(api, huma.Operation{
		OperationID: "list", Method: http.MethodGet, Path: "/v1/jobs",
		Summary: "Jobs, newest first", Errors: []int{401, 403, 422, 503},
	}, s.list)
	huma.Register(api, huma.Operation{
		OperationID: "cancel", Method: http.MethodPost, Path: "/v1/jobs/{id}/cancel",
		Summary: "Cancel a job; 202 while its worker is yet to stop it", Errors: []int{401, 403, 404, 409, 422, 503},
	}, s.cancel)
	huma.Register(api, huma.Operation{
		OperationID: "retry", Method: http.MethodPost, Path: "/v1/jobs/{id}/retry", DefaultStatus: http.StatusCreated,
		Summary: "Enqueue a finished job anew", Errors: []int{401, 403, 404, 409, 422, 503},
	}, s.retry)
	huma.Register(api, huma.Operation{
		OperationID: "redrive", Method: http.MethodPost, Path: "/v1/redrive",
		Summary: "Enqueue anew a part of the finished jobs that match, each at most once ever; repeat with the answer's next", Errors: []int{401, 403, 422, 429, 503},
	}, s.redrive)
	huma.Register(api, huma.Operation{
		OperationID: "report", Method: http.MethodGet, Path: "/v1/report",
		Summary: "Costs and outcomes", Errors: []int{401, 403, 422, 503},
	}, s.report)
	s.registerHolds(api)
	s.registerBudgets(api)
	describeEnqueue(api.OpenAPI())
}

// aliases tells how types that encode themselves look.
func aliases(r huma.Registry) {
	r.RegisterTypeAlias(reflect.TypeFor[job.Duration](), reflect.TypeFor[string]())
	r.RegisterTypeAlias(reflect.TypeFor[job.USD](), reflect.TypeFor[string]())
	r.RegisterTypeAlias(reflect.TypeFor[json.RawMessage](), reflect.TypeFor[any]())
}

// describeEnqueue documents the body that the operation takes as bytes: decoding it is
// job.Decode's, which is stricter than a schema.
func describeEnqueue(doc *huma.OpenAPI) {
	schemas := doc.Components.Schemas
	request := schemas.Schema(reflect.TypeFor[job.Request](), true, "Request")
	accepted := schemas.Schema(reflect.TypeFor[job.Accepted](), true, "Accepted")
	oneOrAll := func(one *huma.Schema) *huma.Schema {
		return &huma.Schema{OneOf: []*huma.Schema{one, {Type: huma.TypeArray, Items: one}}}
	}
	op := doc.Paths["/v1/jobs"].Post
	op.RequestBody.Required = true
	op.RequestBody.Content["application/json"].Schema = oneOrAll(request)
	op.Responses["201"].Content = map[string]*huma.MediaType{"application/json": {Schema: oneOrAll(accepted)}}
	op.Responses["201"].Description = "The job or jobs; 200 when all were there already"
}

func (s *Server) enqueue(ctx context.Context, in *enqueueInput) (*enqueueOutput, error) {
	who, err := s.bearers.authorize(in.Authorization, Producer, Operator)
	if err != nil {
		return nil, s.fail(err)
	}
	if media, _, err := mime.ParseMediaType(in.ContentType); err != nil || media != "application/json" {
		return nil, s.fail(errMediaType)
	}
	body := bytes.TrimLeft(in.RawBody, " \t\r\n")
	if len(body) > 0 && body[0] == '[' {
		return s.enqueueAll(ctx, who, in)
	}
	if len(in.RawBody) > job.MaxRequestBytes {
		return nil, s.fail(errTooLarge)
	}
	accepted, err := s.intake.Accept(ctx, who.producer(), in.Key, in.RawBody)
	if err != nil {
		return nil, s.fail(err)
	}
	return &enqueueOutput{Status: created(accepted), Location: "/v1/jobs/" + string(accepted.ID), Body: accepted}, nil
}

func (s *Server) enqueueAll(ctx context.Context, who caller, in *enqueueInput) (*enqueueOutput, error) {
	var requests []json.RawMessage
	if err := json.Unmarshal(in.RawBody, &requests); err != nil {
		return nil, s.fail(&job.FieldError{Problem: fmt.Sprintf("the batch is not a JSON array: %v", err)})
	}
	accepted, err := s.intake.AcceptAll(ctx, who.producer(), in.Key, requests)
	if err != nil {
		return nil, s.fail(err)
	}
	return &enqueueOutput{Status: created(accepted...), Body: accepted}, nil
}

// created is 201 when anything is new.
func created(all ...job.Accepted) int {
	for _, a := range all {
		if !a.Existing {
			return http.StatusCreated
		}
	}
	return http.StatusOK
}

// find is the job that a caller may deal with. To a producer, another's job does not
// exist.
func (s *Server) find(ctx context.Context, in JobInput, roles ...Role) (caller, job.View, error) {
	who, err := s.bearers.authorize(in.Authorization, roles...)
	if err != nil {
		return who, job.View{}, err
	}
	id, err := job.ParseID(in.ID)
	if err != nil {
		return who, job.View{}, err
	}
	view, err := s.jobs.Get(ctx, id)
	if err == nil && !who.owns(view.Producer) {
		err = job.ErrNotFound
	}
	return who, view, err
}

func (s *Server) get(ctx context.Context, in *JobInput) (*viewOutput, error) {
	_, view, err := s.find(ctx, *in, Producer, Operator, Reporter)
	if err != nil {
		return nil, s.fail(err)
	}
	return &viewOutput{view}, nil
}

func (s *Server) list(ctx context.Context, in *listInput) (*listOutput, error) {
	if _, err := s.bearers.authorize(in.Authorization, Operator, Reporter); err != nil {
		return nil, s.fail(err)
	}
	f := job.Filter{Tenant: in.Tenant, Pool: in.Pool, Name: in.Name, WorkKey: in.WorkKey, Limit: in.Limit}
	for _, state := range in.States {
		f.States = append(f.States, job.State(state))
	}
	if in.Before != "" {
		id, err := job.ParseID(in.Before)
		if err != nil {
			return nil, s.fail(&job.FieldError{Field: "before", Problem: "want the next of an earlier page"})
		}
		f.Before = id
	}
	found, err := s.jobs.List(ctx, f)
	if err != nil {
		return nil, s.fail(err)
	}
	page := jobsPage{Jobs: found}
	if page.Jobs == nil {
		page.Jobs = []job.Summary{}
	}
	if n := len(found); n > 0 && n == in.Limit {
		page.Next = found[n-1].ID
	}
	return &listOutput{page}, nil
}

func (s *Server) cancel(ctx context.Context, in *cancelInput) (*cancelOutput, error) {
	who, view, err := s.find(ctx, in.JobInput, Producer, Operator)
	if err != nil {
		return nil, s.fail(err)
	}
	why := ""
	if in.Body != nil {
		why = in.Body.Why
	}
	answer, err := s.control.Cancel(ctx, view.ID, who.name, why)
	if err != nil {
		return nil, s.fail(err)
	}
	out := &cancelOutput{Status: http.StatusOK, Body: answer}
	if answer.State == job.Running {
		out.Status = http.StatusAccepted
	}
	return out, nil
}

func (s *Server) retry(ctx context.Context, in *JobInput) (*enqueueOutput, error) {
	who, view, err := s.find(ctx, *in, Producer, Operator)
	if err != nil {
		return nil, s.fail(err)
	}
	accepted, err := s.control.Retry(ctx, view.ID, who.name)
	if err != nil {
		return nil, s.fail(err)
	}
	return &enqueueOutput{Status: created(accepted), Location: "/v1/jobs/" + string(accepted.ID), Body: accepted}, nil
}

func (s *Server) report(ctx context.Context, in *reportInput) (*reportOutput, error) {
	if _, err := s.bearers.authorize(in.Authorization, Operator, Reporter); err != nil {
		return nil, s.fail(err)
	}
	rows, err := s.jobs.Report(ctx, in.By, in.Since)
	if err != nil {
		return nil, s.fail(err)
	}
	if rows == nil {
		rows = []job.ReportRow{}
	}
	return &reportOutput{reportBody{By: in.By, Rows: rows}}, nil
}
