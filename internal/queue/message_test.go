package queue_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"turnpike/internal/job"
	"turnpike/internal/queue"
)

const (
	anID  = job.ID("0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11")
	trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
)

var lane = job.Lane{Placement: "none-confined", Pool: "default"}

func TestDelivery(t *testing.T) {
	t.Parallel()
	subject := "turnpike.jobs.none-confined.default." + string(anID) + ".3"

	t.Run("round trip", func(t *testing.T) {
		t.Parallel()
		want := job.Delivery{Version: 1, Job: anID, Dispatch: 3, Lane: lane, Trace: trace}
		body, err := queue.EncodeDelivery(want)
		if err != nil {
			t.Fatal(err)
		}
		if got := queue.JobSubject(want); got != subject {
			t.Errorf("subject %s, want %s", got, subject)
		}
		got, err := queue.DecodeDelivery(subject, body)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})

	good := `{"v":1,"job":"` + string(anID) + `","dispatch":3}`
	if _, err := queue.DecodeDelivery(subject, []byte(good)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ subject, body string }{
		"no JSON":                {subject, `{`},
		"empty":                  {subject, ``},
		"unknown member":         {subject, strings.Replace(good, `}`, `,"prompt":"x"}`, 1)},
		"repeated member":        {subject, strings.Replace(good, `}`, `,"dispatch":3}`, 1)},
		"member of another case": {subject, strings.Replace(good, `"job"`, `"JOB"`, 1)},
		"trailing data":          {subject, good + `{}`},
		"another job":            {subject, strings.Replace(good, "2b11", "2b12", 1)},
		"another dispatch":       {subject, strings.Replace(good, `:3`, `:4`, 1)},
		"no version":             {subject, strings.Replace(good, `"v":1`, `"v":0`, 1)},
		"a newer version":        {subject, strings.Replace(good, `"v":1`, `"v":2`, 1)},
		"a trace that is none":   {subject, strings.Replace(good, `}`, `,"trace":"secret"}`, 1)},
		"a large body":           {subject, good + strings.Repeat(" ", 2048)},
		"no placement":           {strings.Replace(subject, "none-confined", "vm", 1), good},
		"an upper-case id":       {strings.ToUpper(subject), good},
		"a long subject":         {subject + ".1", good},
		"a leading zero":         {strings.Replace(subject, ".3", ".03", 1), good},
		"dispatch zero":          {strings.Replace(subject, ".3", ".0", 1), good},
		"a huge dispatch":        {strings.Replace(subject, ".3", ".99999999999", 1), good},
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			t.Parallel()
			if d, err := queue.DecodeDelivery(c.subject, []byte(c.body)); err == nil {
				t.Errorf("taken as %+v", d)
			}
		})
	}
}

func FuzzDecodeDelivery(f *testing.F) {
	d := job.Delivery{Job: anID, Dispatch: 3, Lane: lane, Trace: trace}
	body, err := queue.EncodeDelivery(d)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(queue.JobSubject(d), body)
	f.Add("turnpike.jobs.none.a.b.1", []byte(`{"v":1,"v":1}`))
	f.Fuzz(func(t *testing.T, subject string, body []byte) {
		d, err := queue.DecodeDelivery(subject, body)
		if err != nil {
			return
		}
		again, err := queue.EncodeDelivery(d)
		if err != nil || !bytes.Equal(again, body) || queue.JobSubject(d) != subject {
			t.Errorf("%q %q is not what is written for %+v", subject, body, d)
		}
	})
}

func FuzzDecodeReport(f *testing.F) {
	body, err := json.Marshal(report(anID, 2))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(queue.ResultSubject(anID, 2), body)
	f.Add(queue.ResultSubject(anID, 2), []byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, subject string, body []byte) {
		r, err := queue.DecodeReport(subject, body)
		if err == nil && queue.ResultSubject(r.Lease.Job, r.Lease.Attempt) != subject {
			t.Errorf("report of %s attempt %d taken from %q", r.Lease.Job, r.Lease.Attempt, subject)
		}
	})
}

func report(id job.ID, attempt int) job.Report {
	return job.Report{
		Version: job.ReportVersion,
		Lease:   job.Lease{Job: id, Attempt: attempt, Number: 7, Token: job.NewToken()},
		Worker:  "w1",
		Ending:  job.EndDone,
	}
}

func TestKind(t *testing.T) {
	for name, c := range map[string]struct{ err, want error }{
		"the server is away":          {nats.ErrNoServers, job.ErrUnavailable},
		"its cluster waits for peers": {&jetstream.APIError{Code: 400, ErrorCode: 10005}, job.ErrUnavailable},
		"its cluster has no leader":   {&jetstream.APIError{Code: 503, ErrorCode: 10008}, job.ErrUnavailable},
		"the stream is not there":     {&jetstream.APIError{Code: 404, ErrorCode: 10059}, job.ErrLaneMissing},
		"it does not fit":             {nats.ErrMaxPayload, queue.ErrTooLarge},
		"waiting does not cure it":    {&jetstream.APIError{Code: 400, ErrorCode: 10052}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := queue.Kind(t.Context(), "try", c.err)
			if c.want != nil && !errors.Is(got, c.want) || c.want == nil && (errors.Is(got, job.ErrUnavailable) || errors.Is(got, job.ErrLaneMissing)) {
				t.Errorf("%v", got)
			}
		})
	}
}
