package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"turnpike/internal/job"
)

type pauseInput struct {
	Bearer
	Body struct {
		Scope string     `json:"scope" enum:"lane,tenant,account,key"`
		Name  string     `json:"name" minLength:"1" maxLength:"400" doc:"a lane is PLACEMENT/POOL, a key TENANT/KEY; ~AGENT is the account of requests that name none"`
		Why   string     `json:"why,omitempty" maxLength:"500" doc:"for the record"`
		Until *time.Time `json:"until,omitempty" doc:"absent: until it is resumed"`
	}
}

type pauseOutput struct {
	Body struct {
		Returned int `json:"returned" doc:"dispatched jobs that went back to the queue"`
	}
}

type resumeInput struct {
	Bearer
	Body struct {
		Scope string `json:"scope" enum:"lane,tenant,account,key"`
		Name  string `json:"name" minLength:"1" maxLength:"400" doc:"a lane is PLACEMENT/POOL, a key TENANT/KEY; ~AGENT is the account of requests that name none"`
		Why   string `json:"why,omitempty" maxLength:"500" doc:"for the record"`
	}
}

type pausesInput struct{ Bearer }

type pausesOutput struct {
	Body struct {
		Pauses []job.Pause `json:"pauses" nullable:"false"`
	}
}

type limitInput struct {
	Bearer
	Body struct {
		Tenant string `json:"tenant" minLength:"1" maxLength:"128" doc:"* is every tenant without a limit of its own"`
		Max    int    `json:"max" maximum:"100000000" doc:"unfinished jobs; negative lifts the limit"`
	}
}

type weightInput struct {
	Bearer
	Body struct {
		Tenant string `json:"tenant" minLength:"1" maxLength:"128"`
		Weight int    `json:"weight" minimum:"1" maximum:"100" doc:"live jobs of a lane for each one of a tenant without a weight; 1 takes the weight away"`
	}
}

type weightsOutput struct {
	Body struct {
		Weights []job.Weight `json:"weights" nullable:"false"`
	}
}

// registerHolds registers what keeps jobs from running or being taken. Operators
// only: producers are told by answers.
func (s *Server) registerHolds(api huma.API) {
	huma.Register(api, huma.Operation{
		OperationID: "pauses", Method: http.MethodGet, Path: "/v1/pauses",
		Summary: "What is paused, by whom and why", Errors: []int{401, 403, 503},
	}, s.pauses)
	huma.Register(api, huma.Operation{
		OperationID: "pause", Method: http.MethodPost, Path: "/v1/pauses",
		Summary: "Pause a lane, tenant, account or key; what runs goes on", Errors: []int{401, 403, 422, 503},
	}, s.pause)
	huma.Register(api, huma.Operation{
		OperationID: "resume", Method: http.MethodPost, Path: "/v1/pauses/resume", DefaultStatus: http.StatusNoContent,
		Summary: "End a pause at once", Errors: []int{401, 403, 422, 503},
	}, s.resume)
	huma.Register(api, huma.Operation{
		OperationID: "limit", Method: http.MethodPut, Path: "/v1/limits", DefaultStatus: http.StatusNoContent,
		Summary: "Bound a tenant's unfinished jobs; enqueueing more answers 429", Errors: []int{401, 403, 422, 503},
	}, s.limit)
	huma.Register(api, huma.Operation{
		OperationID: "weights", Method: http.MethodGet, Path: "/v1/weights",
		Summary: "Tenants that have a weight", Errors: []int{401, 403, 503},
	}, s.weights)
	huma.Register(api, huma.Operation{
		OperationID: "weight", Method: http.MethodPut, Path: "/v1/weights", DefaultStatus: http.StatusNoContent,
		Summary: "Give a tenant a share of every lane", Errors: []int{401, 403, 422, 503},
	}, s.weight)
}

func (s *Server) pauses(ctx context.Context, in *pausesInput) (*pausesOutput, error) {
	if _, err := s.bearers.authorize(in.Authorization, Operator, Reporter); err != nil {
		return nil, s.fail(err)
	}
	found, err := s.control.Pauses(ctx)
	if err != nil {
		return nil, s.fail(err)
	}
	out := &pausesOutput{}
	out.Body.Pauses = append([]job.Pause{}, found...)
	return out, nil
}

func (s *Server) pause(ctx context.Context, in *pauseInput) (*pauseOutput, error) {
	who, err := s.bearers.authorize(in.Authorization, Operator)
	if err != nil {
		return nil, s.fail(err)
	}
	var until time.Time
	if in.Body.Until != nil {
		until = *in.Body.Until
	}
	n, err := s.control.Pause(ctx, job.Scope(in.Body.Scope), in.Body.Name, until, who.name, in.Body.Why)
	if err != nil {
		return nil, s.fail(err)
	}
	out := &pauseOutput{}
	out.Body.Returned = n
	return out, nil
}

func (s *Server) resume(ctx context.Context, in *resumeInput) (*struct{}, error) {
	who, err := s.bearers.authorize(in.Authorization, Operator)
	if err != nil {
		return nil, s.fail(err)
	}
	if err := s.control.Lift(ctx, job.Scope(in.Body.Scope), in.Body.Name, who.name, in.Body.Why); err != nil {
		return nil, s.fail(err)
	}
	return nil, nil
}

func (s *Server) limit(ctx context.Context, in *limitInput) (*struct{}, error) {
	who, err := s.bearers.authorize(in.Authorization, Operator)
	if err != nil {
		return nil, s.fail(err)
	}
	if err := s.control.SetLimit(ctx, in.Body.Tenant, in.Body.Max, who.name); err != nil {
		return nil, s.fail(err)
	}
	return nil, nil
}

func (s *Server) weights(ctx context.Context, in *pausesInput) (*weightsOutput, error) {
	if _, err := s.bearers.authorize(in.Authorization, Operator, Reporter); err != nil {
		return nil, s.fail(err)
	}
	found, err := s.control.Weights(ctx)
	if err != nil {
		return nil, s.fail(err)
	}
	out := &weightsOutput{}
	out.Body.Weights = append([]job.Weight{}, found...)
	return out, nil
}

func (s *Server) weight(ctx context.Context, in *weightInput) (*struct{}, error) {
	who, err := s.bearers.authorize(in.Authorization, Operator)
	if err != nil {
		return nil, s.fail(err)
	}
	if err := s.control.SetWeight(ctx, in.Body.Tenant, in.Body.Weight, who.name); err != nil {
		return nil, s.fail(err)
	}
	return nil, nil
}
