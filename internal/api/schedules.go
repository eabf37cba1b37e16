package api

import (
	"context"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"turnpike/internal/job"
)

// Schedules are the requests that are enqueued again and again. It returns
// job.ErrNoSchedule or job.ErrUnavailable.
type Schedules interface {
	// SetSchedule sets or changes the schedule of its tenant and name.
	SetSchedule(ctx context.Context, s job.Schedule, by string) (job.ScheduleView, error)
	// Schedules lists those of some tenants, or all when tenants is nil.
	Schedules(ctx context.Context, tenants []string) ([]job.ScheduleView, error)
	Schedule(ctx context.Context, tenant, name string) (job.ScheduleView, error)
	RemoveSchedule(ctx context.Context, tenant, name, by, why string) error
	PauseSchedule(ctx context.Context, tenant, name, by, why string) error
	ResumeSchedule(ctx context.Context, tenant, name, by, why string) error
}

// ScheduleInput names a schedule.
type ScheduleInput struct {
	Bearer
	Name   string `path:"name" doc:"the schedule's name"`
	Tenant string `query:"tenant" maxLength:"128" doc:"whose it is; absent: default"`
}

type setScheduleInput struct {
	ScheduleInput
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/json"`
}

type scheduleWhyInput struct {
	ScheduleInput
	Body *struct {
		Why string `json:"why,omitempty" maxLength:"500" doc:"for the record"`
	}
}

type schedulesInput struct {
	Bearer
	Tenant string `query:"tenant" maxLength:"128" doc:"only this tenant's"`
}

type scheduleOutput struct{ Body job.ScheduleView }

type schedulesOutput struct {
	Body struct {
		Schedules []job.ScheduleView `json:"schedules" nullable:"false"`
	}
}

// registerSchedules registers what enqueues by the clock. A producer has to do with the
// schedules of the tenants it enqueues for.
func (s *Server) registerSchedules(api huma.API) {
	const path = "/v1/schedules/{name}"
	huma.Register(api, huma.Operation{
		OperationID: "schedules", Method: http.MethodGet, Path: "/v1/schedules",
		Summary: "Schedules, without their requests", Errors: []int{401, 403, 422, 503},
	}, s.listSchedules)
	huma.Register(api, huma.Operation{
		OperationID: "schedule", Method: http.MethodGet, Path: path,
		Summary: "One schedule", Errors: []int{401, 403, 404, 422, 503},
	}, s.schedule)
	huma.Register(api, huma.Operation{
		OperationID: "set-schedule", Method: http.MethodPut, Path: path,
		Summary:      "Set a schedule, or change it",
		MaxBodyBytes: s.maxBody, BodyReadTimeout: 30 * time.Second, SkipValidateBody: true, // job.DecodeSchedule does
		Errors: []int{400, 401, 403, 413, 415, 422, 503},
	}, s.setSchedule)
	huma.Register(api, huma.Operation{
		OperationID: "remove-schedule", Method: http.MethodDelete, Path: path, DefaultStatus: http.StatusNoContent,
		Summary: "Remove a schedule; its jobs stay", Errors: []int{401, 403, 404, 422, 503},
	}, s.onSchedule(s.schedules.RemoveSchedule))
	huma.Register(api, huma.Operation{
		OperationID: "pause-schedule", Method: http.MethodPost, Path: path + "/pause", DefaultStatus: http.StatusNoContent,
		Summary: "Keep a schedule from acting", Errors: []int{401, 403, 404, 422, 503},
	}, s.onSchedule(s.schedules.PauseSchedule))
	huma.Register(api, huma.Operation{
		OperationID: "resume-schedule", Method: http.MethodPost, Path: path + "/resume", DefaultStatus: http.StatusNoContent,
		Summary: "Let a paused schedule act again, from now on", Errors: []int{401, 403, 404, 422, 503},
	}, s.onSchedule(s.schedules.ResumeSchedule))
	doc := api.OpenAPI()
	body := doc.Paths[path].Put.RequestBody
	body.Required = true
	body.Content["application/json"].Schema = doc.Components.Schemas.Schema(reflect.TypeFor[job.Schedule](), true, "Schedule")
}

// named is whose schedule is meant. To a producer, another tenant's does not exist.
func (s *Server) named(in ScheduleInput, roles ...Role) (caller, string, error) {
	who, err := s.bearers.authorize(in.Authorization, roles...)
	if err != nil {
		return who, "", err
	}
	tenant := in.Tenant
	if tenant == "" {
		tenant = job.DefaultTenant
	}
	if who.role == Producer && who.producer().May(tenant) != nil {
		return who, "", job.ErrNoSchedule
	}
	return who, tenant, nil
}

func (s *Server) listSchedules(ctx context.Context, in *schedulesInput) (*schedulesOutput, error) {
	who, err := s.bearers.authorize(in.Authorization, Producer, Operator, Reporter)
	if err != nil {
		return nil, s.fail(err)
	}
	var tenants []string // every one
	if p := who.producer(); who.role == Producer && !slices.Contains(p.Tenants, job.AnyTenant) {
		tenants = p.Tenants
	}
	if in.Tenant != "" {
		if who.role == Producer {
			if err := who.producer().May(in.Tenant); err != nil {
				return nil, s.fail(err)
			}
		}
		tenants = []string{in.Tenant}
	}
	found, err := s.schedules.Schedules(ctx, tenants)
	if err != nil {
		return nil, s.fail(err)
	}
	out := &schedulesOutput{}
	out.Body.Schedules = append([]job.ScheduleView{}, found...)
	for i := range out.Body.Schedules {
		out.Body.Schedules[i].Request = nil
	}
	return out, nil
}

func (s *Server) schedule(ctx context.Context, in *ScheduleInput) (*scheduleOutput, error) {
	_, tenant, err := s.named(*in, Producer, Operator, Reporter)
	if err != nil {
		return nil, s.fail(err)
	}
	found, err := s.schedules.Schedule(ctx, tenant, in.Name)
	if err != nil {
		return nil, s.fail(err)
	}
	return &scheduleOutput{found}, nil
}

// setSchedule goes by the tenant of the request that is to be enqueued.
func (s *Server) setSchedule(ctx context.Context, in *setScheduleInput) (*scheduleOutput, error) {
	who, err := s.bearers.authorize(in.Authorization, Producer, Operator)
	if err != nil {
		return nil, s.fail(err)
	}
	if media, _, err := mime.ParseMediaType(in.ContentType); err != nil || media != "application/json" {
		return nil, s.fail(errMediaType)
	}
	if len(in.RawBody) > job.MaxRequestBytes {
		return nil, s.fail(errTooLarge)
	}
	schedule, err := job.DecodeSchedule(in.Name, in.RawBody)
	if err != nil {
		return nil, s.fail(err)
	}
	if in.Tenant != "" && in.Tenant != schedule.Tenant {
		return nil, s.fail(&job.FieldError{Field: "tenant", Problem: "the request's is " + schedule.Tenant})
	}
	if err := who.producer().May(schedule.Tenant); err != nil {
		return nil, s.fail(err)
	}
	view, err := s.schedules.SetSchedule(ctx, schedule, who.name)
	if err != nil {
		return nil, s.fail(err)
	}
	return &scheduleOutput{view}, nil
}

// onSchedule does what goes by name.
func (s *Server) onSchedule(do func(ctx context.Context, tenant, name, by, why string) error) func(context.Context, *scheduleWhyInput) (*struct{}, error) {
	return func(ctx context.Context, in *scheduleWhyInput) (*struct{}, error) {
		who, tenant, err := s.named(in.ScheduleInput, Producer, Operator)
		if err != nil {
			return nil, s.fail(err)
		}
		why := ""
		if in.Body != nil {
			why = in.Body.Why
		}
		if err := do(ctx, tenant, in.Name, who.name, why); err != nil {
			return nil, s.fail(err)
		}
		return nil, nil
	}
}
