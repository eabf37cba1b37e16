package chaos_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"turnpike/internal/chaos"
	"turnpike/internal/job"
)

// producers ask the dispatchers for what the plan says, and operators too: each until it
// is answered by whichever lives.
type producers struct {
	site   *site
	client *http.Client
	room   chan struct{} // bounds how many ask at once
	all    sync.WaitGroup
	known  []chan struct{} // by job of the plan: closed once it is accepted, or refused
	holds  sync.Mutex      // a resume that is asked for after a pause is answered after it, too

	mu       sync.Mutex // guards what follows
	accepted map[int]job.ID
	ids      []job.ID // all, those of retries too
	existing int      // enqueues that were answered with an earlier job
}

func newProducers(s *site) *producers {
	p := &producers{
		site: s, client: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 32}},
		room: make(chan struct{}, 32), accepted: map[int]job.ID{},
	}
	for range s.plan.Jobs {
		p.known = append(p.known, make(chan struct{}))
	}
	return p
}

// run asks for everything in its time and returns once all is answered, or ctx ended.
func (p *producers) run(ctx context.Context, began time.Time) {
	defer p.client.CloseIdleConnections()
	defer p.all.Wait()
	jobs, demands := p.site.plan.Jobs, p.site.plan.Demands
	for n, d := 0, 0; n < len(jobs) || d < len(demands); {
		var at time.Duration
		var ask func()
		if n < len(jobs) && (d == len(demands) || jobs[n].At <= demands[d].At) {
			next := n
			at, ask = jobs[n].At, func() { p.enqueue(ctx, next) }
			n++
		} else {
			next := demands[d]
			at, ask = next.At, func() { p.demand(ctx, next) }
			d++
		}
		select {
		case <-time.After(time.Until(began.Add(at))):
			p.all.Go(ask)
		case <-ctx.Done():
			return
		}
	}
}

// ask asks until there is an answer other than that nobody can do it now. Status 0 is
// none: ctx ended.
func (p *producers) ask(ctx context.Context, method, path, key string, body any) (status int, answer []byte) {
	p.room <- struct{}{}
	defer func() { <-p.room }()
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for n := len(path) + len(key); ; n++ {
		status, answer, err := p.once(ctx, method, "http://"+p.site.addrs[n%len(p.site.addrs)]+path, key, body)
		if err == nil && status < http.StatusInternalServerError {
			return status, answer
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return 0, nil
		}
	}
}

func (p *producers) once(ctx context.Context, method, url, key string, body any) (int, []byte, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(b))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := p.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	return res.StatusCode, answer, err
}

func (p *producers) enqueue(ctx context.Context, n int) {
	defer close(p.known[n]) // or what is asked of it would wait for ever
	status, answer := p.ask(ctx, http.MethodPost, "/v1/jobs", fmt.Sprintf("job-%d", n), p.request(n))
	if status == 0 {
		return
	}
	var a job.Accepted
	if err := json.Unmarshal(answer, &a); err != nil || status >= 300 {
		p.site.problem("enqueue job %d: %d %s", n, status, answer)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.Existing {
		p.existing++
	}
	p.accepted[n], p.ids = a.ID, append(p.ids, a.ID)
}

// request is a job of the plan as a producer writes it.
func (p *producers) request(n int) map[string]any {
	j := p.site.plan.Jobs[n]
	r := map[string]any{
		"api_version": job.APIVersion, "name": fmt.Sprintf("chaos-%d", n), "prompt": chaos.Prompt(p.site.ledger.Addr(), n),
		"profile": map[string]any{"confine": true, "timeout": j.Timeout.String()},
		"grants": map[string]any{
			"env": []string{"MARK", "ANTHROPIC_API_KEY"}, "tools": []string{"*"},
			"mounts": []any{map[string]any{"path": "workspace:", "access": "rw"}},
		},
		"workspace": map[string]any{"scratch": true}, "env": map[string]any{"MARK": p.site.mark},
		"tenant": j.Tenant, "priority": j.Priority, "account": j.Account,
		"dedup_key": j.DedupKey, "concurrency_key": j.ConcurrencyKey,
		"retry": map[string]any{"policy": j.Policy, "max_tries": j.Tries, "backoff": j.Backoff.String()},
	}
	now := time.Now().UTC()
	if j.Later > 0 {
		r["run_at"] = now.Add(j.Later)
	}
	if j.Deadline > 0 {
		r["deadline"] = now.Add(j.Deadline)
	}
	return r
}

// demand does what an operator asks for. That a job is finished, or is not yet, is an
// answer as good as another.
func (p *producers) demand(ctx context.Context, a chaos.Action) {
	switch a.Do {
	case chaos.CancelJob, chaos.RetryJob:
		select {
		case <-p.known[a.N]:
		case <-ctx.Done():
			return
		}
		p.mu.Lock()
		id := p.accepted[a.N]
		p.mu.Unlock()
		if id == "" {
			return // which is a problem already
		}
		status, answer := p.ask(ctx, http.MethodPost, "/v1/jobs/"+string(id)+"/"+a.Do, "", map[string]any{})
		if status >= 300 && status != http.StatusConflict {
			p.site.problem("%s %s: %d %s", a.Do, a.On, status, answer)
		}
		var made job.Accepted
		if a.Do == chaos.RetryJob && status == http.StatusCreated {
			if err := json.Unmarshal(answer, &made); err != nil {
				p.site.problem("%s %s: %v", a.Do, a.On, err)
			}
			p.mu.Lock()
			p.ids = append(p.ids, made.ID)
			p.mu.Unlock()
		}
	case chaos.PauseLane, chaos.PauseTenant:
		p.holds.Lock()
		defer p.holds.Unlock()
		p.ask(ctx, http.MethodPost, "/v1/pauses", "", held(a))
	case chaos.ResumeLane, chaos.ResumeTenant:
		p.holds.Lock()
		defer p.holds.Unlock()
		p.ask(ctx, http.MethodPost, "/v1/pauses/resume", "", held(a))
	}
}

const lane = "none-confined/default"

func held(a chaos.Action) map[string]any {
	if a.Do == chaos.PauseLane || a.Do == chaos.ResumeLane {
		return map[string]any{"scope": "lane", "name": lane}
	}
	return map[string]any{"scope": "tenant", "name": a.On}
}

// lift lifts every pause there may be: an answer that was lost may have paused once
// more, and an account that reached its limit is paused for longer than a test lasts.
func (p *producers) lift(ctx context.Context) {
	for _, one := range [][2]string{{"tenant", "t0"}, {"tenant", "t1"}, {"tenant", "t2"}, {"lane", lane}, {"account", chaos.Metered}} {
		p.ask(ctx, http.MethodPost, "/v1/pauses/resume", "", map[string]any{"scope": one[0], "name": one[1]})
	}
}
