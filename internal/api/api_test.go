package api_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"turnpike/internal/api"
	"turnpike/internal/dispatcher"
	"turnpike/internal/job"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	anID    = job.ID("0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11")
	another = job.ID("0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b12")
	request = `{
		"api_version": "turnpike/v1",
		"prompt": "say hello",
		"profile": {"name": "coder", "agent": "claude", "sandbox": "none", "confine": true},
		"grants": {},
		"workspace": {"scratch": true}
	}`
)

// backend is Postgres and NATS as the server sees them.
type backend struct {
	mu       sync.Mutex
	entries  []job.Entry
	fail     error
	view     job.View
	filter   job.Filter
	by, why  string
	ordered  []string
	redrives []job.Redrive
	chunks   []job.TranscriptChunk
	existed  bool
	more     chan job.TranscriptChunk // what comes while somebody follows
}

func (b *backend) Enqueue(_ context.Context, entries []job.Entry) ([]job.Accepted, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return nil, b.fail
	}
	b.entries = append(b.entries, entries...)
	out := make([]job.Accepted, len(entries))
	for i := range out {
		out[i] = job.Accepted{ID: anID, State: job.Queued, Existing: b.existed}
	}
	return out, nil
}

func (b *backend) Get(_ context.Context, id job.ID) (job.View, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail == nil && id != b.view.ID {
		return job.View{}, job.ErrNotFound
	}
	return b.view, b.fail
}

func (b *backend) List(_ context.Context, f job.Filter) ([]job.Summary, error) {
	b.filter = f
	return []job.Summary{b.view.Summary}, b.fail
}

func (b *backend) Report(_ context.Context, by string, _ time.Time) ([]job.ReportRow, error) {
	return []job.ReportRow{{Key: by, Jobs: 3}}, b.fail
}

func (b *backend) Cancel(_ context.Context, id job.ID, by, why string) (job.CancelAnswer, error) {
	b.by, b.why = by, why
	if b.view.State.Final() {
		return job.CancelAnswer{}, job.ErrFinished
	}
	return job.CancelAnswer{ID: id, State: b.view.State}, b.fail
}

func (b *backend) Pause(_ context.Context, scope job.Scope, name string, _ time.Time, by, why string) (int, error) {
	b.ordered = append(b.ordered, strings.Join([]string{"pause", string(scope), name, by, why}, " "))
	return 2, b.fail
}

func (b *backend) Lift(_ context.Context, scope job.Scope, name, by, why string) error {
	b.ordered = append(b.ordered, strings.Join([]string{"resume", string(scope), name, by, why}, " "))
	return b.fail
}

func (b *backend) Pauses(context.Context) ([]job.Pause, error) {
	return []job.Pause{{Scope: job.ScopeTenant, Name: "acme", Active: true, By: "anna"}}, b.fail
}

func (b *backend) SetLimit(_ context.Context, tenant string, most int, by string) error {
	b.ordered = append(b.ordered, fmt.Sprint("limit ", tenant, " ", most, " ", by))
	return b.fail
}

func (b *backend) SetWeight(_ context.Context, tenant string, weight int, by string) error {
	b.ordered = append(b.ordered, fmt.Sprint("weight ", tenant, " ", weight, " ", by))
	return b.fail
}

func (b *backend) Weights(context.Context) ([]job.Weight, error) {
	return []job.Weight{{Tenant: "acme", Weight: 4, By: "anna"}}, b.fail
}

func (b *backend) Redrive(_ context.Context, r job.Redrive, by string) (job.RedriveAnswer, error) {
	b.redrives = append(b.redrives, r)
	return job.RedriveAnswer{Redriven: 1, PassedOver: 2, Jobs: []job.Redriven{{RetryOf: anID, ID: another, Tenant: "acme"}}, Next: anID}, b.fail
}

func (b *backend) SetBudget(_ context.Context, x job.Budget, by, why string) error {
	if err := x.Check(); err != nil {
		return err
	}
	b.ordered = append(b.ordered, fmt.Sprint("budget ", x.BudgetKey, " ", x.LimitUSD, " ", x.WarnUSD, " ", by, " ", why))
	return b.fail
}

func (b *backend) RemoveBudget(_ context.Context, k job.BudgetKey, by, why string) error {
	if k.Name == "nobody" {
		return job.ErrNoBudget
	}
	b.ordered = append(b.ordered, fmt.Sprint("remove ", k, " ", by, " ", why))
	return b.fail
}

func (b *backend) Budgets(context.Context) ([]job.Budget, error) {
	return []job.Budget{{BudgetKey: job.BudgetKey{Scope: job.BudgetTenant, Name: "acme", Per: job.Duration(24 * time.Hour)},
		LimitUSD: 5_000_000, SpentUSD: 1_250_000, LeftUSD: 3_750_000, State: job.BudgetOK, By: "anna"}}, b.fail
}

func (b *backend) OrphansLeft(context.Context) ([]job.Orphan, error) {
	return []job.Orphan{{Job: another, Attempt: 1, Kind: "process", Worker: "w", State: job.OrphanLive}}, b.fail
}

func (b *backend) CloseOrphan(_ context.Context, o job.Orphan, by, why string) error {
	if o.Job == anID {
		return job.ErrNoOrphan
	}
	b.ordered = append(b.ordered, fmt.Sprint("gone ", o.Job, " ", o.Attempt, " ", o.Kind, " ", by, " ", why))
	return b.fail
}

func (b *backend) Retry(context.Context, job.ID, string) (job.Accepted, error) {
	return job.Accepted{ID: another, State: job.Queued}, b.fail
}

func (b *backend) Wake() error             { return nil }
func (b *backend) PushCancel(job.ID) error { return nil }

func (b *backend) Tail(ctx context.Context, _ job.ID, attempt int, after uint64, follow bool, emit func(job.TranscriptChunk) error) error {
	b.mu.Lock()
	chunks := append([]job.TranscriptChunk(nil), b.chunks...)
	b.mu.Unlock()
	for _, c := range chunks {
		if c.Seq <= after || attempt > 0 && c.Attempt != attempt {
			continue
		}
		if err := emit(c); err != nil {
			return err
		}
	}
	for follow {
		select {
		case c := <-b.more:
			b.mu.Lock()
			b.chunks = append(b.chunks, c)
			b.mu.Unlock()
			if err := emit(c); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

var quiet = slog.New(slog.DiscardHandler)

var tokens = []api.Token{
	{Name: "ci", Role: api.Producer, SHA256: api.HashToken("ci-token")},
	{Name: "other", Role: api.Producer, SHA256: api.HashToken("other-token"), Tenants: []string{"default", "acme"}},
	{Name: "anna", Role: api.Operator, SHA256: api.HashToken("anna-token")},
	{Name: "boss", Role: api.Reporter, SHA256: strings.ToUpper(api.HashToken("boss-token"))},
}

func newBackend() *backend {
	return &backend{
		view: job.View{Summary: job.Summary{ID: anID, Tenant: "default", Lane: "none-confined/default", State: job.Running}, Producer: "ci"},
		more: make(chan job.TranscriptChunk),
	}
}

func serve(t *testing.T, b *backend, change ...func(*api.Config)) *api.Server {
	t.Helper()
	cfg := api.Config{
		Intake:      &dispatcher.Intake{Jobs: b, Waker: b, Bell: dispatcher.NewBell(), Log: quiet},
		Jobs:        b,
		Control:     &dispatcher.Control{Jobs: b, Pusher: b, Waker: b, Bell: dispatcher.NewBell(), Log: quiet},
		Schedules:   b,
		Transcripts: b,
		Patches:     b,
		Log:         quiet,
	}
	for _, c := range change {
		c(&cfg)
	}
	s, err := api.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func withTokens(c *api.Config) { c.Tokens = tokens }

// ask makes one request; headers are "Name: value".
func ask(s http.Handler, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://127.0.0.1"+path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	if h := r.Header.Get("Host"); h != "" {
		r.Host = h
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func TestEnqueue(t *testing.T) {
	t.Parallel()

	t.Run("one request, as it came", func(t *testing.T) {
		t.Parallel()
		b := newBackend()
		w := ask(serve(t, b, withTokens), "POST", "/v1/jobs", request, "Authorization: Bearer ci-token", "Idempotency-Key: k1")
		if w.Code != http.StatusCreated || w.Header().Get("Location") != "/v1/jobs/"+string(anID) {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		e := b.entries[0]
		if string(e.Body) != request || e.Producer != "ci" || e.IdempotencyKey != "k1" {
			t.Errorf("entry %+v", e)
		}
		var got job.Accepted
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.ID != anID {
			t.Errorf("%s: %v", w.Body, err)
		}
	})

	t.Run("one that was there is 200", func(t *testing.T) {
		t.Parallel()
		b := newBackend()
		b.existed = true
		if w := ask(serve(t, b), "POST", "/v1/jobs", request); w.Code != http.StatusOK {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})

	t.Run("a batch", func(t *testing.T) {
		t.Parallel()
		b := newBackend()
		w := ask(serve(t, b), "POST", "/v1/jobs", " \n["+request+","+request+"]")
		var got []job.Accepted
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusCreated || len(got) != 2 || len(b.entries) != 2 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// TestProblems holds what a caller reads of every kind of failure.
func TestProblems(t *testing.T) {
	t.Parallel()
	replaced := func(old, by string) string { return strings.Replace(request, old, by, 1) }
	deep := strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100)
	for name, c := range map[string]struct {
		fail    error
		state   job.State
		method  string // default POST
		path    string // default /v1/jobs
		body    string
		headers []string
		status  int
		retry   string
	}{
		"no_json":           {body: `{"prompt":`, status: 422},
		"empty_body":        {status: 400, headers: []string{"Content-Type: application/json"}},
		"trailing_data":     {body: request + "{}", status: 400},
		"bad_utf8":          {body: replaced("say", "\xff"), status: 422},
		"nul":               {body: replaced("say", `\u0000`), status: 422},
		"deep":              {body: replaced(`"grants": {}`, `"grants": `+deep), status: 422},
		"wrong_type":        {body: replaced(`"say hello"`, `5`), status: 422},
		"unknown_field":     {body: replaced(`"prompt"`, `"propmt": 1, "prompt"`), status: 422},
		"duplicate_field":   {body: replaced(`"prompt"`, `"prompt": "a", "prompt"`), status: 422},
		"negative_cost_cap": {body: replaced(`"prompt"`, `"cost_cap_usd": "-1", "prompt"`), status: 422},
		"relative_mount":    {body: replaced(`{}`, `{"mounts": [{"path": "src", "access": "ro"}]}`), status: 422},
		"unknown_sandbox":   {body: replaced(`"none"`, `"vm"`), status: 422},
		"profile_by_name":   {body: replaced(`{"name": "coder", "agent": "claude", "sandbox": "none", "confine": true}`, `"coder"`), status: 422},
		"batch_fields":      {body: "[" + request + "," + replaced(`"grants": {},`, "") + "]", status: 422},
		"batch_empty":       {body: "[]", status: 400},
		"batch_broken":      {body: "[" + request, status: 400},
		"too_large":         {body: replaced("hello", strings.Repeat("x", 1<<20)), status: 413},
		"huge_batch":        {body: "[" + strings.Repeat(" ", 17<<20) + "]", status: 413},
		"media_type":        {body: request, headers: []string{"Content-Type: text/plain"}, status: 415},
		"long_key":          {body: request, headers: []string{"Idempotency-Key: " + strings.Repeat("k", 201)}, status: 422},
		"queue_full":        {body: request, fail: job.ErrQueueFull, status: 429, retry: "30"},
		"unavailable":       {body: request, fail: fmt.Errorf("%w: dial tcp 10.0.0.1: secret", job.ErrUnavailable), status: 503, retry: "5"},
		"conflict":          {body: request, fail: job.ErrConflict, status: 409},
		"internal":          {body: request, fail: errors.New("SELECT secret"), status: 500},
		"not_found":         {method: "GET", path: "/v1/jobs/" + string(another), status: 404},
		"bad_id":            {method: "GET", path: "/v1/jobs/7", status: 422},
		"cancel_finished":   {path: "/v1/jobs/" + string(anID) + "/cancel", state: job.Succeeded, status: 409},
		"retry_unfinished":  {path: "/v1/jobs/" + string(anID) + "/retry", fail: job.ErrUnfinished, status: 409},
		"budget_unknown":    {path: "/v1/budgets/remove", body: `{"scope":"tenant","name":"nobody","per":"24h"}`, status: 404},
		"orphan_unknown":    {path: "/v1/orphans/gone", body: `{"job":"` + string(anID) + `","attempt":1,"kind":"process","why":"looked"}`, status: 404},
		"cancel_field":      {path: "/v1/jobs/" + string(anID) + "/cancel", body: `{"reason":"x"}`, status: 422},
		"list_state":        {method: "GET", path: "/v1/jobs?state=lost", status: 422},
		"list_unknown":      {method: "GET", path: "/v1/jobs?stat=running", status: 422},
		"report_by":         {method: "GET", path: "/v1/report?by=moon", status: 422},
		"schedule_fields":   {method: "PUT", path: "/v1/schedules/nightly", body: `{"cron":"1 2","tz":"UTC","request":` + replaced("say hello", "") + `}`, status: 422},
		"schedule_unknown":  {method: "GET", path: "/v1/schedules/weekly", status: 404},
		"no_route":          {method: "GET", path: "/v2/jobs", status: 404},
		"no_method":         {method: "DELETE", path: "/v1/jobs", status: 405},
		"wrong_host":        {method: "GET", path: "/v1/jobs", headers: []string{"Host: evil.example"}, status: 421},
		"cross_origin":      {body: request, headers: []string{"Sec-Fetch-Site: cross-site"}, status: 403},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBackend()
			b.fail = c.fail
			if c.state != "" {
				b.view.State = c.state
			}
			if c.method == "" {
				c.method = "POST"
			}
			if c.path == "" {
				c.path = "/v1/jobs"
			}
			w := ask(serve(t, b), c.method, c.path, c.body, c.headers...)
			if w.Code != c.status || w.Header().Get("Content-Type") != "application/problem+json" || w.Header().Get("Retry-After") != c.retry {
				t.Errorf("%d %v %.300s", w.Code, w.Header(), w.Body)
			}
			if len(b.entries) > 0 {
				t.Error("something was written")
			}
			if strings.Contains(w.Body.String(), "secret") {
				t.Errorf("says what is for the log: %s", w.Body)
			}
			golden(t, name, w.Body.Bytes())
		})
	}
}

func golden(t *testing.T, name string, body []byte) {
	t.Helper()
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, body, "", "  "); err != nil {
		t.Fatalf("%v in %.300s", err, body)
	}
	path := filepath.Join("testdata", "problems", name+".json")
	if *update {
		if err := os.WriteFile(path, pretty.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), pretty.String()); diff != "" {
		t.Errorf("-want +got (rewrite with -update):\n%s", diff)
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	s := serve(t, newBackend(), withTokens, func(c *api.Config) { c.Metrics = prometheus.NewRegistry() })
	job := "/v1/jobs/" + string(anID)
	for _, c := range []struct {
		method, path, body string
		// by token: none, wrong, ci (its own job), other, anna, boss
		want [6]int
	}{
		{"POST", "/v1/jobs", request, [6]int{401, 401, 201, 201, 201, 403}},
		{"POST", "/v1/jobs", `{"tenant":"acme",` + request[1:], [6]int{401, 401, 422, 201, 201, 403}},
		{"GET", "/v1/jobs", "", [6]int{401, 401, 403, 403, 200, 200}},
		{"GET", job, "", [6]int{401, 401, 200, 404, 200, 200}},
		{"GET", job + "/transcript", "", [6]int{401, 401, 200, 404, 200, 200}},
		{"POST", job + "/cancel", "", [6]int{401, 401, 202, 404, 202, 403}},
		{"POST", job + "/retry", "", [6]int{401, 401, 201, 404, 201, 403}},
		{"GET", "/v1/report?by=day", "", [6]int{401, 401, 403, 403, 200, 200}},
		{"GET", "/v1/pauses", "", [6]int{401, 401, 403, 403, 200, 200}},
		{"POST", "/v1/pauses", `{"scope":"tenant","name":"acme"}`, [6]int{401, 401, 403, 403, 200, 403}},
		{"POST", "/v1/pauses/resume", `{"scope":"tenant","name":"acme"}`, [6]int{401, 401, 403, 403, 204, 403}},
		{"PUT", "/v1/limits", `{"tenant":"acme","max":5}`, [6]int{401, 401, 403, 403, 204, 403}},
		{"GET", "/v1/weights", "", [6]int{401, 401, 403, 403, 200, 200}},
		{"PUT", "/v1/weights", `{"tenant":"acme","weight":4}`, [6]int{401, 401, 403, 403, 204, 403}},
		{"POST", "/v1/redrive", `{"reasons":["crashed"]}`, [6]int{401, 401, 200, 200, 200, 403}},
		{"GET", "/v1/budgets", "", [6]int{401, 401, 403, 403, 200, 200}},
		{"PUT", "/v1/budgets", `{"scope":"tenant","name":"acme","per":"24h","limit_usd":"5"}`, [6]int{401, 401, 403, 403, 204, 403}},
		{"POST", "/v1/budgets/remove", `{"scope":"tenant","name":"acme","per":"24h"}`, [6]int{401, 401, 403, 403, 204, 403}},
		{"GET", "/v1/orphans", "", [6]int{401, 401, 403, 403, 200, 200}},
		{"POST", "/v1/orphans/gone", `{"job":"` + string(another) + `","attempt":1,"kind":"process","why":"looked"}`, [6]int{401, 401, 403, 403, 204, 403}},
		{"GET", "/v1/schedules", "", [6]int{401, 401, 200, 200, 200, 200}},
		{"GET", "/v1/schedules?tenant=acme", "", [6]int{401, 401, 422, 200, 200, 200}},
		{"PUT", "/v1/schedules/nightly", `{"cron":"@daily","request":` + request + `}`, [6]int{401, 401, 200, 200, 200, 403}},
		{"PUT", "/v1/schedules/nightly", `{"cron":"@daily","request":{"tenant":"acme",` + request[1:] + `}`, [6]int{401, 401, 422, 200, 200, 403}},
		{"GET", "/v1/schedules/nightly", "", [6]int{401, 401, 200, 200, 200, 200}},
		{"GET", "/v1/schedules/nightly?tenant=acme", "", [6]int{401, 401, 404, 200, 200, 200}},
		{"POST", "/v1/schedules/nightly/pause?tenant=acme", "", [6]int{401, 401, 404, 204, 204, 403}},
		{"POST", "/v1/schedules/nightly/resume?tenant=acme", "", [6]int{401, 401, 404, 204, 204, 403}},
		{"DELETE", "/v1/schedules/nightly?tenant=acme", "", [6]int{401, 401, 404, 204, 204, 403}},
		{"DELETE", "/v1/schedules/nightly", "", [6]int{401, 401, 204, 204, 204, 403}},
		{"GET", "/metrics", "", [6]int{401, 401, 403, 403, 200, 200}},
		{"GET", "/nowhere", "", [6]int{401, 401, 404, 404, 404, 404}},
		{"GET", "/healthz", "", [6]int{200, 200, 200, 200, 200, 200}},
		{"GET", "/readyz", "", [6]int{200, 200, 200, 200, 200, 200}},
		{"GET", "/openapi.json", "", [6]int{200, 200, 200, 200, 200, 200}},
	} {
		for i, token := range []string{"", "wrong", "ci-token", "other-token", "anna-token", "boss-token"} {
			var headers []string
			if token != "" {
				headers = []string{"Authorization: bearer " + token, "Host: turnpike.example"}
			}
			w := ask(s, c.method, c.path, c.body, headers...)
			if w.Code != c.want[i] {
				t.Errorf("%s %s with %q: %d, want %d: %s", c.method, c.path, token, w.Code, c.want[i], w.Body)
			}
			if w.Code == http.StatusUnauthorized && w.Header().Get("WWW-Authenticate") == "" {
				t.Errorf("%s %s: 401 without a challenge", c.method, c.path)
			}
		}
	}

	t.Run("that make no sense are refused", func(t *testing.T) {
		t.Parallel()
		good := tokens[0]
		for name, bad := range map[string][]api.Token{
			"a token in clear":     {{Name: "a", Role: api.Operator, SHA256: "ci-token"}},
			"no name":              {{Role: api.Operator, SHA256: good.SHA256}},
			"no such role":         {{Name: "a", Role: "admin", SHA256: good.SHA256}},
			"a name twice":         {good, {Name: good.Name, Role: good.Role, SHA256: api.HashToken("x")}},
			"a reporter's tenants": {{Name: "a", Role: api.Reporter, SHA256: good.SHA256, Tenants: []string{"acme"}}},
			"a nameless tenant":    {{Name: "a", Role: api.Producer, SHA256: good.SHA256, Tenants: []string{""}}},
			"a token twice":        {good, {Name: "b", Role: good.Role, SHA256: strings.ToUpper(good.SHA256)}},
		} {
			if _, err := api.New(api.Config{Tokens: bad, Log: quiet}); err == nil {
				t.Errorf("%s: accepted", name)
			}
		}
	})
}

func TestCheckListen(t *testing.T) {
	t.Parallel()
	for addr, safe := range map[string]bool{
		"127.0.0.1:8080": true, "127.9.9.9:1": true, "[::1]:8080": true, "localhost:8080": true, "[::ffff:127.0.0.1]:1": true,
		":8080": false, "0.0.0.0:8080": false, "[::]:8080": false, "10.0.0.1:8080": false, "localhost.example:80": false, "nonsense": false,
	} {
		if err := api.CheckListen(addr, nil); (err == nil) != safe {
			t.Errorf("%s without tokens: %v", addr, err)
		}
		if err := api.CheckListen(addr, tokens); (err == nil) != (addr != "nonsense") {
			t.Errorf("%s with tokens: %v", addr, err)
		}
	}
}

func TestLookingAndChanging(t *testing.T) {
	t.Parallel()

	t.Run("operators set budgets and close orphans, on record by name", func(t *testing.T) {
		t.Parallel()
		b := newBackend()
		s := serve(t, b, withTokens)
		for _, c := range []struct {
			method, path, body string
			want               int
		}{
			{"PUT", "/v1/budgets", `{"scope":"tag","name":"nightly","per":"168h","limit_usd":"5.25","warn_usd":"4","why":"audit"}`, 204},
			{"POST", "/v1/budgets/remove", `{"scope":"tenant","name":"acme","per":"24h","why":"over"}`, 204},
			{"POST", "/v1/budgets/remove", `{"scope":"tenant","name":"nobody","per":"24h"}`, 404},
			{"POST", "/v1/orphans/gone", `{"job":"` + string(another) + `","attempt":2,"kind":"process","why":"looked"}`, 204},
			{"POST", "/v1/orphans/gone", `{"job":"` + string(another) + `","attempt":2,"kind":"process"}`, 422},
			{"PUT", "/v1/budgets", `{"scope":"tag","name":"x","per":"24h","limit_usd":"much"}`, 422},
			{"PUT", "/v1/budgets", `{"scope":"tag","name":"x","per":"1s","limit_usd":"1"}`, 422},
			{"PUT", "/v1/budgets", `{"scope":"planet","name":"x","per":"24h","limit_usd":"1"}`, 422},
		} {
			if w := ask(s, c.method, c.path, c.body, "Authorization: Bearer anna-token"); w.Code != c.want {
				t.Errorf("%s %s: %d %s", c.path, c.body, w.Code, w.Body)
			}
		}
		want := []string{"budget tag nightly per 168h 5.25 4.00 anna audit", "remove tenant acme per 24h anna over", "gone " + string(another) + " 2 process anna looked"}
		if diff := cmp.Diff(want, b.ordered); diff != "" {
			t.Error(diff)
		}
		w := ask(s, "GET", "/v1/budgets", "", "Authorization: Bearer anna-token")
		if !strings.Contains(w.Body.String(), `"left_usd":"3.75"`) {
			t.Errorf("lists %s", w.Body)
		}
	})

	t.Run("operators pause, resume and limit, on record by name", func(t *testing.T) {
		t.Parallel()
		b := newBackend()
		s := serve(t, b, withTokens)
		for _, c := range [][3]string{
			{"POST", "/v1/pauses", `{"scope":"lane","name":"none-confined/default","why":"upgrade"}`},
			{"POST", "/v1/pauses/resume", `{"scope":"account","name":"~claude","why":"renewed"}`},
			{"POST", "/v1/pauses", `{"scope":"key","name":"acme/deploy","why":"incident"}`},
			{"PUT", "/v1/limits", `{"tenant":"*","max":-1}`},
			{"PUT", "/v1/weights", `{"tenant":"acme","weight":4}`},
		} {
			if w := ask(s, c[0], c[1], c[2], "Authorization: Bearer anna-token"); w.Code >= 300 {
				t.Errorf("%s: %d %s", c[1], w.Code, w.Body)
			}
		}
		want := []string{"pause lane none-confined/default anna upgrade", "resume account ~claude anna renewed", "pause key acme/deploy anna incident", "limit * -1 anna",
			"weight acme 4 anna"}
		if diff := cmp.Diff(want, b.ordered); diff != "" {
			t.Error(diff)
		}
		if w := ask(s, "POST", "/v1/pauses", `{"scope":"planet","name":"x"}`, "Authorization: Bearer anna-token"); w.Code != 422 {
			t.Errorf("an unknown scope: %d", w.Code)
		}
		if w := ask(s, "PUT", "/v1/weights", `{"tenant":"acme","weight":101}`, "Authorization: Bearer anna-token"); w.Code != 422 {
			t.Errorf("a weight of 101: %d", w.Code)
		}
	})

	t.Run("redrive is an operator's of everything, and a producer's of its own", func(t *testing.T) {
		t.Parallel()
		b := newBackend()
		s := serve(t, b, withTokens)
		w := ask(s, "POST", "/v1/redrive", `{"states":["failed","cancelled"],"reasons":["crashed"],"tenant":"acme","lane":"none/default","name":"n","tag":"x",`+
			`"since":"2026-11-30T08:00:00Z","until":"2026-11-30T09:00:00Z","after":"`+string(another)+`","limit":5,"dry_run":true}`, "Authorization: Bearer anna-token")
		if w.Code != 200 || !strings.Contains(w.Body.String(), `"redriven":1,"passed_over":2`) || !strings.Contains(w.Body.String(), `"next":"`+string(anID)) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		at := time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC)
		want := []job.Redrive{{States: []job.State{job.Failed, job.Cancel}, Reasons: []string{"crashed"}, Tenants: []string{"acme"}, Lane: "none/default", Name: "n", Tag: "x",
			Since: at, Until: at.Add(time.Hour), After: another, Limit: 5, DryRun: true}, {Name: "n", Tenants: []string{job.DefaultTenant}, Producer: "ci"}}
		if w := ask(s, "POST", "/v1/redrive", `{"name":"n"}`, "Authorization: Bearer ci-token"); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if diff := cmp.Diff(want, b.redrives); diff != "" {
			t.Error(diff)
		}
		for _, body := range []string{`{}`, `{"lane":"none/default"}`, `{"name":"n","after":"x"}`, `{"states":["succeeded"]}`, `{"name":"n","tenant":"elsewhere"}`} {
			if w := ask(s, "POST", "/v1/redrive", body, "Authorization: Bearer ci-token"); w.Code != 422 {
				t.Errorf("%s: %d %s", body, w.Code, w.Body)
			}
		}
	})

	t.Run("list passes its filters and names the next page", func(t *testing.T) {
		t.Parallel()
		b := newBackend()
		w := ask(serve(t, b), "GET", "/v1/jobs?state=running,queued&tenant=t&pool=p&name=n&work=w&limit=1&before="+string(another), "")
		want := job.Filter{States: []job.State{job.Running, job.Queued}, Tenant: "t", Pool: "p", Name: "n", WorkKey: "w", Before: another, Limit: 1}
		if diff := cmp.Diff(want, b.filter); diff != "" || w.Code != 200 || !strings.Contains(w.Body.String(), `"next":"`+string(anID)+`"`) {
			t.Errorf("%d %s\n%s", w.Code, w.Body, diff)
		}
	})

	t.Run("cancel records who and why", func(t *testing.T) {
		t.Parallel()
		b := newBackend()
		w := ask(serve(t, b, withTokens), "POST", "/v1/jobs/"+string(anID)+"/cancel", `{"why":"wrong branch"}`, "Authorization: Bearer anna-token")
		if w.Code != http.StatusAccepted || b.by != "anna" || b.why != "wrong branch" {
			t.Errorf("%d %s by %q why %q", w.Code, w.Body, b.by, b.why)
		}
	})

	t.Run("the request of a job is JSON in its view", func(t *testing.T) {
		t.Parallel()
		b := newBackend()
		b.view.Request = json.RawMessage(`{"prompt":"x"}`)
		w := ask(serve(t, b), "GET", "/v1/jobs/"+string(anID), "")
		if !strings.Contains(w.Body.String(), `"request":{"prompt":"x"}`) || strings.Contains(w.Body.String(), "$schema") {
			t.Errorf("%s", w.Body)
		}
	})

	t.Run("readiness depends on what is needed", func(t *testing.T) {
		t.Parallel()
		var db, broker error
		s := serve(t, newBackend(), withTokens, func(c *api.Config) {
			c.Checks = []api.Check{
				{Name: "postgres", Ask: func(context.Context) error { return db }},
				{Name: "nats", Advisory: true, Ask: func(context.Context) error { return broker }},
			}
		})
		broker = fmt.Errorf("%w: nats://user:secret@host", job.ErrUnavailable)
		if w := ask(s, "GET", "/readyz", ""); w.Code != 200 || strings.TrimSpace(w.Body.String()) != `{"ready":true,"checks":{"nats":"unavailable","postgres":"ok"}}` {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		db = errors.New("secret")
		if w := ask(s, "GET", "/readyz", ""); w.Code != 503 || strings.Contains(w.Body.String(), "secret") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})

	t.Run("the OpenAPI document describes requests", func(t *testing.T) {
		t.Parallel()
		w := ask(serve(t, newBackend()), "GET", "/openapi.json", "")
		var doc struct {
			Components struct {
				Schemas map[string]struct {
					Properties map[string]struct{ Type any }
				}
			}
			Paths map[string]map[string]json.RawMessage
		}
		if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
			t.Fatal(err)
		}
		if got := doc.Components.Schemas["Request"].Properties["cost_cap_usd"].Type; got != "string" {
			t.Errorf("cost_cap_usd is %v", got)
		}
		if !bytes.Contains(doc.Paths["/v1/jobs"]["post"], []byte("#/components/schemas/Request")) {
			t.Error("enqueue takes no Request")
		}
		if got := len(doc.Paths); got != 20 {
			t.Errorf("%d paths", got)
		}
	})

	t.Run("requests are counted", func(t *testing.T) {
		t.Parallel()
		r := prometheus.NewRegistry()
		s := serve(t, newBackend(), func(c *api.Config) { c.Metrics = r })
		ask(s, "GET", "/v1/jobs/"+string(anID), "")
		ask(s, "GET", "/v1/jobs/"+string(another), "")
		got := ask(s, "GET", "/metrics", "").Body.String()
		for _, status := range []string{"200", "404"} {
			if want := `turnpike_http_requests_total{route="GET /v1/jobs/{id}",status="` + status + `"} 1`; !strings.Contains(got, want) {
				t.Errorf("no %s in %s", want, got)
			}
		}
	})
}

// listening is a server on a real connection.
func listening(t *testing.T, s *api.Server) (url string, stop func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String(), stop
}

func open(t *testing.T, url string, headers ...string) *bufio.Scanner {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	w, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Body.Close() })
	if w.StatusCode != http.StatusOK {
		body, err := io.ReadAll(w.Body)
		t.Fatalf("%d %s %v", w.StatusCode, body, err)
	}
	return bufio.NewScanner(w.Body)
}

func next(t *testing.T, s *bufio.Scanner) api.Event {
	t.Helper()
	if !s.Scan() {
		t.Fatalf("the stream ended: %v", s.Err())
	}
	var e api.Event
	if err := json.Unmarshal(s.Bytes(), &e); err != nil {
		t.Fatalf("%q: %v", s.Text(), err)
	}
	return e
}

func TestTranscript(t *testing.T) {
	t.Parallel()
	path := "/v1/jobs/" + string(anID) + "/transcript"

	t.Run("what there is, with an agent's lines as values", func(t *testing.T) {
		t.Parallel()
		b := newBackend()
		b.chunks = []job.TranscriptChunk{
			{Attempt: 1, Seq: 4, Lines: []byte("{\"end\":\"job\"}\nbad \xff\n"), End: true},
			{Attempt: 2, Seq: 9, Lines: []byte("x\n"), Dropped: 3},
		}
		w := ask(serve(t, b), "GET", path, "")
		want := `{"attempt":1,"seq":4,"line":"{\"end\":\"job\"}"}
{"attempt":1,"seq":4,"line":"bad ` + "\uFFFD" + `"}
{"attempt":1,"seq":4,"end":"attempt"}
{"attempt":2,"seq":9,"dropped":3}
{"attempt":2,"seq":9,"line":"x"}
`
		if diff := cmp.Diff(want, w.Body.String()); diff != "" || w.Header().Get("Content-Type") != "application/x-ndjson" {
			t.Errorf("%v\n%s", w.Header(), diff)
		}
		w = ask(serve(t, b), "GET", path, "", "Accept: text/event-stream", "Last-Event-ID: 4")
		want = "id: 9\nevent: dropped\ndata: {\"attempt\":2,\"seq\":9,\"dropped\":3}\n\nid: 9\nevent: line\ndata: {\"attempt\":2,\"seq\":9,\"line\":\"x\"}\n\n"
		if diff := cmp.Diff(want, w.Body.String()); diff != "" || w.Header().Get("Content-Type") != "text/event-stream" {
			t.Errorf("%v\n%s", w.Header(), diff)
		}
	})

	t.Run("is a problem when it cannot begin", func(t *testing.T) {
		t.Parallel()
		b := newBackend()
		s := serve(t, b, func(c *api.Config) { c.Transcripts = away{} })
		if w := ask(s, "GET", path, ""); w.Code != 503 || w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
		}
	})

	t.Run("is followed until the job is finished", func(t *testing.T) {
		t.Parallel()
		b := newBackend()
		url, _ := listening(t, serve(t, b))
		lines := open(t, url+path+"?follow=true")
		b.more <- job.TranscriptChunk{Attempt: 1, Seq: 1, Lines: []byte("one\n")}
		if e := next(t, lines); e.Line != "one" {
			t.Errorf("event %+v", e)
		}
		b.mu.Lock()
		b.view.State = job.Succeeded
		b.chunks = append(b.chunks, job.TranscriptChunk{Attempt: 1, Seq: 2, Lines: []byte("two\n"), End: true})
		b.mu.Unlock()
		for _, want := range []api.Event{{Attempt: 1, Seq: 2, Line: "two"}, {Attempt: 1, Seq: 2, End: "attempt"}, {End: "job", State: job.Succeeded}} {
			if diff := cmp.Diff(want, next(t, lines)); diff != "" {
				t.Error(diff)
			}
		}
		if lines.Scan() {
			t.Errorf("more: %s", lines.Text())
		}
	})

	t.Run("a follower does not hold up the end of the server", func(t *testing.T) {
		t.Parallel()
		b := newBackend()
		url, stop := listening(t, serve(t, b))
		lines := open(t, url+path+"?follow=true", "Accept: text/event-stream")
		b.more <- job.TranscriptChunk{Attempt: 1, Seq: 1, Lines: []byte("one\n")}
		lines.Scan()
		start := time.Now()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

type away struct{}

func (away) Tail(context.Context, job.ID, int, uint64, bool, func(job.TranscriptChunk) error) error {
	return job.ErrUnavailable
}
