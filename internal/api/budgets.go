package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"turnpike/internal/job"
)

// budgetNamed is how a budget is named in a body.
type budgetNamed struct {
	Scope string `json:"scope" enum:"tenant,tag,profile"`
	Name  string `json:"name" minLength:"1" maxLength:"256" doc:"a tenant, a work tag, or the name of a profile"`
	Per   string `json:"per" maxLength:"32" doc:"the window, such as 24h"`
	Why   string `json:"why,omitempty" maxLength:"500" doc:"for the record"`
}

func (n budgetNamed) key() (k job.BudgetKey, err error) {
	k.Scope, k.Name = job.BudgetScope(n.Scope), n.Name
	if err := k.Per.UnmarshalText([]byte(n.Per)); err != nil {
		return k, &job.FieldError{Field: "per", Problem: err.Error()}
	}
	return k, k.Check()
}

type setBudgetInput struct {
	Bearer
	Body struct {
		Scope    string `json:"scope" enum:"tenant,tag,profile"`
		Name     string `json:"name" minLength:"1" maxLength:"256" doc:"a tenant, a work tag, or the name of a profile"`
		Per      string `json:"per" maxLength:"32" doc:"the window, such as 24h"`
		LimitUSD string `json:"limit_usd" maxLength:"32" doc:"a decimal number of US dollars"`
		WarnUSD  string `json:"warn_usd,omitempty" maxLength:"32" doc:"the warning level; absent: none"`
		Why      string `json:"why,omitempty" maxLength:"500" doc:"for the record"`
	}
}

type removeBudgetInput struct {
	Bearer
	Body budgetNamed
}

type budgetsInput struct{ Bearer }

type budgetsOutput struct {
	Body struct {
		Budgets []job.Budget `json:"budgets" nullable:"false"`
	}
}

type orphansOutput struct {
	Body struct {
		Orphans []job.Orphan `json:"orphans" nullable:"false"`
	}
}

type orphanGoneInput struct {
	Bearer
	Body struct {
		Job     string `json:"job" format:"uuid"`
		Attempt int    `json:"attempt" minimum:"1"`
		Kind    string `json:"kind" enum:"process,container,sandbox"`
		Why     string `json:"why" minLength:"1" maxLength:"500" doc:"how it is known to be gone, for the record"`
	}
}

// registerBudgets registers what bounds spending, and what may still run unseen.
func (s *Server) registerBudgets(api huma.API) {
	huma.Register(api, huma.Operation{
		OperationID: "budgets", Method: http.MethodGet, Path: "/v1/budgets",
		Summary: "How every budget stands", Errors: []int{401, 403, 503},
	}, s.budgets)
	huma.Register(api, huma.Operation{
		OperationID: "set-budget", Method: http.MethodPut, Path: "/v1/budgets", DefaultStatus: http.StatusNoContent,
		Summary: "Bound what jobs may cost together in any stretch of time of a length", Errors: []int{401, 403, 422, 503},
	}, s.setBudget)
	huma.Register(api, huma.Operation{
		OperationID: "remove-budget", Method: http.MethodPost, Path: "/v1/budgets/remove", DefaultStatus: http.StatusNoContent,
		Summary: "Lift a budget", Errors: []int{401, 403, 404, 422, 503},
	}, s.removeBudget)
	huma.Register(api, huma.Operation{
		OperationID: "orphans", Method: http.MethodGet, Path: "/v1/orphans",
		Summary: "What may still run although nobody keeps its lease", Errors: []int{401, 403, 503},
	}, s.orphans)
	huma.Register(api, huma.Operation{
		OperationID: "orphan-gone", Method: http.MethodPost, Path: "/v1/orphans/gone", DefaultStatus: http.StatusNoContent,
		Summary: "Record that an orphan is gone, on the word of a person who looked", Errors: []int{401, 403, 404, 422, 503},
	}, s.orphanGone)
}

func (s *Server) budgets(ctx context.Context, in *budgetsInput) (*budgetsOutput, error) {
	if _, err := s.bearers.authorize(in.Authorization, Operator, Reporter); err != nil {
		return nil, s.fail(err)
	}
	found, err := s.control.Budgets(ctx)
	if err != nil {
		return nil, s.fail(err)
	}
	out := &budgetsOutput{}
	out.Body.Budgets = append([]job.Budget{}, found...)
	return out, nil
}

func (s *Server) setBudget(ctx context.Context, in *setBudgetInput) (*struct{}, error) {
	who, err := s.bearers.authorize(in.Authorization, Operator)
	if err != nil {
		return nil, s.fail(err)
	}
	b := job.Budget{}
	if b.BudgetKey, err = (budgetNamed{Scope: in.Body.Scope, Name: in.Body.Name, Per: in.Body.Per}).key(); err != nil {
		return nil, s.fail(err)
	}
	if b.LimitUSD, err = job.ParseUSD(in.Body.LimitUSD); err != nil {
		return nil, s.fail(&job.FieldError{Field: "limit_usd", Problem: err.Error()})
	}
	if in.Body.WarnUSD != "" {
		warn, err := job.ParseUSD(in.Body.WarnUSD)
		if err != nil {
			return nil, s.fail(&job.FieldError{Field: "warn_usd", Problem: err.Error()})
		}
		b.WarnUSD = &warn
	}
	if err := s.control.SetBudget(ctx, b, who.name, in.Body.Why); err != nil {
		return nil, s.fail(err)
	}
	return nil, nil
}

func (s *Server) removeBudget(ctx context.Context, in *removeBudgetInput) (*struct{}, error) {
	who, err := s.bearers.authorize(in.Authorization, Operator)
	if err != nil {
		return nil, s.fail(err)
	}
	k, err := in.Body.key()
	if err != nil {
		return nil, s.fail(err)
	}
	if err := s.control.RemoveBudget(ctx, k, who.name, in.Body.Why); err != nil {
		return nil, s.fail(err)
	}
	return nil, nil
}

func (s *Server) orphans(ctx context.Context, in *budgetsInput) (*orphansOutput, error) {
	if _, err := s.bearers.authorize(in.Authorization, Operator, Reporter); err != nil {
		return nil, s.fail(err)
	}
	found, err := s.control.OrphansLeft(ctx)
	if err != nil {
		return nil, s.fail(err)
	}
	out := &orphansOutput{}
	out.Body.Orphans = append([]job.Orphan{}, found...)
	return out, nil
}

func (s *Server) orphanGone(ctx context.Context, in *orphanGoneInput) (*struct{}, error) {
	who, err := s.bearers.authorize(in.Authorization, Operator)
	if err != nil {
		return nil, s.fail(err)
	}
	o := job.Orphan{Job: job.ID(in.Body.Job), Attempt: in.Body.Attempt, Kind: in.Body.Kind}
	if err := s.control.CloseOrphan(ctx, o, who.name, in.Body.Why); err != nil {
		return nil, s.fail(err)
	}
	return nil, nil
}
