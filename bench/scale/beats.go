package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"turnpike/internal/job"
	"turnpike/internal/store"
)

// pools and connections are how a fleet reaches Postgres: by a pooler, which has far
// fewer connections than there are workers.
const pools, connections = 10, 8

// beats has a fleet renew its leases every ten seconds.
func beats(ctx context.Context, s *scene) error {
	if err := s.enqueue(ctx, *workers**leases, ""); err != nil {
		return err
	}
	var dbs []*store.DB
	defer func() {
		for _, db := range dbs {
			db.Close()
		}
	}()
	for range pools {
		db, err := store.Open(ctx, store.Config{DSN: s.dsn, App: "fleet", MaxConns: connections})
		if err != nil {
			return err
		}
		dbs = append(dbs, db)
	}
	fleet := make([][]job.Beat, *workers)
	name := func(w int) string { return fmt.Sprintf("worker-%d", w) }
	for w := range fleet {
		selected, err := s.db.Select(ctx, s.epoch, lane, *leases)
		if err != nil {
			return err
		}
		claims := make([]job.Claim, len(selected))
		for i, c := range selected {
			claims[i] = job.Claim{Job: c.Job, Dispatch: c.Dispatch, Token: job.NewToken()}
		}
		got, err := dbs[w%pools].Claim(ctx, name(w), lane, claims)
		if err != nil {
			return err
		}
		for _, c := range got {
			fleet[w] = append(fleet[w], job.Beat{Lease: c.Lease, StartedAt: time.Now(), Conversation: "conversation"})
		}
	}
	if err := s.sql(ctx, `VACUUM ANALYZE turnpike.queue`); err != nil {
		return err
	}
	const counts = `SELECT n_tup_upd::text || ' ' || n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'turnpike.queue'::regclass`
	before, err := ask[string](ctx, s, counts)
	if err != nil {
		return err
	}
	spent := cpu(s.pid)
	begun := time.Now()
	var mu sync.Mutex // guards the four below
	var times []time.Duration
	var renewed, lost, failed int
	during, cancel := context.WithTimeout(ctx, *lasts)
	defer cancel()
	var all sync.WaitGroup
	for w, mine := range fleet {
		all.Go(func() {
			wait := time.NewTimer(time.Duration(w) * 10 * time.Second / time.Duration(*workers))
			defer wait.Stop()
			for turn := 1; ; turn++ {
				select {
				case <-during.Done():
					return
				case <-wait.C:
				}
				wait.Reset(10 * time.Second)
				for i := range mine {
					mine[i].Turns = turn
				}
				at := time.Now()
				answers, err := dbs[w%pools].Beat(ctx, name(w), mine)
				took := time.Since(at)
				mu.Lock()
				times = append(times, took)
				if err != nil {
					failed++
				}
				for _, a := range answers {
					if a.Ours {
						renewed++
					} else {
						lost++
					}
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	took := time.Since(begun)
	spent = cpu(s.pid) - spent
	late, err := ask[int](ctx, s, `SELECT count(*) FROM turnpike.queue WHERE state = 'running' AND lease_until < now()`)
	if err != nil {
		return err
	}
	for _, db := range dbs {
		db.Close() // so that the server is told of all
	}
	dbs = nil
	for n := 1; n > 0; {
		if n, err = ask[int](ctx, s, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fleet'`); err != nil {
			return err
		}
	}
	after, err := ask[string](ctx, s, counts)
	if err != nil {
		return err
	}
	var u0, h0, u1, h1 int
	if _, err := fmt.Sscan(before+" "+after, &u0, &h0, &u1, &h1); err != nil {
		return err
	}
	s.table(
		[]string{"workers", "leases", "statements/s", "leases/s", "p50", "p99", "HOT", "Postgres CPU", "failed", "lost", "lapsed"},
		[]string{strconv.Itoa(*workers), strconv.Itoa(*workers * *leases), fmt.Sprintf("%.0f", float64(len(times))/took.Seconds()), fmt.Sprintf("%.0f", float64(renewed)/took.Seconds()),
			ms(quantile(times, 0.5)), ms(quantile(times, 0.99)), fmt.Sprintf("%.1f %%", 100*float64(h1-h0)/float64(max(u1-u0, 1))),
			fmt.Sprintf("%.2f cores", spent.Seconds()/took.Seconds()), strconv.Itoa(failed), strconv.Itoa(lost), strconv.Itoa(late)})
	return sizes(ctx, s)
}

// cpu is the time that a server and its children took so far.
func cpu(pid int) time.Duration {
	ticks := 0
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0 // the pattern is good
	}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it ended
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		f := strings.Fields(rest)
		if len(f) < 15 {
			continue
		}
		sum := func(fields ...string) {
			for _, one := range fields {
				n, _ := strconv.Atoi(one) // the kernel's
				ticks += n
			}
		}
		switch {
		case filepath.Base(filepath.Dir(path)) == strconv.Itoa(pid):
			sum(f[11], f[12], f[13], f[14])
		case f[1] == strconv.Itoa(pid):
			sum(f[11], f[12])
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// sizes tells of the hot table and its indexes.
func sizes(ctx context.Context, s *scene) error {
	rows, err := s.pool.Query(ctx, `
		SELECT relname, pg_size_pretty(pg_relation_size(relid)), pg_size_pretty(pg_indexes_size(relid)), n_live_tup, n_dead_tup, autovacuum_count
		FROM pg_stat_user_tables WHERE relid IN ('turnpike.queue'::regclass, 'turnpike.workers'::regclass, 'turnpike.leader'::regclass) ORDER BY relname`)
	if err != nil {
		return err
	}
	defer rows.Close()
	out := [][]string{{"table", "size", "indexes", "live", "dead", "autovacuums"}}
	for rows.Next() {
		var name, size, indexes string
		var live, dead, vacuums int64
		if err := rows.Scan(&name, &size, &indexes, &live, &dead, &vacuums); err != nil {
			return err
		}
		out = append(out, []string{name, size, indexes, strconv.FormatInt(live, 10), strconv.FormatInt(dead, 10), strconv.FormatInt(vacuums, 10)})
	}
	s.table(out...)
	return rows.Err()
}
