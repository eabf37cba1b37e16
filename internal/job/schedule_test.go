package job_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"turnpike/internal/job"
)

// schedule is one with some members, as JSON.
func schedule(members string) []byte {
	return []byte(`{` + members + `, "request": ` + minimal + `}`)
}

func TestDecodeSchedule(t *testing.T) {
	t.Parallel()
	t.Run("fills in what is left out", func(t *testing.T) {
		t.Parallel()
		s, err := job.DecodeSchedule("nightly", schedule(`"cron": "@daily"`))
		if err != nil {
			t.Fatal(err)
		}
		if s.Name != "nightly" || s.Tenant != job.DefaultTenant || s.Zone != "UTC" || s.Missed != job.MissedOnce || s.Overlap != job.OverlapSkip {
			t.Errorf("%+v", s)
		}
	})
	t.Run("what is shown can be set", func(t *testing.T) {
		t.Parallel()
		s, err := job.DecodeSchedule("nightly", schedule(`"cron": "@daily", "from": "2030-01-01T00:00:00Z"`))
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		again, err := job.DecodeSchedule("nightly", b)
		if err != nil || !again.From.Equal(s.From) || again.Tenant != s.Tenant {
			t.Errorf("%+v, %v", again, err)
		}
	})
	t.Run("missed all makes queue the default", func(t *testing.T) {
		t.Parallel()
		s, err := job.DecodeSchedule("x", schedule(`"cron": "@daily", "missed": "all"`))
		if err != nil || s.Overlap != job.OverlapQueue {
			t.Errorf("%q, %v", s.Overlap, err)
		}
	})
	for name, c := range map[string]struct {
		name, body string
		fields     []string
	}{
		"no expression":          {"x", string(schedule(`"tz": "UTC"`)), []string{"cron"}},
		"no request":             {"x", `{"cron": "@daily"}`, []string{"request"}},
		"an unknown member":      {"x", string(schedule(`"cron": "@daily", "zone": "UTC"`)), []string{"zone"}},
		"a member twice":         {"x", string(schedule(`"cron": "@daily", "cron": "@daily"`)), []string{"cron"}},
		"a name of another":      {"x", string(schedule(`"cron": "@daily", "name": "y"`)), []string{"name"}},
		"a name that is a path":  {"a/b", string(schedule(`"cron": "@daily"`)), []string{"name"}},
		"policies there are not": {"x", string(schedule(`"cron": "@daily", "missed": "none", "overlap": "kill"`)), []string{"missed", "overlap"}},
		"all and skip":           {"x", string(schedule(`"cron": "@daily", "missed": "all", "overlap": "skip"`)), []string{"overlap"}},
		"an end before it":       {"x", string(schedule(`"cron": "@daily", "from": "2030-01-01T00:00:00Z", "until": "2029-01-01T00:00:00Z"`)), []string{"until"}},
		"another tenant":         {"x", string(schedule(`"cron": "@daily", "tenant": "acme"`)), []string{"tenant"}},
		"a request that is bad":  {"x", `{"cron": "1 2", "request": ` + with("prompt", `""`) + `}`, []string{"cron", "request.prompt"}},
		"times of its own": {"x", `{"cron": "@daily", "request": ` + strings.Replace(with("run_at", `"2030-01-01T00:00:00Z"`), "{\n", `{"deadline": "2031-01-01T00:00:00Z",`, 1) + `}`,
			[]string{"request.run_at", "request.deadline"}},
		"jobs before it": {"x", `{"cron": "@daily", "request": ` + strings.Replace(with("resume_from", `"0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11"`), "{\n", `{"after": {},`, 1) + `}`,
			[]string{"request.after", "request.resume_from"}},
		"a dedup key to cancel under": {"x", `{"cron": "@daily", "overlap": "cancel", "request": ` + with("dedup_key", `"k"`) + `}`, []string{"request.dedup_key"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := job.DecodeSchedule(c.name, []byte(c.body))
			if !errors.Is(err, job.ErrInvalid) {
				t.Fatalf("%v", err)
			}
			all, ok := errors.AsType[job.Invalid](err)
			if one, is := errors.AsType[*job.FieldError](err); !ok && is {
				all = job.Invalid{one}
			}
			var fields []string
			for _, f := range all {
				fields = append(fields, f.Field)
			}
			if !slices.Equal(fields, c.fields) {
				t.Errorf("blames %v: %v", fields, err)
			}
		})
	}
}

func TestFiring(t *testing.T) {
	t.Parallel()
	due := func(missed job.Missed, at, now string) job.Due {
		return job.Due{ID: 7, Producer: "anna", At: utc(t, at), Now: utc(t, now),
			Schedule: job.Schedule{Tenant: "default", Name: "x", Cron: "* * * * *", Missed: missed, Request: []byte(minimal)}}
	}
	for name, c := range map[string]struct {
		due  job.Due
		jobs []string // the time of day of each, or of the first and the last
		left int
		note string
	}{
		"on time": {due(job.MissedSkip, "2030-01-01T10:00:00Z", "2030-01-01T10:00:59Z"), []string{"10:00"}, 0, ""},
		"skip":    {due(job.MissedSkip, "2030-01-01T10:00:00Z", "2030-01-01T10:03:10Z"), []string{"10:03"}, 3, "3 missed since 2030-01-01T10:00:00Z, skipped"},
		"once":    {due(job.MissedOnce, "2030-01-01T10:00:00Z", "2030-01-01T10:03:10Z"), []string{"10:03"}, 3, "3 missed since 2030-01-01T10:00:00Z, made up for"},
		"all":     {due(job.MissedAll, "2030-01-01T10:00:00Z", "2030-01-01T10:01:10Z"), []string{"10:00", "10:01"}, 0, "1 missed since 2030-01-01T10:00:00Z, made up for"},
		"all, of the newest hundred": {due(job.MissedAll, "2030-01-01T10:00:00Z", "2030-01-01T12:00:00Z"), []string{"10:21", "12:00"}, 21,
			"120 missed since 2030-01-01T10:00:00Z; the 21 oldest are not made up for"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := c.due.Firing()
			if err != nil {
				t.Fatal(err)
			}
			var jobs []string
			for _, e := range f.Entries {
				jobs = append(jobs, e.Request.RunAt.UTC().Format("15:04"))
			}
			if len(jobs) > 2 {
				jobs = []string{jobs[0], jobs[len(jobs)-1]}
			}
			if !slices.Equal(jobs, c.jobs) || f.Left != c.left || f.Note != c.note {
				t.Errorf("jobs %v, %d left, %q", jobs, f.Left, f.Note)
			}
			if !f.Next.After(c.due.Now) || f.Next.Sub(c.due.Now) > time.Minute {
				t.Errorf("next at %s", f.Next)
			}
		})
	}
	t.Run("each job bears its mark", func(t *testing.T) {
		t.Parallel()
		f, err := due(job.MissedOnce, "2030-01-01T10:00:00Z", "2030-01-01T10:00:01Z").Firing()
		if err != nil {
			t.Fatal(err)
		}
		if e := f.Entries[0]; e.IdempotencyKey != "schedule 7 2030-01-01T10:00:00Z" || e.Producer != "anna" || string(e.Body) != minimal {
			t.Errorf("%+v", e)
		}
	})
	t.Run("ends", func(t *testing.T) {
		t.Parallel()
		d := due(job.MissedAll, "2030-01-01T10:00:00Z", "2030-01-01T11:00:00Z")
		d.Until = utc(t, "2030-01-01T10:02:00Z")
		f, err := d.Firing()
		if err != nil || len(f.Entries) != 3 || !f.Next.IsZero() {
			t.Errorf("%d jobs, next at %s, %v", len(f.Entries), f.Next, err)
		}
	})
	t.Run("begins", func(t *testing.T) {
		t.Parallel()
		d := due(job.MissedAll, "2030-01-01T10:00:00Z", "2030-01-01T11:00:00Z")
		d.From = utc(t, "2030-01-05T10:00:00Z")
		table, err := d.Timetable()
		if err != nil {
			t.Fatal(err)
		}
		if got := table.Next(d.Now); !got.Equal(d.From) {
			t.Errorf("first at %s", got)
		}
	})
}
