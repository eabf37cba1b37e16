package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"turnpike/internal/api"
	"turnpike/internal/dispatcher"
)

// overHTTP enqueues through the API on loopback, as most producers do.
func (b *bench) overHTTP(ctx context.Context, name string) (err error) {
	server, err := api.New(api.Config{
		Intake: b.intake, Jobs: b.db, Schedules: b.db, Control: &dispatcher.Control{Jobs: b.db, Waker: b.conn, Bell: b.bell, Log: b.log},
		Transcripts: b.conn, Patches: b.conn, Version: "bench", Log: b.log,
	})
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, l) }()
	defer func() { stop(); err = errors.Join(err, <-served) }()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	url := "http://" + l.Addr().String() + "/v1/jobs"
	post := func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(b.request("")))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusCreated {
			err = fmt.Errorf("%s: %s", resp.Status, answer)
		}
		return err
	}
	for _, clients := range []int{1, 16} {
		if err := b.sheet.Single(fmt.Sprintf("%s x%d", name, clients), clients, "", post); err != nil {
			return err
		}
	}
	return nil
}

// backlog measures how fast the first jobs of a long queue run, in front of few others
// and of many, and then with as many parked behind one taken key.
func (b *bench) backlog(ctx context.Context, name string) error {
	for _, many := range []int{options.N / 2, *backlog} {
		if err := b.before(ctx, fmt.Sprintf("drain before a %s of %d", name, many), many, ""); err != nil {
			return err
		}
	}
	return b.before(ctx, fmt.Sprintf("drain before a %s of %d behind one key", name, *backlog), *backlog, "taken")
}

// rows are jobs that wait: made from one request, the same for all. With a key the
// first of them is live and the others are parked behind it.
const rows = `
	WITH n AS (
		SELECT turnpike.uuid7(i) AS job_id, now() + i * interval '1 us' AS run_at, i FROM generate_series(1, $1::bigint) i
	),
	q AS (
		INSERT INTO turnpike.queue (job_id, rank, run_at, backoff_ms, max_tries, policy, lane, tenant, agent, account, state, checked,
			concurrency_key, parked, dispatched_at, published_at, dispatch_no)
		SELECT job_id, (date_part('epoch', run_at) * 1000000)::bigint, run_at, 30000, 3, 'if_not_started', $2, 'default', 'claude', '',
			CASE WHEN $4 <> '' AND i = 1 THEN 'dispatched' ELSE 'queued' END::turnpike.job_state, true, nullif($4, ''),
			CASE WHEN $4 <> '' AND i > 1 THEN 'key' END, CASE WHEN $4 <> '' AND i = 1 THEN now() END,
			CASE WHEN $4 <> '' AND i = 1 THEN now() END, ($4 <> '' AND i = 1)::integer
		FROM n
	)
	INSERT INTO turnpike.jobs (job_id, name, tenant, producer, lane, agent, account, work_key, work_tags, run_at, request)
	SELECT job_id, 'noop', 'default', 'bench', $2, 'claude', '', 'BENCH-1', '{}', run_at, $3::json FROM n`

// before runs options.N/2 jobs in front of a backlog.
func (b *bench) before(ctx context.Context, name string, backlog int, key string) error {
	if err := b.reset(ctx); err != nil {
		return err
	}
	n := options.N / 2
	if key != "" {
		if _, err := b.admin.Exec(ctx, rows, n, b.lane.String(), string(b.request("")), ""); err != nil {
			return err
		}
	} else {
		backlog += n
	}
	if _, err := b.admin.Exec(ctx, rows, backlog, b.lane.String(), string(b.request(key)), key); err != nil {
		return err
	}
	for _, sql := range []string{"ANALYZE turnpike.queue", "ANALYZE turnpike.jobs", "CHECKPOINT"} {
		if _, err := b.admin.Exec(ctx, sql); err != nil {
			return err
		}
	}
	stop, err := b.serve(ctx, options.Slots, noop(nil))
	if err != nil {
		return err
	}
	// It takes the lead and sets up the streams first.
	if err := b.until(ctx, "SELECT EXISTS (SELECT FROM turnpike.attempts)", time.Minute); err != nil {
		return errors.Join(err, stop())
	}
	since := b.sheet.Meter.Read()
	var already int
	if err := b.admin.QueryRow(ctx, "SELECT count(*) FROM turnpike.attempts").Scan(&already); err != nil {
		return errors.Join(err, stop())
	}
	err = b.until(ctx, fmt.Sprintf("SELECT count(*) >= %d FROM turnpike.attempts", n), 5*time.Minute)
	if err == nil {
		err = b.sheet.Rate(name, n-already, "jobs/s", since, "")
	}
	return errors.Join(err, stop())
}
