package store_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"turnpike/internal/job"
	"turnpike/internal/store"
)

// modelJob is a job as the model has it: what the design says, in plain Go.
type modelJob struct {
	tenant, key, account string
	policy               job.RetryPolicy
	max                  int
	// chained has a fallback: codex, on another lane. at is the profile it is at, as it
	// was selected last, and busy those whose provider was found overloaded since.
	chained bool
	at      int
	busy    [2]bool
	// after are the unfinished jobs it waits for, which must succeed if it is strict; later
	// says that it waits for its time then.
	after         map[job.ID]bool
	strict, later bool
	doomed        bool

	state     job.State
	dispatch  int
	attempt   int
	spent     int
	crashes   int
	overloads int
	returns   int
	resume    string

	token     job.Token
	started   bool
	tools     int
	conv      string
	cancelled bool
}

func (j *modelJob) live() bool { return j.state == job.Dispatched || j.state == job.Running }

func (j *modelJob) waits() bool { return len(j.after) > 0 || j.doomed }

func (j *modelJob) credential() string { return j.credentialAt(j.at) }

func (j *modelJob) credentialAt(profile int) string {
	if j.account == "" {
		return store.DefaultAccount([]string{"claude", "codex"}[profile])
	}
	return j.account
}

// keyName is how a pause of its key is named; nothing without a key.
func (j *modelJob) keyName() string {
	if j.key == "" {
		return ""
	}
	return j.tenant + "/" + j.key
}

func (j *modelJob) lane() job.Lane { return modelLanes[j.at] }

// modelLanes are those of the profiles.
var modelLanes = []job.Lane{lane, aside}

type modelAttempt struct {
	ending job.Ending
	reaped bool // its report may still come
	late   bool
	cost   job.USD // -1 is unknown
	partly bool    // it is only what is known of it
}

type heldLease struct {
	job.Lease
	worker string
}

// limit is the budget of tenant red.
const limit = 8 * usd

// machine runs random commands against a store and the model, side by side.
type machine struct {
	d        *desk
	look     *pgxpool.Conn
	jobs     map[job.ID]*modelJob
	ids      []job.ID // in the order of their making
	attempts map[job.Lease]*modelAttempt
	leases   []heldLease     // ever granted
	sent     []job.Claim     // ever dispatched, with the token they were claimed with, if they were
	paused   map[string]bool // accounts
	// limited are the accounts that are paused by a limit, 0, or start slowly after one: the
	// step.
	limited  map[string]int
	held     map[string]bool // keys that are paused, TENANT/KEY
	repeated map[job.ID]bool
	spent    job.USD // of the budget of tenant red
	level    job.BudgetState
}

func TestModel(t *testing.T) {
	t.Parallel()
	d := open(t, slowly)
	look, err := d.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer look.Release()
	// What compares everything costs much by the planner's guess, and nothing in fact.
	if _, err := look.Exec(t.Context(), `SET jit = off`); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		d := &desk{DB: d.DB, t: t, env: d.env, pool: d.pool, epoch: d.epoch}
		d.sql(`TRUNCATE turnpike.queue`) // nothing is deleted there without an end
		for _, table := range []string{"waits", "jobs", "attempts", "costs", "outcomes", "finished", "events", "orphans", "pauses", "spend", "budgets"} {
			d.sql(`DELETE FROM turnpike.` + table) // much faster than truncating partitions
		}
		m := &machine{d: d, look: look, jobs: map[job.ID]*modelJob{}, attempts: map[job.Lease]*modelAttempt{}, paused: map[string]bool{}, level: job.BudgetOK,
			limited: map[string]int{}, held: map[string]bool{}, repeated: map[job.ID]bool{}}
		d.budget(budget(job.BudgetTenant, "red", limit))
		rt.Repeat(map[string]func(*rapid.T){
			"enqueue":    m.enqueue,
			"select":     m.selectSome,
			"select2":    m.selectSome,
			"claim":      m.claim,
			"claim2":     m.claim,
			"beat":       m.beat,
			"settle":     m.settle,
			"settle2":    m.settle,
			"reap":       m.reap,
			"cancel":     m.cancel,
			"wake":       m.wake,
			"limit":      m.limit,
			"pace":       m.pace,
			"redrive":    m.redrive,
			"redispatch": m.redispatch,
			"pause":      m.pause,
			"lift":       m.lift,
			"hold":       m.hold,
			"release":    m.release,
			"cross":      m.cross,
			"raise":      m.raise,
			"":           m.check,
		})
	})
}

func (m *machine) pick(rt *rapid.T) (job.ID, *modelJob) {
	if len(m.ids) == 0 {
		rt.Skip("no jobs")
	}
	id := rapid.SampledFrom(m.ids).Draw(rt, "job")
	return id, m.jobs[id]
}

func (m *machine) enqueue(rt *rapid.T) {
	j := &modelJob{
		tenant:  rapid.SampledFrom([]string{"red", "blue"}).Draw(rt, "tenant"),
		key:     rapid.SampledFrom([]string{"", "", "k", "l"}).Draw(rt, "key"),
		account: rapid.SampledFrom([]string{"", "main"}).Draw(rt, "account"),
		policy:  rapid.SampledFrom(job.RetryPolicies()).Draw(rt, "policy"),
		max:     rapid.IntRange(1, 4).Draw(rt, "tries"),
		state:   job.Queued,
	}
	priority := rapid.IntRange(-1, 1).Draw(rt, "priority")
	j.later = rapid.Bool().Draw(rt, "later")
	// A few of them, and of those mostly what is not finished.
	var refs []job.ID
	j.after, j.strict = map[job.ID]bool{}, rapid.Bool().Draw(rt, "strict")
	for range rapid.IntRange(0, 2).Draw(rt, "after") {
		if len(m.ids) == 0 {
			break
		}
		id := rapid.SampledFrom(m.ids).Draw(rt, "awaited")
		o := m.jobs[id]
		switch {
		case o.tenant != j.tenant:
			continue
		case !o.state.Final():
			j.after[id] = true
		case j.strict && o.state != job.Succeeded:
			j.doomed = true
		}
		refs = append(refs, id)
	}
	j.chained = rapid.Bool().Draw(rt, "chained")
	id := m.d.enqueue(func(r *job.Request) {
		r.Tenant, r.ConcurrencyKey, r.Account, r.Priority = j.tenant, j.key, j.account, priority
		r.Retry.Policy, r.Retry.MaxTries = j.policy, j.max
		if j.chained {
			r.Profile.Fallback = &job.Profile{Agent: "codex", Sandbox: "none"}
		}
		if j.later {
			r.RunAt = time.Now().Add(time.Hour)
		}
		if len(refs) > 0 {
			policy := job.AfterRun
			if j.strict {
				policy = job.AfterFail
			}
			behind(policy, refs...)(r)
		}
	})
	j.letGo()
	m.jobs[id] = j
	m.ids = append(m.ids, id)
}

// letGo has a job wait for nobody: to the queue, or for its time.
func (j *modelJob) letGo() {
	if !j.waits() && j.later {
		j.state = job.Scheduled
	}
}

// over tells those that wait for a job that it is finished, if it is.
func (m *machine) over(id job.ID) {
	j := m.jobs[id]
	if !j.state.Final() {
		return
	}
	j.after, j.doomed = nil, false
	for _, o := range m.jobs {
		if o.after[id] {
			delete(o.after, id)
			o.doomed = o.doomed || o.strict && j.state != job.Succeeded
			o.letGo()
		}
	}
}

func (m *machine) taken(tenant, key string) bool {
	for _, j := range m.jobs {
		if j.live() && j.tenant == tenant && j.key == key && key != "" {
			return true
		}
	}
	return false
}

// broke says that the budget of a job is spent.
func (m *machine) broke(j *modelJob) bool { return j.tenant == "red" && m.spent >= limit }

// spend counts what an attempt was found to cost.
func (m *machine) spend(j *modelJob, cost job.USD) {
	if j.tenant == "red" {
		m.spent += max(cost, 0)
	}
}

// cross has the budget's level looked at: what is on offer goes back when it is spent.
func (m *machine) cross(rt *rapid.T) {
	got, err := m.d.Crossings(m.d.t.Context(), m.d.epoch)
	if err != nil {
		rt.Fatal(err)
	}
	now := job.BudgetOK
	if m.spent >= limit {
		now = job.BudgetSpent
	}
	if (len(got) == 1) != (now != m.level) || len(got) == 1 && (got[0].State != now || got[0].From != m.level) {
		rt.Fatalf("crossed %+v, from %s to %s", got, m.level, now)
	}
	if now != m.level && now == job.BudgetSpent {
		for _, j := range m.jobs {
			if j.state == job.Dispatched && m.broke(j) {
				j.state = job.Queued
			}
		}
	}
	m.level = now
}

// raise sets the budget again: what is parked is looked at again, and parked again.
func (m *machine) raise(*rapid.T) { m.d.budget(budget(job.BudgetTenant, "red", limit)) }

// free are the profiles with capacity, whatever starts slowly.
func (m *machine) free(j *modelJob) (l []int) {
	for i := range modelLanes {
		if (i == 0 || j.chained) && !m.paused[j.credentialAt(i)] && !j.busy[i] && (j.resume == "" || i == j.at) {
			l = append(l, i)
		}
	}
	return l
}

// may says that nothing keeps a job from being selected but perhaps a slow start.
func (m *machine) may(j *modelJob) bool {
	return j.state == job.Queued && !m.held[j.keyName()] && !j.waits() && !m.broke(j) && !m.taken(j.tenant, j.key) && len(m.free(j)) > 0
}

// live counts the live jobs of an account, and most is how many there may be while it
// starts slowly.
func (m *machine) live(credential string) (n int) {
	for _, j := range m.jobs {
		if j.live() && j.credential() == credential {
			n++
		}
	}
	return n
}

func (m *machine) slow(credential string) bool { return m.limited[credential] > 0 }

func (m *machine) most(credential string) int { return 1 << (m.limited[credential] - 1) }

// promote has the queue brought up to date, but for times that are yet to come. What
// waited in vain ends, level by level.
func (m *machine) promote(rt *rapid.T) (moved int) {
	m.d.sql(`UPDATE turnpike.queue SET wake_at = now() + interval '1 hour' WHERE state = 'scheduled'`)
	moved, _, err := m.d.Promote(m.d.t.Context(), m.d.epoch, 1000)
	if err != nil {
		rt.Fatal(err)
	}
	for again := true; again; {
		again = false
		for id, j := range m.jobs {
			if j.doomed {
				j.state, again = job.Failed, true
				m.over(id)
			}
		}
	}
	return moved
}

// places reads at which profile the jobs that are not live are now.
func (m *machine) places(rt *rapid.T) {
	rows, err := m.d.pool.Query(m.d.t.Context(), `SELECT job_id::text, profile FROM turnpike.queue`)
	if err != nil {
		rt.Fatal(err)
	}
	var id job.ID
	var profile int
	if _, err := pgx.ForEachRow(rows, []any{&id, &profile}, func() error {
		if j := m.jobs[id]; !j.live() {
			j.at = profile
		}
		return nil
	}); err != nil {
		rt.Fatal(err)
	}
}

func (m *machine) selectSome(rt *rapid.T) {
	n := rapid.IntRange(1, 4).Draw(rt, "n")
	paced := len(m.limited) > 0
	if paced {
		m.promote(rt)
	}
	m.places(rt)
	may, before := map[job.ID]bool{}, map[string]int{}
	for id, j := range m.jobs {
		may[id] = m.may(j)
	}
	for credential := range m.limited {
		before[credential] = m.live(credential)
	}
	// The next time finds what the one before took to another lane, or let out.
	var got []job.Selected
	for pass, quiet := 0, 0; quiet < 2 && len(got) < n; pass++ {
		if quiet++; paced && m.promote(rt) > 0 {
			quiet = 0
		}
		for _, on := range modelLanes {
			some, err := m.d.Select(m.d.t.Context(), m.d.epoch, on, n-len(got))
			if err != nil {
				rt.Fatal(err)
			}
			if got = append(got, some...); len(some) > 0 {
				quiet = 0
			}
		}
		if pass > 50 {
			rt.Fatal("what is promoted is parked again, and promoted again")
		}
	}
	if len(got) > n {
		rt.Fatalf("selected %d, asked for %d", len(got), n)
	}
	for _, s := range got {
		j, at := m.jobs[s.Job], slices.Index(modelLanes, s.Lane)
		free := m.free(j)
		if !may[s.Job] || m.taken(j.tenant, j.key) || !slices.Contains(free, at) {
			rt.Fatalf("selected %s on lane %s, where it may not run: %+v", s.Job, s.Lane, j)
		}
		// The first profile with capacity; to an account that starts slowly it comes only
		// where no other has any.
		for _, other := range free {
			if !m.slow(j.credentialAt(other)) && (other < at || at != j.at && m.slow(j.credentialAt(at))) {
				rt.Fatalf("selected %s on lane %s before %s: %+v", s.Job, s.Lane, modelLanes[other], j)
			}
		}
		j.at = at
		j.state = job.Dispatched
		j.dispatch++
		if s.Dispatch != j.dispatch || s.Tenant != j.tenant {
			rt.Fatalf("selected %+v, want number %d", s, j.dispatch)
		}
		m.sent = append(m.sent, job.Claim{Job: s.Job, Dispatch: s.Dispatch})
	}
	for credential, was := range before {
		if now := m.live(credential); m.slow(credential) && now > max(was, m.most(credential)) {
			rt.Fatalf("%d of %s are live, and were %d: it starts slowly, with %d", now, credential, was, m.most(credential))
		}
	}
	if len(got) == n {
		return
	}
	m.places(rt)
	for id, j := range m.jobs {
		if !m.may(j) {
			continue
		}
		for _, at := range m.free(j) {
			// One that is elsewhere waits for the step.
			if c := j.credentialAt(at); !m.slow(c) || at == j.at && m.live(c) < m.most(c) {
				rt.Fatalf("selected %d of %d, and not %s, which may run on lane %s: %+v", len(got), n, id, modelLanes[at], j)
			}
		}
	}
}

func (m *machine) redispatch(rt *rapid.T) {
	for id, j := range m.jobs {
		if j.state == job.Dispatched && rapid.Bool().Draw(rt, "published") {
			if err := m.d.Published(m.d.t.Context(), []job.Delivery{{Job: id, Dispatch: j.dispatch}}); err != nil {
				rt.Fatal(err)
			}
		}
	}
	var got []job.Selected
	for _, on := range modelLanes {
		some, err := m.d.Redispatch(m.d.t.Context(), m.d.epoch, on, 0, false, 100)
		if err != nil {
			rt.Fatal(err)
		}
		got = append(got, some...)
	}
	n := 0
	for _, j := range m.jobs {
		switch {
		case j.state != job.Dispatched:
		case m.broke(j):
			j.state = job.Queued
		default:
			n++
		}
	}
	if len(got) != n {
		rt.Fatalf("dispatched %d again, want %d", len(got), n)
	}
	for _, s := range got {
		j := m.jobs[s.Job]
		j.dispatch++
		if j.state != job.Dispatched || s.Dispatch != j.dispatch {
			rt.Fatalf("dispatched again: %+v, have %+v", s, j)
		}
		m.sent = append(m.sent, job.Claim{Job: s.Job, Dispatch: s.Dispatch})
	}
}

func (m *machine) claim(rt *rapid.T) {
	if len(m.sent) == 0 {
		rt.Skip("nothing dispatched")
	}
	i := rapid.IntRange(0, len(m.sent)-1).Draw(rt, "delivery")
	c := m.sent[i]
	if c.Token == "" || rapid.Bool().Draw(rt, "anew") {
		c.Token = job.NewToken()
	}
	who := rapid.SampledFrom([]string{"w1", "w2"}).Draw(rt, "worker")
	j := m.jobs[c.Job]
	got, err := m.d.Claim(m.d.t.Context(), who, j.lane(), []job.Claim{c})
	if err != nil {
		rt.Fatal(err)
	}
	for _, l := range m.leases {
		if l.Token == c.Token && j.state == job.Running && j.token == c.Token && l.worker == who { // a repeat
			if len(got) != 1 || got[0].Lease != l.Lease {
				rt.Fatalf("claimed again: %+v, want %+v", got, l)
			}
			return
		}
	}
	if j.state != job.Dispatched || j.dispatch != c.Dispatch || m.paused[j.credential()] || m.held[j.keyName()] || m.broke(j) {
		if len(got) != 0 {
			rt.Fatalf("claimed %+v, want a refusal: %+v", got, j)
		}
		return
	}
	if len(got) != 1 {
		rt.Fatalf("refused %+v: %+v", c, j)
	}
	j.state, j.token, j.attempt = job.Running, c.Token, j.attempt+1
	j.started, j.tools, j.conv = false, 0, ""
	m.sent[i].Token = c.Token
	if got[0].Attempt != j.attempt || got[0].Token != c.Token || got[0].Resume != j.resume || got[0].TriesSpent != j.spent || got[0].Account != j.account || got[0].Profile != j.at {
		rt.Fatalf("claimed %+v, have %+v", got[0], j)
	}
	if left := got[0].Left; (left != nil) != (j.tenant == "red") || left != nil && left.USD != limit-m.spent {
		rt.Fatalf("given %+v of %s", left, limit-m.spent)
	}
	m.leases = append(m.leases, heldLease{got[0].Lease, who})
}

func (m *machine) lease(rt *rapid.T) (heldLease, *modelJob) {
	if len(m.leases) == 0 {
		rt.Skip("no leases")
	}
	// Mostly of what runs, at times of what is over.
	var now []heldLease
	for _, l := range m.leases {
		if m.jobs[l.Job].token == l.Token {
			now = append(now, l)
		}
	}
	if len(now) == 0 || rapid.IntRange(0, 3).Draw(rt, "old") == 0 {
		now = m.leases
	}
	l := rapid.SampledFrom(now).Draw(rt, "lease")
	return l, m.jobs[l.Job]
}

func (m *machine) beat(rt *rapid.T) {
	l, j := m.lease(rt)
	b := job.Beat{Lease: l.Lease, Turns: 1}
	if rapid.Bool().Draw(rt, "started") {
		b.StartedAt = time.Now()
	}
	if rapid.Bool().Draw(rt, "tools") {
		b.ToolCalls, b.Conversation = 1, "conv-"+fmt.Sprint(l.Attempt)
	}
	if rapid.Bool().Draw(rt, "lapsed") {
		m.d.lapse(l.Job)
	}
	got, err := m.d.Beat(m.d.t.Context(), l.worker, []job.Beat{b, {Lease: job.Lease{Job: l.Job, Token: job.NewToken()}}})
	if err != nil {
		rt.Fatal(err)
	}
	ours := j.state == job.Running && j.token == l.Token
	if len(got) != 2 || got[0].Job != l.Job || got[0].Ours != ours || got[1].Ours || (got[0].Cancelled != nil) != (ours && j.cancelled) ||
		(got[0].Over != nil) != (ours && m.broke(j)) {
		rt.Fatalf("beat %+v, have %+v", got, j)
	}
	if ours {
		j.started = j.started || !b.StartedAt.IsZero()
		j.tools = max(j.tools, b.ToolCalls)
		if b.Conversation != "" {
			j.conv = b.Conversation
		}
	}
}

func (m *machine) close(j *modelJob, ending job.Ending, isError, started, resumable bool, tools int, conv string) {
	next, _, spends, back, resume, _ := after(attempted{Ending: ending, IsError: isError, Started: started || j.started,
		Touched: max(tools, j.tools) > 0 || j.resume != "", Resumable: resumable, Cancelled: j.cancelled, Policy: j.policy, Spent: j.spent, Max: j.max,
		Backoff: 1000, Crashes: j.crashes, Overloads: j.overloads, Returns: j.returns})
	if j.chained && back && ending == job.EndOverloaded {
		next, j.busy[j.at] = job.Queued, true
	}
	j.state, j.token, j.cancelled = next, "", false
	if spends {
		j.spent++
	}
	if back {
		j.returns++
		if ending == job.EndOverloaded {
			j.overloads++
		}
	} else {
		j.returns = 0
	}
	if ending == job.EndLost {
		j.crashes++
	}
	if conv == "" {
		conv = j.conv
	}
	if resume {
		j.resume = conv
	}
	if ending == job.EndLimited || ending == job.EndCredential {
		m.pauseNow(j.credential(), ending == job.EndLimited)
	}
}

// pauseNow pauses an account, until its limit is over or for ever. A limit shortens no
// pause.
func (m *machine) pauseNow(credential string, limited bool) {
	if _, again := m.limited[credential]; !limited {
		delete(m.limited, credential)
	} else if again || !m.paused[credential] {
		m.limited[credential] = 0
	}
	m.paused[credential] = true
	for _, j := range m.jobs {
		if j.state == job.Dispatched && j.credential() == credential {
			j.state = job.Queued
		}
	}
}

func (m *machine) settle(rt *rapid.T) {
	l, j := m.lease(rt)
	r := job.Report{Version: 1, Lease: l.Lease, Worker: l.worker, Ending: rapid.SampledFrom(job.Endings()).Draw(rt, "ending"), EndedAt: time.Now(),
		IsError: rapid.Bool().Draw(rt, "error"), Started: rapid.Bool().Draw(rt, "started"), Resumable: rapid.Bool().Draw(rt, "resumable")}
	cost := job.USD(-1)
	if rapid.Bool().Draw(rt, "priced") {
		cost = job.USD(rapid.IntRange(0, 5_000_000).Draw(rt, "cost"))
		r.CostUSD, r.CostPartial = &cost, rapid.Bool().Draw(rt, "broke off")
		r.Usage = []job.ModelUsage{{Model: "m", InputTokens: 1, CostUSD: &cost}}
	}
	if rapid.Bool().Draw(rt, "tools") {
		r.ToolCalls, r.Conversation = 1, "conv-"+fmt.Sprint(l.Attempt)
	}
	if r.Resumable && r.Conversation == "" && j.conv == "" {
		r.Conversation = "conv-x" // what can be continued has a name
	}
	forged := rapid.IntRange(0, 9).Draw(rt, "forged") == 0
	if forged {
		r.Lease.Token = job.NewToken()
	}
	got, err := m.d.Settle(m.d.t.Context(), []job.Report{r, r})
	if err != nil {
		rt.Fatal(err)
	}
	want := job.SettledNever
	known := m.attempts[r.Lease]
	switch {
	case forged:
	case j.state == job.Running && j.token == r.Lease.Token:
		want = job.SettledNow
		m.attempts[r.Lease] = &modelAttempt{ending: r.Ending, cost: cost, partly: (r.Ending == job.EndLost || r.CostPartial) && cost >= 0}
		m.spend(j, cost)
		m.close(j, r.Ending, r.IsError, r.Started, r.Resumable, r.ToolCalls, r.Conversation)
		m.over(l.Job)
	case known != nil && known.reaped && !known.late:
		want = job.SettledLate
		known.late = true
		m.spend(j, cost)
		if cost >= 0 {
			known.cost, known.partly = cost, r.Ending == job.EndLost || r.CostPartial
		}
	case known != nil:
		want = job.SettledBefore
	}
	again := want
	if want != job.SettledNever {
		again = job.SettledBefore
	}
	wanted := []job.Settled{{Job: r.Lease.Job, Attempt: r.Lease.Attempt, How: want, State: j.state}, {Job: r.Lease.Job, Attempt: r.Lease.Attempt, How: again, State: j.state}}
	if diff := cmp.Diff(wanted, got); diff != "" {
		rt.Fatalf("settled (-want +got):\n%s", diff)
	}
}

func (m *machine) reap(rt *rapid.T) {
	m.d.sql(`UPDATE turnpike.queue SET lease_until = now() + interval '1 hour' WHERE state = 'running'`)
	lapsed := map[job.ID]bool{}
	for _, id := range m.ids {
		if m.jobs[id].state == job.Running && rapid.Bool().Draw(rt, "lapsed") {
			m.d.lapse(id)
			lapsed[id] = true
		}
	}
	got, err := m.d.Reap(m.d.t.Context(), m.d.epoch, later, 100)
	if err != nil {
		rt.Fatal(err)
	}
	if len(got) != len(lapsed) {
		rt.Fatalf("reaped %d, want %d", len(got), len(lapsed))
	}
	for _, r := range got {
		j := m.jobs[r.Job]
		for _, l := range m.leases {
			if l.Token == j.token {
				m.attempts[l.Lease] = &modelAttempt{ending: job.EndLost, reaped: true, cost: -1}
			}
		}
		m.close(j, job.EndLost, false, false, false, 0, "") // its conversation went with its worker
		m.over(r.Job)
		if !lapsed[r.Job] || r.State != j.state || r.Attempt != j.attempt {
			rt.Fatalf("reaped %+v, have %+v", r, j)
		}
	}
}

func (m *machine) cancel(rt *rapid.T) {
	id, j := m.pick(rt)
	got, err := m.d.Cancel(m.d.t.Context(), id, "me", "no need")
	if j.state.Final() {
		wantIs(rt, err, job.ErrFinished)
		return
	}
	if err != nil {
		rt.Fatal(err)
	}
	if j.state == job.Running {
		j.cancelled = true
	} else {
		j.state = job.Cancel
		m.over(id)
	}
	if got.State != j.state || got.Lane != lane && !j.chained {
		rt.Fatalf("cancelled %+v, have %+v", got, j)
	}
}

// wake lets the time pass that jobs and pauses with an end wait for, and deadlines.
func (m *machine) wake(rt *rapid.T) {
	m.d.sql(`UPDATE turnpike.pauses SET until = now() - interval '1 second' WHERE until > now() AND until < 'infinity'`)
	for credential, step := range m.limited {
		m.limited[credential] = max(step, 1)
	}
	left := map[string]bool{}
	for _, name := range names(m.d, `SELECT name FROM turnpike.pauses WHERE scope = 'account' AND until = 'infinity'`) {
		left[name] = true
	}
	m.paused = left
	m.d.sql(`UPDATE turnpike.queue SET busy = array_fill(now(), ARRAY[2]) WHERE busy IS NOT NULL`)
	m.d.roll(25 * time.Hour)
	m.spent = 0
	expired := ""
	if len(m.ids) > 0 && rapid.Bool().Draw(rt, "expires") {
		expired = string(rapid.SampledFrom(m.ids).Draw(rt, "expired"))
		m.d.sql(`UPDATE turnpike.queue SET deadline = now() WHERE job_id = $1 AND state <> 'running'`, expired)
	}
	m.d.due()
	for _, j := range m.jobs {
		j.busy = [2]bool{}
		if j.state == job.Scheduled {
			j.state = job.Queued
		}
	}
	if j := m.jobs[job.ID(expired)]; j != nil && j.state != job.Running && !j.state.Final() {
		j.state = job.Failed
		m.over(job.ID(expired))
	}
	m.promote(rt)
}

// limit has an account start slowly that met its limit and let it pass, with jobs that
// nothing else holds up.
func (m *machine) limit(rt *rapid.T) {
	name := rapid.SampledFrom([]string{"main", store.DefaultAccount("claude")}).Draw(rt, "account")
	if m.paused[name] { // it stays so
		return
	}
	m.d.sql(`INSERT INTO turnpike.pauses (scope, name, until, reason, by, ending) VALUES ('account', $1, now() - interval '1 second', '', '', 'limited')
		ON CONFLICT (scope, name) DO UPDATE SET until = excluded.until, ending = excluded.ending`, name)
	m.limited[name] = 1
	for range 3 {
		j := &modelJob{tenant: "blue", policy: job.RetryAlways, max: 4, state: job.Queued}
		if name == "main" {
			j.account = name
		}
		id := m.d.enqueue(func(r *job.Request) {
			r.Tenant, r.Account, r.Retry.Policy, r.Retry.MaxTries, r.Priority = j.tenant, j.account, j.policy, j.max, 1
		})
		m.jobs[id], m.ids = j, append(m.ids, id)
	}
}

// pace has the accounts that start slowly come to their next step.
func (m *machine) pace(*rapid.T) {
	m.d.sql(`UPDATE turnpike.pauses SET until = until - interval '1 hour' WHERE until <= now()`)
	m.d.sql(`UPDATE turnpike.queue SET wake_at = wake_at - interval '1 hour' WHERE parked = 'pause' AND wake_at < 'infinity'`)
	for credential, step := range m.limited {
		switch {
		case step == 10:
			delete(m.limited, credential)
		case step > 0:
			m.limited[credential]++
		}
	}
}

// redrive runs again, part by part, what ended as it says and was not run again before.
func (m *machine) redrive(rt *rapid.T) {
	r := job.Redrive{
		States:  rapid.SampledFrom([][]job.State{{job.Failed}, {job.Cancel}, {job.Failed, job.Cancel}}).Draw(rt, "states"),
		Tenants: rapid.SampledFrom([][]string{nil, {"red"}}).Draw(rt, "tenants"),
		Limit:   rapid.IntRange(1, 3).Draw(rt, "limit"),
	}
	var want []job.ID
	passed := 0
	for _, id := range m.ids {
		switch j := m.jobs[id]; {
		case !slices.Contains(r.States, j.state), r.Tenants != nil && !slices.Contains(r.Tenants, j.tenant):
		case m.repeated[id]:
			passed++
		default:
			want = append(want, id)
		}
	}
	slices.Sort(want)
	var got []job.ID
	for {
		a, err := m.d.Redrive(m.d.t.Context(), r, "me")
		if err != nil {
			rt.Fatal(err)
		}
		for _, one := range a.Jobs {
			old := m.jobs[one.RetryOf]
			if old == nil || one.ID == "" || one.Existing || one.Refused {
				rt.Fatalf("redrove %+v", one)
			}
			got = append(got, one.RetryOf)
			m.repeated[one.RetryOf] = true
			// Neither its time nor whom it waited for.
			m.jobs[one.ID] = &modelJob{tenant: old.tenant, key: old.key, account: old.account, policy: old.policy, max: old.max, chained: old.chained, state: job.Queued}
			m.ids = append(m.ids, one.ID)
		}
		passed -= a.PassedOver
		if r.After = a.Next; a.Next == "" {
			break
		}
	}
	if passed != 0 || !slices.Equal(want, got) {
		rt.Fatalf("redrove %v, want %v; %d more were to be passed over", got, want, passed)
	}
	unchecked, err := m.d.Unchecked(m.d.t.Context(), m.d.epoch, 1000)
	if err != nil || len(unchecked) != len(got) {
		rt.Fatalf("%d of %d are yet to be checked, %v", len(unchecked), len(got), err)
	}
	var fine []job.ID
	for _, u := range unchecked {
		fine = append(fine, u.ID)
	}
	if err := m.d.Checked(m.d.t.Context(), m.d.epoch, fine, nil); err != nil {
		rt.Fatal(err)
	}
}

func (m *machine) pause(rt *rapid.T) {
	name := rapid.SampledFrom([]string{"main", store.DefaultAccount("claude"), store.DefaultAccount("codex")}).Draw(rt, "account")
	if _, err := m.d.Pause(m.d.t.Context(), job.ScopeAccount, name, time.Time{}, "me", "test"); err != nil {
		rt.Fatal(err)
	}
	m.pauseNow(name, false)
}

func (m *machine) lift(rt *rapid.T) {
	for _, name := range []string{"main", store.DefaultAccount("claude"), store.DefaultAccount("codex")} {
		if err := m.d.Lift(m.d.t.Context(), job.ScopeAccount, name, "me", "test"); err != nil {
			rt.Fatal(err)
		}
	}
	m.paused, m.limited = map[string]bool{}, map[string]int{}
}

// hold pauses a key: what is on offer goes back.
func (m *machine) hold(rt *rapid.T) {
	name := rapid.SampledFrom([]string{"red/k", "blue/k", "blue/l"}).Draw(rt, "key")
	want := 0
	for _, j := range m.jobs {
		if j.state == job.Dispatched && j.keyName() == name {
			j.state = job.Queued
			want++
		}
	}
	m.held[name] = true
	if n, err := m.d.Pause(m.d.t.Context(), job.ScopeKey, name, time.Time{}, "me", "test"); err != nil || n != want {
		rt.Fatalf("%d went back, want %d, %v", n, want, err)
	}
}

func (m *machine) release(rt *rapid.T) {
	for _, name := range slices.Sorted(maps.Keys(m.held)) {
		if err := m.d.Lift(m.d.t.Context(), job.ScopeKey, name, "me", "test"); err != nil {
			rt.Fatal(err)
		}
	}
	m.held = map[string]bool{}
}

func names(d *desk, sql string) []string {
	rows, err := d.pool.Query(d.t.Context(), sql)
	if err != nil {
		d.t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		d.t.Fatal(err)
	}
	return got
}

// standing is a job as check compares it.
type standing struct {
	State                                            job.State
	Waits, Dispatch, Attempt, Spent, Crash, Overload int
	Costs                                            map[int]job.USD // of its attempts; -1 is unknown
	Partly                                           map[int]bool
}

const standings = `
	SELECT json_build_object(
		'jobs', (
			SELECT json_object_agg(j.job_id, json_build_object('State', coalesce(q.state, f.state, a.next), 'Dispatch', coalesce(q.dispatch_no, 0),
				'Attempt', coalesce(q.attempt, 0), 'Spent', coalesce(q.tries_spent, 0), 'Crash', coalesce(q.crashes, 0),
				'Overload', coalesce(q.overloads, 0), 'Waits', (SELECT count(*) FROM turnpike.waits w WHERE w.job_id = j.job_id), 'Costs', (
					SELECT json_object_agg(c.attempt, coalesce(c.cost_usd, -0.000001)::text) FROM turnpike.attempts c WHERE c.job_id = j.job_id),
				'Partly', (SELECT json_object_agg(c.attempt, c.cost_partial) FROM turnpike.attempts c WHERE c.job_id = j.job_id)))
			FROM turnpike.jobs j
			LEFT JOIN turnpike.queue q USING (job_id)
			LEFT JOIN turnpike.finished f USING (job_id)
			LEFT JOIN turnpike.attempts a ON a.job_id = j.job_id AND a.final),
		'spent', (SELECT (spent_usd * 1000000)::bigint FROM turnpike.v_budgets),
		'a job parked behind a key with nobody before it', (
			SELECT json_agg(p.job_id) FROM turnpike.queue p WHERE p.parked = 'key' AND NOT EXISTS (
				SELECT FROM turnpike.queue o WHERE o.tenant = p.tenant AND o.concurrency_key = p.concurrency_key
				AND (o.ready IS NOT NULL OR o.dispatched_at IS NOT NULL))),
		'a job with a final state and a queue row, or with neither', (
			SELECT json_agg(j.job_id) FROM turnpike.jobs j WHERE 1 <> (SELECT count(*) FROM turnpike.queue q WHERE q.job_id = j.job_id)
				+ (SELECT count(*) FROM turnpike.finished f WHERE f.job_id = j.job_id)
				+ (SELECT count(*) FROM turnpike.attempts a WHERE a.job_id = j.job_id AND a.final)),
		'a wait without its jobs', (` + dangling + `),
		'a job that is not where its profile is', (
			SELECT json_agg(q.job_id) FROM turnpike.queue q CROSS JOIN LATERAL jsonb_to_recordset(q.chain) AS e(profile integer, lane text, agent text, account text)
			WHERE e.profile = q.profile AND (e.lane, e.agent, e.account) IS DISTINCT FROM (q.lane, q.agent, q.account)),
		'an attempt after the final one', (
			SELECT json_agg(a.job_id) FROM turnpike.attempts a JOIN turnpike.attempts b USING (job_id) WHERE a.final AND b.attempt > a.attempt),
		'a row of history without its job', (
			SELECT json_agg(x.job_id) FROM (SELECT job_id FROM turnpike.attempts UNION ALL SELECT job_id FROM turnpike.costs
				UNION ALL SELECT job_id FROM turnpike.events UNION ALL SELECT job_id FROM turnpike.queue) x
			WHERE NOT EXISTS (SELECT FROM turnpike.jobs j WHERE j.job_id = x.job_id)),
		'a lost attempt that had started without a record of what it left', (
			SELECT json_agg(a.job_id) FROM turnpike.attempts a WHERE a.reaped AND NOT a.late AND a.started_at IS NOT NULL
				AND NOT EXISTS (SELECT FROM turnpike.orphans o WHERE o.job_id = a.job_id AND o.attempt = a.attempt)))::text`

// check compares everything the database has with the model, and what must always
// hold.
func (m *machine) check(rt *rapid.T) {
	var found map[string]json.RawMessage
	var all []byte
	if err := m.look.QueryRow(m.d.t.Context(), standings).Scan(&all); err != nil {
		rt.Fatal(err)
	}
	if err := json.Unmarshal(all, &found); err != nil {
		rt.Fatal(err)
	}
	got := map[job.ID]standing{}
	if err := json.Unmarshal(found["jobs"], &got); err != nil {
		rt.Fatal(err)
	}
	delete(found, "jobs")
	if spent := string(found["spent"]); spent != fmt.Sprint(int64(m.spent)) {
		rt.Fatalf("%s millionths are spent, want %d", spent, m.spent)
	}
	delete(found, "spent")
	for what, where := range found {
		if string(where) != "null" {
			rt.Fatalf("%s: %s", what, where)
		}
	}
	want := map[job.ID]standing{}
	for id, j := range m.jobs {
		s := standing{State: j.state, Waits: len(j.after)}
		if !j.state.Final() {
			s.Dispatch, s.Attempt, s.Spent, s.Crash, s.Overload = j.dispatch, j.attempt, j.spent, j.crashes, j.overloads
		}
		for l, a := range m.attempts {
			if l.Job == id {
				if s.Costs == nil {
					s.Costs, s.Partly = map[int]job.USD{}, map[int]bool{}
				}
				s.Costs[l.Attempt], s.Partly[l.Attempt] = a.cost, a.partly
			}
		}
		want[id] = s
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		rt.Fatalf("(-model +database):\n%s", diff)
	}
}
