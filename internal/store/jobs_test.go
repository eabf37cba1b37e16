package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"turnpike/internal/job"
	"turnpike/internal/work"
)

func TestEnqueue(t *testing.T) {
	t.Parallel()
	d := open(t)
	count := func() int { return ask[int](d, `SELECT count(*) FROM turnpike.jobs`) }

	t.Run("writes all or none", func(t *testing.T) {
		before := count()
		bad := entry(t)
		bad.Body = json.RawMessage(`{"half`)
		if _, err := d.Enqueue(t.Context(), []job.Entry{entry(t), bad}); err == nil {
			t.Error("no error")
		}
		if n := count(); n != before {
			t.Errorf("%d jobs more", n-before)
		}
	})
	t.Run("under an idempotency key", func(t *testing.T) {
		keyed := func(key, producer string, edit ...func(*job.Request)) job.Entry {
			e := entry(t, edit...)
			e.IdempotencyKey, e.Producer = key, producer
			return e
		}
		first, err := d.Enqueue(t.Context(), []job.Entry{keyed("k1", "ci"), keyed("k2", "ci"), keyed("k1", "ci"), keyed("k1", "other")})
		if err != nil {
			t.Fatal(err)
		}
		if first[0].ID != first[2].ID || first[0].ID == first[1].ID || first[0].ID == first[3].ID || first[0].Existing || !first[2].Existing {
			t.Errorf("%+v", first)
		}
		again, err := d.Enqueue(t.Context(), []job.Entry{keyed("k1", "ci")})
		if err != nil || again[0].ID != first[0].ID || !again[0].Existing || again[0].Lane != lane {
			t.Errorf("%+v, %v", again, err)
		}
		d.settle(ended(d.run(first[0].ID), job.EndDone))
		if again, err = d.Enqueue(t.Context(), []job.Entry{keyed("k1", "ci")}); err != nil || again[0].State != job.Succeeded {
			t.Errorf("after it finished: %+v, %v", again, err)
		}
		before := count()
		_, err = d.Enqueue(t.Context(), []job.Entry{entry(t), keyed("k1", "ci", func(r *job.Request) { r.Prompt = "other" })})
		wantIs(t, err, job.ErrConflict)
		if n := count(); n != before {
			t.Errorf("%d jobs more", n-before)
		}
	})
	t.Run("the same key at once makes one job", func(t *testing.T) {
		for i := range 10 {
			var wg sync.WaitGroup
			got := make([][]job.Accepted, 8)
			for k := range got {
				wg.Go(func() {
					a, b := entry(t), entry(t)
					a.IdempotencyKey, b.IdempotencyKey = fmt.Sprint("at once ", i), fmt.Sprint("too ", i)
					batch := []job.Entry{a, b}
					if k%2 == 0 { // in either order: locks must not cross
						slices.Reverse(batch)
					}
					var err error
					if got[k], err = d.Enqueue(t.Context(), batch); err != nil {
						t.Error(err)
						return
					}
					if k%2 == 0 {
						slices.Reverse(got[k])
					}
				})
			}
			wg.Wait()
			made := 0
			for _, g := range got {
				if g == nil {
					continue
				}
				if g[0].ID != got[0][0].ID || g[1].ID != got[0][1].ID {
					t.Fatalf("several jobs: %+v", got)
				}
				if !g[0].Existing {
					made++
				}
			}
			if made != 1 {
				t.Fatalf("%d made it", made)
			}
		}
	})
	t.Run("a dedup key returns the unfinished job of the tenant", func(t *testing.T) {
		dedup := func(r *job.Request) { r.DedupKey = "nightly" }
		a := d.enqueue(dedup)
		other := d.enqueue(dedup, tenant("other"))
		keyed := entry(t, dedup)
		keyed.IdempotencyKey = "dedup too"
		for range 2 {
			got, err := d.Enqueue(t.Context(), []job.Entry{entry(t), entry(t, dedup), keyed})
			if err != nil || got[1].ID != a || !got[1].Existing || got[2].ID != a || got[0].Existing || a == other {
				t.Fatal(got, err)
			}
		}
		d.settle(ended(d.run(a), job.EndDone))
		got, err := d.Enqueue(t.Context(), []job.Entry{keyed})
		if err != nil || got[0].ID != a || got[0].State != job.Succeeded {
			t.Error("the idempotency key forgot its job:", got, err)
		}
		b := d.enqueue(dedup)
		if b == a {
			t.Error("the key was not freed")
		}
		if _, err := d.Cancel(t.Context(), b, "me", ""); err != nil {
			t.Fatal(err)
		}
		d.enqueue(dedup)
	})
	t.Run("a dedup key at once, while its job ends, is never lost", func(t *testing.T) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 10 {
					got, err := d.Enqueue(t.Context(), []job.Entry{entry(t, func(r *job.Request) { r.DedupKey = "busy" })})
					if err != nil {
						t.Error(err)
						return
					}
					if _, err := d.Cancel(t.Context(), got[0].ID, "me", ""); err != nil && !errors.Is(err, job.ErrFinished) {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if n := ask[int](d, `SELECT count(*) FROM turnpike.queue WHERE dedup_key = 'busy'`); n != 0 {
			t.Errorf("%d left", n)
		}
	})
	t.Run("a tenant's limit refuses what is too much, and only that", func(t *testing.T) {
		if err := d.SetLimit(t.Context(), "small", 2, "me"); err != nil {
			t.Fatal(err)
		}
		small := tenant("small")
		dup := func(r *job.Request) { r.Tenant, r.DedupKey = "small", "x" }
		a := d.enqueue(small)
		d.enqueue(dup)
		_, err := d.Enqueue(t.Context(), []job.Entry{entry(t), entry(t, small)})
		wantIs(t, err, job.ErrQueueFull)
		if got, err := d.Enqueue(t.Context(), []job.Entry{entry(t, dup)}); err != nil || !got[0].Existing {
			t.Error("an existing job needs no room:", got, err)
		}
		d.enqueue(tenant("large"))
		if _, err := d.Cancel(t.Context(), a, "me", ""); err != nil {
			t.Fatal(err)
		}
		d.enqueue(small)
		if err := d.SetLimit(t.Context(), job.EveryTenant, 0, "me"); err != nil {
			t.Fatal(err)
		}
		_, err = d.Enqueue(t.Context(), []job.Entry{entry(t, tenant("large"))})
		wantIs(t, err, job.ErrQueueFull)
		for _, who := range []string{"small", job.EveryTenant} {
			if err := d.SetLimit(t.Context(), who, -1, "me"); err != nil {
				t.Fatal(err)
			}
		}
		d.enqueue(small)
	})
}

func TestEnqueueInOrder(t *testing.T) {
	t.Parallel()
	for name, keyed := range map[string]func(i int) bool{
		"without keys":    func(int) bool { return false },
		"some with a key": func(i int) bool { return i%3 == 0 },
		"one with a key":  func(i int) bool { return i == 250 },
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t)
			var entries []job.Entry
			for i := range 500 {
				entries = append(entries, entry(t, func(r *job.Request) {
					r.Name = fmt.Sprint(i)
					if keyed(i) {
						r.DedupKey = fmt.Sprint("in order ", i)
					}
				}))
			}
			got, err := d.Enqueue(t.Context(), entries)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.IsSortedFunc(got, func(a, b job.Accepted) int { return strings.Compare(string(a.ID), string(b.ID)) }) {
				t.Error("ids are out of order")
			}
			for i, a := range got {
				if a.Lane != lane || a.State != job.Queued || a.Existing {
					t.Fatalf("%+v", a)
				}
				if i%100 == 0 {
					if v := d.get(a.ID); v.Name != fmt.Sprint(i) || string(v.Request) != string(entries[i].Body) || v.Producer != "test" {
						t.Errorf("%+v", v)
					}
				}
				if a.ID[14] != '7' || !strings.ContainsRune("89ab", rune(a.ID[19])) {
					t.Errorf("%s is no UUIDv7", a.ID)
				}
			}
		})
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	d := open(t)
	for _, c := range []struct {
		from job.State
		id   job.ID
	}{
		{job.Scheduled, d.enqueue(func(r *job.Request) { r.RunAt = time.Now().Add(time.Hour) })},
		{job.Queued, d.enqueue()},
		{job.Dispatched, func() job.ID {
			id := d.enqueue(func(r *job.Request) { r.Tenant = "offered" })
			d.dispatch(10)
			return id
		}()},
	} {
		got, err := d.Cancel(t.Context(), c.id, "ada", "not needed")
		if err != nil || got.State != job.Cancel || got.Lane != lane {
			t.Errorf("%s: %+v, %v", c.from, got, err)
		}
		v := d.get(c.id)
		if v.State != job.Cancel || v.Cancel == nil || v.Cancel.By != "ada" || v.Cancel.Why != "not needed" || v.EndedAt == nil {
			t.Errorf("%s: %+v", c.from, v)
		}
		_, err = d.Cancel(t.Context(), c.id, "ada", "")
		wantIs(t, err, job.ErrFinished)
	}
	running := d.running()
	if got, err := d.Cancel(t.Context(), running.Job, "ada", "not needed"); err != nil || got.State != job.Running || got.Worker != worker {
		t.Errorf("running: %+v, %v", got, err)
	}
	d.settle(ended(running, job.EndCancelled, touched))
	if v := d.get(running.Job); v.State != job.Cancel || !slices.ContainsFunc(v.Events, func(e job.EventView) bool { return e.What == "cancel" && e.Note == "ada: not needed" }) {
		t.Errorf("running: %+v", v)
	}
	_, err := d.Cancel(t.Context(), "0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11", "ada", "")
	wantIs(t, err, job.ErrNotFound)
}

func TestRetry(t *testing.T) {
	t.Parallel()
	d := open(t)
	c := d.running(func(r *job.Request) {
		r.Name, r.Tenant, r.Priority, r.RunAt = "again", "acme", 5, time.Now().Add(-time.Hour)
		r.Work = work.Ref{Key: "W", Tags: []string{"x"}}
	})
	_, err := d.Retry(t.Context(), c.Job, "me")
	wantIs(t, err, job.ErrUnfinished)
	d.settle(ended(c, job.EndCapped))
	got, err := d.Retry(t.Context(), c.Job, "me")
	if err != nil || got.ID == c.Job || got.State != job.Queued || got.Lane != lane {
		t.Fatal(got, err)
	}
	v := d.get(got.ID)
	if v.RetryOf != c.Job || v.Name != "again" || v.Producer != "me" || v.Work.Key != "W" || v.Tenant != "acme" || string(v.Request) != string(c.Request) {
		t.Errorf("%+v", v)
	}
	_, err = d.Retry(t.Context(), "0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11", "me")
	wantIs(t, err, job.ErrNotFound)
}

// members are the JSON names of a struct's fields.
func members(of reflect.Type) (l []string) {
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		l = append(l, name)
	}
	slices.Sort(l)
	return l
}

func TestSQLEnqueue(t *testing.T) {
	t.Parallel()
	d := open(t)
	t.Run("knows the members of a request", func(t *testing.T) {
		if diff := cmp.Diff(members(reflect.TypeFor[job.Request]()), names(d, `SELECT member FROM turnpike.request_members() ORDER BY member COLLATE "C"`)); diff != "" {
			t.Errorf("(-job.Request +turnpike.enqueue):\n%s", diff)
		}
	})
	t.Run("is part of the caller's transaction", func(t *testing.T) {
		body, err := json.Marshal(request())
		if err != nil {
			t.Fatal(err)
		}
		tx, err := d.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var id string
		if err := tx.QueryRow(t.Context(), `SELECT turnpike.enqueue($1)::text`, string(body)).Scan(&id); err != nil {
			t.Fatal(err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err = d.Get(t.Context(), job.ID(id))
		wantIs(t, err, job.ErrNotFound)
	})
	t.Run("refuses by the member's name", func(t *testing.T) {
		ok := `{"api_version":"turnpike/v1","prompt":"p","grants":{},"workspace":{"scratch":true}`
		for body, field := range map[string]string{
			`[]`:                         "request",
			`null`:                       "request",
			`{}`:                         "api_version",
			ok + `,"promt":"x"}`:         "promt",
			ok + `,"env":[]}`:            "env",
			ok + `,"priority":"1"}`:      "priority",
			ok + `,"priority":1.5}`:      "priority",
			ok + `,"priority":101}`:      "priority",
			ok + `,"priority":1e300}`:    "priority",
			ok + `,"pool":"No Such"}`:    "pool",
			ok + `,"tenant":"a b"}`:      "tenant",
			ok + `,"account":"-x"}`:      "account",
			ok + `,"run_at":"tomorrow"}`: "run_at",
			ok + `,"run_at":"infinity"}`: "run_at",
			ok + `,"deadline":"2026-13-01T00:00:00Z"}`:                                "deadline",
			ok + `,"deadline":"1999-01-01T00:00:00Z"}`:                                "deadline",
			ok + `,"retry":{"policy":"maybe"}}`:                                       "retry.policy",
			ok + `,"retry":{"max_tries":21}}`:                                         "retry.max_tries",
			ok + `,"retry":{"backoff":"soon"}}`:                                       "retry.backoff",
			ok + `,"retry":{"backoff":"25h"}}`:                                        "retry.backoff",
			ok + `,"retry":{"backoff":5}}`:                                            "retry.backoff",
			ok + `,"profile":{"sandbox":"vm"}}`:                                       "profile.sandbox",
			ok + `,"profile":{"confine":"yes"}}`:                                      "profile.confine",
			ok + `,"profile":{"confine":true,"sandbox":"sbx"}}`:                       "profile.confine",
			ok + `,"profile":{"agent":"hal"}}`:                                        "profile.agent",
			ok + `,"work":{"key":7}}`:                                                 "work.key",
			ok + `,"work":{"tags":["a",1]}}`:                                          "work.tags",
			ok + `,"work":{"tags":"a"}}`:                                              "work.tags",
			ok + `,"dedup_key":"a\nb"}`:                                               "dedup_key",
			ok + `,"concurrency_key":"` + strings.Repeat("x", 257) + `"}`:             "concurrency_key",
			ok + `,"system_prompt":"` + strings.Repeat("x", 1<<20) + `"}`:             "request",
			`{"api_version":"turnpike/v2","prompt":"p","grants":{},"workspace":{}}`:   "api_version",
			`{"api_version":"turnpike/v1","prompt":" ","grants":{},"workspace":{}}`:   "prompt",
			`{"api_version":"turnpike/v1","prompt":"p","grants":null,"workspace":{}}`: "grants",
			`{"api_version":"turnpike/v1","prompt":"p","grants":{}}`:                  "workspace",
			`{"api_version":"turnpike/v1","prompt":"` + strings.Repeat("x", job.MaxPromptBytes+1) + `","grants":{},"workspace":{}}`: "prompt",
		} {
			_, err := d.pool.Exec(t.Context(), `SELECT turnpike.enqueue($1)`, body)
			pg, ok := errors.AsType[*pgconn.PgError](err)
			if !ok || pg.Code != "TQ003" || pg.ColumnName != field || pg.Detail == "" {
				t.Errorf("%.100s: got %v (field %q), want %q refused", body, err, pgField(pg), field)
			}
		}
		if n := ask[int](d, `SELECT count(*) FROM turnpike.jobs`); n != 0 {
			t.Errorf("%d jobs were written", n)
		}
	})
	t.Run("reads a request as the Go side does", func(t *testing.T) {
		there := map[string]string{} // a job of each tenant
		rapid.Check(t, func(rt *rapid.T) {
			r := drawRequest(rt)
			if rapid.Bool().Draw(rt, "after?") {
				if there[r.Tenant] == "" {
					there[r.Tenant] = string(d.enqueue(func(o *job.Request) {
						if r.Tenant != "" {
							o.Tenant = r.Tenant
						}
					}))
				}
				r.After = &job.After{Jobs: []string{strings.ToUpper(there[r.Tenant])},
					OnFailure: rapid.SampledFrom(append(job.AfterPolicies(), "")).Draw(rt, "on failure")}
				if rapid.Bool().Draw(rt, "resume?") {
					r.ResumeFrom, r.After.Jobs = there[r.Tenant], nil
				}
			}
			body, err := json.Marshal(r)
			if err != nil {
				rt.Fatal(err)
			}
			decoded, err := job.Decode(body)
			if err != nil {
				rt.Fatalf("the generator is wrong: %v", err)
			}
			id := ask[string](d, `SELECT turnpike.enqueue($1)::text`, string(body))
			acc, err := d.Enqueue(t.Context(), []job.Entry{{Request: decoded, Body: body, Producer: ask[string](d, `SELECT session_user::text`)}})
			if err != nil {
				rt.Fatal(err)
			}
			const facts = `
				SELECT (jsonb_build_object('waits', (SELECT to_jsonb(w) - 'job_id' FROM turnpike.waits w WHERE w.job_id = q.job_id)) || to_jsonb(j) - 'job_id' - 'created_at' - 'request' - CASE WHEN @run_at THEN '' ELSE 'run_at' END
					|| to_jsonb(q) - 'job_id' - 'checked' - 'ready' - CASE WHEN @run_at THEN '{}' ELSE '{run_at,rank}' END::text[])::text
				FROM turnpike.jobs j JOIN turnpike.queue q USING (job_id) WHERE job_id = @id`
			read := func(id string) (f map[string]any) {
				if err := json.Unmarshal([]byte(ask[string](d, facts, pgx.NamedArgs{"id": id, "run_at": !r.RunAt.IsZero()})), &f); err != nil {
					rt.Fatal(err)
				}
				return f
			}
			if diff := cmp.Diff(read(string(acc[0].ID)), read(id)); diff != "" {
				rt.Fatalf("%s\n(-Enqueue +turnpike.enqueue):\n%s", body, diff)
			}
			for _, id := range []string{id, string(acc[0].ID)} {
				if _, err := d.Cancel(t.Context(), job.ID(id), "", ""); err != nil {
					rt.Fatal(err)
				}
			}
		})
	})
	t.Run("survives whatever JSON comes", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			v := drawJSON(rt, 3)
			if rapid.Bool().Draw(rt, "nearly") { // a request with one member replaced
				b, err := json.Marshal(drawRequest(rt))
				if err != nil {
					rt.Fatal(err)
				}
				m := map[string]any{}
				if err := json.Unmarshal(b, &m); err != nil {
					rt.Fatal(err)
				}
				m[rapid.SampledFrom(members(reflect.TypeFor[job.Request]())).Draw(rt, "member")] = v
				v = m
			}
			body, err := json.Marshal(v)
			if err != nil {
				rt.Fatal(err)
			}
			var id string
			err = d.pool.QueryRow(t.Context(), `SELECT turnpike.enqueue($1)::text`, string(body)).Scan(&id)
			pg, _ := errors.AsType[*pgconn.PgError](err)
			switch {
			case err != nil && (pg == nil || pg.Code != "TQ003" && pg.Code != "22P05" && pg.Code != "22P02"): // refused, or no jsonb at all
				rt.Fatalf("%s: %v", body, err)
			case err == nil:
				if _, err := d.Cancel(t.Context(), job.ID(id), "", ""); err != nil {
					rt.Fatal(err)
				}
				return
			}
			if _, err := job.Decode(body); err == nil {
				rt.Fatalf("%s: SQL refuses (%v) what Go takes", body, pg)
			}
		})
	})
}

func pgField(e *pgconn.PgError) string {
	if e == nil {
		return ""
	}
	return e.ColumnName
}

func drawRequest(rt *rapid.T) job.Request {
	some := func(label string, of ...string) string { return rapid.SampledFrom(of).Draw(rt, label) }
	at := func(label string) time.Time {
		if !rapid.Bool().Draw(rt, label+"?") {
			return time.Time{}
		}
		return time.UnixMicro(rapid.Int64Range(1_700_000_000_000_000, 4_000_000_000_000_000).Draw(rt, label)).In(
			rapid.SampledFrom([]*time.Location{time.UTC, time.FixedZone("", 5*3600+1800)}).Draw(rt, label+" zone"))
	}
	line := rapid.StringOfN(rapid.RuneFrom([]rune("aZ9 -_/é😀\"\\")), 0, 12, -1)
	r := job.Request{
		APIVersion: job.APIVersion, Prompt: "x" + line.Draw(rt, "prompt"), Grants: &job.Grants{}, Workspace: job.Workspace{Scratch: true},
		Name: line.Draw(rt, "name"), Pool: some("pool", "", "gpu", "a-1"), Tenant: some("tenant", "", "acme", "A.b:c@d/e-f"),
		Account: some("account", "", "main"), Priority: rapid.IntRange(-100, 100).Draw(rt, "priority"), RunAt: at("run_at"),
		ConcurrencyKey: line.Draw(rt, "key"), Work: work.Ref{Key: line.Draw(rt, "work"), Tags: rapid.SliceOfN(line, 0, 3).Draw(rt, "tags")},
		Profile: job.Profile{Agent: some("agent", "", "claude", "codex", "pi"), Sandbox: some("sandbox", "", "none", "claude", "container", "sbx")},
		Retry: job.Retry{Policy: job.RetryPolicy(some("policy", append(policies(), "")...)), MaxTries: rapid.IntRange(0, 20).Draw(rt, "tries"),
			Backoff: job.Duration(rapid.Int64Range(0, int64(24*time.Hour)).Draw(rt, "backoff"))},
	}
	if r.Profile.Sandbox != "container" && r.Profile.Sandbox != "sbx" {
		r.Profile.Confine = rapid.Bool().Draw(rt, "confine")
	}
	if r.RunAt.IsZero() {
		r.Deadline = at("deadline")
	}
	return r
}

// drawJSON is any JSON value.
func drawJSON(rt *rapid.T, depth int) any {
	kinds := 4
	if depth > 0 {
		kinds = 6
	}
	switch rapid.IntRange(0, kinds-1).Draw(rt, "kind") {
	case 0:
		return nil
	case 1:
		return rapid.Bool().Draw(rt, "bool")
	case 2:
		return rapid.Float64().Draw(rt, "number")
	case 3:
		return rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "\x00", "1h", "-1", "2026-01-01T00:00:00Z", "2026-02-30T00:00:00Z"})).Draw(rt, "string")
	case 4:
		l := make([]any, rapid.IntRange(0, 3).Draw(rt, "n"))
		for i := range l {
			l[i] = drawJSON(rt, depth-1)
		}
		return l
	}
	m := map[string]any{}
	for range rapid.IntRange(0, 3).Draw(rt, "n") {
		m[rapid.SampledFrom([]string{"policy", "max_tries", "backoff", "key", "tags", "agent", "sandbox", "confine", "x", ""}).Draw(rt, "name")] = drawJSON(rt, depth-1)
	}
	return m
}
