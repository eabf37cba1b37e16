package store_test

import (
	"testing"

	"turnpike/internal/job"
)

func TestLife(t *testing.T) {
	t.Parallel()
	d := open(t)
	c := d.running()
	if c.Attempt != 1 || c.Number != 1 || len(c.Request) == 0 {
		t.Fatalf("claimed %+v", c)
	}
	b, err := d.Beat(t.Context(), worker, []job.Beat{{Lease: c.Lease, Turns: 2, Conversation: "c1"}})
	if err != nil || !b[0].Ours {
		t.Fatal(b, err)
	}
	s := d.settle(ended(c, job.EndDone, touched))
	if s.How != job.SettledNow || s.State != job.Succeeded {
		t.Fatalf("%+v", s)
	}
	if s = d.settle(ended(c, job.EndDone, touched)); s.How != job.SettledBefore || s.State != job.Succeeded {
		t.Fatalf("%+v", s)
	}
	v := d.get(c.Job)
	t.Logf("%+v", v)
}
