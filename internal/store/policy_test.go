package store_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
)

// attempted is everything the policy may look at.
type attempted struct {
	Ending               job.Ending
	IsError              bool
	Started              bool
	Touched              bool
	Resumable            bool
	Cancelled            bool
	Policy               job.RetryPolicy
	Spent, Max           int
	Backoff              int64
	Crashes              int
	Overloads            int
	Returns              int
	Jitter               float64
	Next                 job.State
	Reason               string
	Spends, Back, Resume bool
	DelayMS              int64
}

// after is the two tables of the design, read literally.
func after(a attempted) (next job.State, reason string, spends, back, resume bool, delay int64) {
	wait := func(first int64, nth int, most int64) int64 {
		return int64(math.Floor(min(float64(first)*math.Pow(2, float64(min(nth, 20))), float64(max(most, first))) * (0.5 + 0.5*a.Jitter)))
	}
	const minute = 60_000
	switch a.Ending {
	case job.EndDone:
		if a.IsError {
			return job.Failed, "agent", true, false, false, 0
		}
		return job.Succeeded, "", true, false, false, 0
	case job.EndRefused:
		return job.Failed, "refused", false, false, false, 0
	case job.EndCapped:
		return job.Failed, "capped", true, false, false, 0
	}
	if a.Cancelled || a.Ending == job.EndCancelled {
		return job.Cancel, "cancelled", a.Started, false, false, 0
	}
	touched := a.Touched
	switch a.Ending {
	case job.EndUnready:
		return job.Scheduled, "unready", false, true, false, wait(5000, a.Returns, 10*minute)
	case job.EndLimited, job.EndCredential:
		if !touched {
			return job.Queued, string(a.Ending), false, true, false, 0
		}
		if a.Policy == job.RetryResume && a.Resumable {
			return job.Queued, string(a.Ending), false, true, true, 0
		}
	case job.EndOverloaded:
		if !touched && a.Overloads < 5 {
			return job.Scheduled, "overloaded", false, true, false, wait(10000, a.Overloads, 5*minute)
		}
	case job.EndDrained:
		if !a.Started {
			return job.Queued, "drained", false, true, false, 0
		}
		if a.Resumable {
			return job.Queued, "drained", false, true, true, 0
		}
	case job.EndLost:
		if a.Crashes+1 >= 3 {
			return job.Failed, "crashed", true, false, false, 0
		}
		touched = touched || a.Started
	}
	again := map[job.RetryPolicy]bool{
		job.RetryNever:        false,
		job.RetryIfNotStarted: !touched,
		job.RetryResume:       !touched || a.Resumable,
		job.RetryAlways:       true,
	}[a.Policy]
	if !again || a.Spent+1 >= a.Max {
		return job.Failed, string(a.Ending), true, false, false, 0
	}
	return job.Scheduled, string(a.Ending), true, false, a.Policy == job.RetryResume && touched, wait(a.Backoff, a.Spent, 60*minute)
}

// Every ending under every policy in every situation: the database decides as the
// tables say.
const everySituation = `
	WITH s AS (
		SELECT ending, is_error, started, touched, resumable, cancelled, policy, spent, max, backoff::bigint, crashes, overloads, returns,
			jitter::double precision
		FROM unnest($1::text[]) ending, unnest('{f,t}'::boolean[]) is_error, unnest('{f,t}'::boolean[]) started,
			unnest('{f,t}'::boolean[]) touched, unnest('{f,t}'::boolean[]) resumable, unnest('{f,t}'::boolean[]) cancelled,
			unnest($2::text[]) policy, (VALUES (0, 1), (0, 3), (2, 3), (18, 20)) t(spent, max), (VALUES (30000), (7200000)) b(backoff),
			unnest('{0,1,2}'::integer[]) crashes, unnest('{0,4,5}'::integer[]) overloads, unnest('{0,40}'::integer[]) returns,
			unnest('{0,0.999}'::double precision[]) jitter
		WHERE started OR NOT touched OR spent > 0
	)
	SELECT s.*, v.next::text, v.reason, v.spent, v.returned, v.resume, v.delay_ms
	FROM s CROSS JOIN LATERAL turnpike.after(s.ending, s.is_error, s.started, s.touched, s.resumable, s.cancelled, s.policy, s.spent, s.max, s.backoff,
		s.crashes, s.overloads, s.returns, s.jitter) v`

func TestPolicy(t *testing.T) {
	t.Parallel()
	d := open(t)
	rows, err := d.pool.Query(t.Context(), everySituation, endings(), policies())
	if err != nil {
		t.Fatal(err)
	}
	seen, wrong := 0, 0
	var a attempted
	_, err = pgx.ForEachRow(rows, []any{&a.Ending, &a.IsError, &a.Started, &a.Touched, &a.Resumable, &a.Cancelled, &a.Policy, &a.Spent, &a.Max,
		&a.Backoff, &a.Crashes, &a.Overloads, &a.Returns, &a.Jitter, &a.Next, &a.Reason, &a.Spends, &a.Back, &a.Resume, &a.DelayMS}, func() error {
		seen++
		next, reason, spends, back, resume, delay := after(a)
		got := fmt.Sprint(a.Next, a.Reason, a.Spends, a.Back, a.Resume, a.DelayMS)
		if want := fmt.Sprint(next, reason, spends, back, resume, delay); got != want {
			if wrong++; wrong < 10 {
				t.Errorf("%+v: got %s, want %s", a, got, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := len(job.Endings()) * len(job.RetryPolicies()) * 500; seen < want {
		t.Errorf("only %d situations", seen)
	}
	t.Logf("%d situations, %d wrong", seen, wrong)
}

func endings() (l []string) {
	for _, e := range job.Endings() {
		l = append(l, string(e))
	}
	return l
}

func policies() (l []string) {
	for _, p := range job.RetryPolicies() {
		l = append(l, string(p))
	}
	return l
}
