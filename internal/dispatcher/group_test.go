package dispatcher_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"turnpike/internal/dispatcher"
	"turnpike/internal/job"
)

// counter writes groups, one at a time, when it is let.
type counter struct {
	let chan struct{} // nil: at once

	mu     sync.Mutex // guards the fields below
	groups []int
	refuse string // a request that contains it is refused, and with it its group
	fail   error
	bodies []string // as they were when they were written
}

func (c *counter) Enqueue(ctx context.Context, entries []job.Entry) ([]job.Accepted, error) {
	c.mu.Lock()
	c.groups = append(c.groups, len(entries))
	c.mu.Unlock()
	if c.let != nil {
		<-c.let
	}
	if ctx.Err() != nil {
		return nil, errors.New("a caller's context ended the group")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]job.Accepted, len(entries))
	for i, e := range entries {
		c.bodies = append(c.bodies, string(e.Body))
		if c.refuse != "" && strings.Contains(string(e.Body), c.refuse) {
			return nil, job.ErrConflict
		}
		out[i].ID = job.ID(e.Request.Name)
	}
	return out, c.fail
}

func (c *counter) Wake() error { return nil }

func TestIntakeGroups(t *testing.T) {
	named := func(n int) json.RawMessage {
		return json.RawMessage(strings.Replace(request, `"prompt"`, fmt.Sprintf(`"name": "n%d", "prompt"`, n), 1))
	}
	intake := func(c *counter) *dispatcher.Intake {
		return &dispatcher.Intake{Jobs: c, Waker: c, Bell: dispatcher.NewBell(), Log: quiet}
	}
	type result struct {
		n        int
		accepted job.Accepted
		err      error
	}
	t.Run("a caller that left may use its buffer again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := &counter{let: make(chan struct{})}
			i := intake(c)
			ctx, leave := context.WithCancel(t.Context())
			var all sync.WaitGroup
			for n := range 3 {
				buffer := named(n)
				all.Go(func() {
					// One of the second group writes it, the other leaves.
					if _, err := i.Accept(ctx, ci, "", buffer); err != nil && !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					clear(buffer)
				})
				synctest.Wait()
			}
			c.let <- struct{}{}
			synctest.Wait()
			leave()
			synctest.Wait()
			c.let <- struct{}{}
			all.Wait()
			if len(c.bodies) != 3 {
				t.Fatalf("%d requests were written, want 3", len(c.bodies))
			}
			for n, body := range c.bodies {
				if body != string(named(n)) {
					t.Errorf("request %d was written as %q", n, body)
				}
			}
		})
	})

	// callers has so many accept at once, after the first is being written.
	callers := func(i *dispatcher.Intake, n int) (results chan result) {
		results = make(chan result, n)
		for k := range n {
			go func() {
				a, err := i.Accept(context.Background(), ci, "", named(k))
				results <- result{k, a, err}
			}()
			if k == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		return results
	}

	synctest.Test(t, func(t *testing.T) {
		c := &counter{let: make(chan struct{})}
		results := callers(intake(c), 9)
		close(c.let)
		for range 9 {
			if r := <-results; r.err != nil || r.accepted.ID != job.ID(fmt.Sprintf("n%d", r.n)) {
				t.Errorf("request %d was answered %+v, %v", r.n, r.accepted, r.err)
			}
		}
		if len(c.groups) != 2 || c.groups[0] != 1 || c.groups[1] != 8 {
			t.Errorf("groups of %v; want the first alone and the others together", c.groups)
		}
	})

	synctest.Test(t, func(t *testing.T) {
		c := &counter{let: make(chan struct{}), refuse: `"n3"`}
		results := callers(intake(c), 6)
		close(c.let)
		for range 6 {
			if r := <-results; (r.n == 3) != errors.Is(r.err, job.ErrConflict) || r.n != 3 && (r.err != nil || r.accepted.ID != job.ID(fmt.Sprintf("n%d", r.n))) {
				t.Errorf("request %d was answered %+v, %v", r.n, r.accepted, r.err)
			}
		}
	})

	synctest.Test(t, func(t *testing.T) {
		c := &counter{let: make(chan struct{}), fail: job.ErrUnavailable}
		results := callers(intake(c), 4)
		close(c.let)
		for range 4 {
			if r := <-results; !errors.Is(r.err, job.ErrUnavailable) {
				t.Errorf("request %d: %v", r.n, r.err)
			}
		}
		if len(c.groups) != 2 {
			t.Errorf("groups of %v; what is unknown is not written again", c.groups)
		}
	})

	synctest.Test(t, func(t *testing.T) {
		c := &counter{let: make(chan struct{})}
		i := intake(c)
		ctx, leave := context.WithCancel(context.Background())
		left := make(chan error, 2)
		for range 2 { // one is written, the other waits for its turn
			go func() {
				_, err := i.Accept(ctx, ci, "", named(0))
				left <- err
			}()
			synctest.Wait()
		}
		leave()
		synctest.Wait()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("who left was answered %v", err)
		}
		others := callers(i, 2)
		close(c.let)
		if err := <-left; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("who left while its own was written was answered %v", err)
		}
		for range 2 {
			if r := <-others; r.err != nil {
				t.Errorf("after others left: %v", r.err)
			}
		}
	})

	synctest.Test(t, func(t *testing.T) { // a full group that everybody left holds up nobody
		c := &counter{let: make(chan struct{})}
		i := intake(c)
		ctx, leave := context.WithCancel(context.Background())
		const all = 300 // more than two groups, behind the one that is written
		left := make(chan error, all)
		for k := range all {
			go func() {
				_, err := i.Accept(ctx, ci, "", named(k))
				left <- err
			}()
			if k == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		leave()
		synctest.Wait()
		others := callers(i, 2)
		close(c.let)
		for range all {
			if err := <-left; err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("who left was answered %v", err)
			}
		}
		for range 2 {
			if r := <-others; r.err != nil {
				t.Errorf("after all others left: %v", r.err)
			}
		}
		if len(c.groups) != 2 {
			t.Errorf("groups of %v; want the first, and those that came later", c.groups)
		}
	})
}
