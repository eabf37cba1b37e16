package api_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"turnpike/internal/job"
)

var nightly = job.ScheduleView{
	Schedule: job.Schedule{Tenant: "default", Name: "nightly", Cron: "@daily", Zone: "UTC", Missed: job.MissedOnce, Overlap: job.OverlapSkip, Request: []byte(request)},
	Producer: "ci", SetAt: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
}

func (b *backend) order(words ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ordered = append(b.ordered, strings.Join(words, " "))
}

func (b *backend) SetSchedule(_ context.Context, s job.Schedule, by string) (job.ScheduleView, error) {
	b.order("set", s.Tenant, s.Name, s.Cron, s.Zone, string(s.Missed), string(s.Overlap), by)
	return job.ScheduleView{Schedule: s, Producer: by}, b.fail
}

func (b *backend) Schedules(_ context.Context, tenants []string) ([]job.ScheduleView, error) {
	b.order(append([]string{"list"}, tenants...)...)
	return []job.ScheduleView{nightly}, b.fail
}

func (b *backend) Schedule(_ context.Context, _, name string) (job.ScheduleView, error) {
	if name != nightly.Name {
		return job.ScheduleView{}, job.ErrNoSchedule
	}
	return nightly, b.fail
}

func (b *backend) RemoveSchedule(_ context.Context, tenant, name, by, why string) error {
	b.order("remove", tenant, name, by, why)
	return b.fail
}

func (b *backend) PauseSchedule(_ context.Context, tenant, name, by, why string) error {
	b.order("pause", tenant, name, by, why)
	return b.fail
}

func (b *backend) ResumeSchedule(_ context.Context, tenant, name, by, why string) error {
	b.order("resume", tenant, name, by, why)
	return b.fail
}

func TestSchedules(t *testing.T) {
	t.Parallel()
	b := newBackend()
	s := serve(t, b, withTokens)
	const anna, ci = "Authorization: Bearer anna-token", "Authorization: Bearer ci-token"
	for _, c := range []struct {
		who, method, path, body string
		status                  int
		ordered                 string // what came of it; empty: nothing
	}{
		{ci, "PUT", "/v1/schedules/nightly", `{"cron":"0 3 * * 1-5","tz":"Europe/Berlin","missed":"all","request":` + request + `}`, 200,
			"set default nightly 0 3 * * 1-5 Europe/Berlin all queue ci"},
		{anna, "PUT", "/v1/schedules/nightly?tenant=acme", `{"cron":"@daily","request":` + request + `}`, 422, ""},
		{anna, "PUT", "/v1/schedules/nightly", `{"cron":"@daily","cron":"@hourly","request":` + request + `}`, 422, ""},
		{anna, "PUT", "/v1/schedules/nightly", `{"cron":"@daily","request":{"run_at":"2030-01-01T00:00:00Z",` + request[1:] + `}`, 422, ""},
		{anna, "POST", "/v1/schedules/nightly/pause?tenant=acme", `{"why":"a freeze"}`, 204, "pause acme nightly anna a freeze"},
		{anna, "POST", "/v1/schedules/nightly/resume", "", 204, "resume default nightly anna "},
		{ci, "DELETE", "/v1/schedules/nightly", `{"why":"over"}`, 204, "remove default nightly ci over"},
		{ci, "GET", "/v1/schedules", "", 200, "list default"},
		{anna, "GET", "/v1/schedules", "", 200, "list"},
		{anna, "GET", "/v1/schedules?tenant=acme", "", 200, "list acme"},
	} {
		b.ordered = nil
		w := ask(s, c.method, c.path, c.body, c.who)
		var want []string
		if c.ordered != "" {
			want = []string{c.ordered}
		}
		if w.Code != c.status || !slices.Equal(b.ordered, want) {
			t.Errorf("%s %s %s: %d, did %q: %s", c.method, c.path, c.body, w.Code, b.ordered, w.Body)
		}
	}

	t.Run("lists leave the requests out, one shows its own", func(t *testing.T) {
		var list struct{ Schedules []job.ScheduleView }
		var one job.ScheduleView
		for path, into := range map[string]any{"/v1/schedules": &list, "/v1/schedules/nightly": &one} {
			if w := ask(s, http.MethodGet, path, "", anna); json.Unmarshal(w.Body.Bytes(), into) != nil {
				t.Fatalf("%s: %s", path, w.Body)
			}
		}
		if len(list.Schedules) != 1 || list.Schedules[0].Request != nil || list.Schedules[0].Producer != "ci" {
			t.Errorf("%+v", list)
		}
		if !strings.Contains(string(one.Request), "say hello") {
			t.Errorf("%+v", one)
		}
	})
}
