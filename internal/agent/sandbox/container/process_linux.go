package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/procs"
)

const (
	// sayTime is how long an order may take to be written. It fits into the socket unless
	// the stage has heard nothing for long.
	sayTime = time.Second
	// holdTime is how long the stage may take to freeze what the engine's freezer holds
	// then anyway; answerTime is how long it may take to let it go on.
	holdTime   = 2 * time.Second
	answerTime = 30 * time.Second
)

// box is a container that runs an agent.
type box struct {
	client   client
	identity agent.Identity
	dir      string // of the worker's, for this container
	news     *json.Decoder
	did      chan news // has room for one: what the stage did last; closes when it says no more

	mu     sync.Mutex // guards line, for writing, and frozen: one order at a time
	line   *net.UnixConn
	frozen bool

	over chan struct{} // closes when exit and err are set
	exit agent.Exit
	err  error
}

var (
	_ agent.Process = (*box)(nil)
	_ agent.Bounded = (*box)(nil)
)

// Identity implements agent.Process.
func (b *box) Identity() agent.Identity { return b.identity }

// follow hears what the stage says, and waits for the end of the agent and of the container.
func (b *box) follow() {
	b.over, b.did = make(chan struct{}), make(chan news, 1)
	go func() {
		defer close(b.over)
		b.exit = b.hear()
		close(b.did)
		ctx, cancel := context.WithTimeout(context.Background(), endTime)
		defer cancel()
		if err := b.client.remove(ctx, b.identity.ID); err != nil {
			b.err = fmt.Errorf("container %.12s: %w", b.identity.ID, err)
		}
		b.mu.Lock()
		_ = b.line.Close() // all was said
		b.mu.Unlock()
		b.err = errors.Join(b.err, os.RemoveAll(b.dir))
	}()
}

// hear takes the stage's news until it tells how the agent ended.
func (b *box) hear() agent.Exit {
	for {
		var n news
		switch err := b.news.Decode(&n); {
		case err != nil:
			// A container that says nothing before its end was ended from outside.
			return agent.Exit{Code: -1, Signal: int(killed)}
		case n.Exit != nil:
			return *n.Exit
		case n.Did != "":
			b.forget()
			b.did <- n
		}
	}
}

// forget drops what was answered and nobody waits for.
func (b *box) forget() {
	select {
	case <-b.did:
	default:
	}
}

// Wait implements agent.Process.
func (b *box) Wait() (agent.Exit, error) {
	<-b.over
	return b.exit, b.err
}

// Terminate implements agent.Process.
func (b *box) Terminate() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sayLocked(order{Do: doTerminate})
}

// RunUntil implements agent.Bounded. It does not wait for the stage, which hears of
// nothing while the container is paused, and of this first afterwards.
func (b *box) RunUntil(at time.Time) error {
	end, err := procs.TermEnd(at)
	if err != nil {
		return fmt.Errorf("until: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sayLocked(order{Do: doUntil, At: end})
}

// sayLocked gives the stage an order.
func (b *box) sayLocked(o order) error {
	err := b.line.SetWriteDeadline(time.Now().Add(sayTime))
	if err == nil {
		err = json.NewEncoder(b.line).Encode(o)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%s: the container does not listen: %w", o.Do, err)
	case err != nil:
		return fmt.Errorf("%s: %w", o.Do, os.ErrProcessDone)
	}
	return nil
}

// askLocked gives the stage an order and waits until it has done it.
func (b *box) askLocked(do string, within time.Duration) error {
	b.forget()
	if err := b.sayLocked(order{Do: do}); err != nil {
		return err
	}
	late := time.NewTimer(within)
	defer late.Stop()
	for {
		select {
		case n, open := <-b.did:
			switch {
			case !open:
				return fmt.Errorf("%s: %w", do, os.ErrProcessDone)
			case n.Did != do: // an answer nobody waited for
			case n.Error != "":
				return fmt.Errorf("%s: %s", do, n.Error)
			default:
				return nil
			}
		case <-late.C:
			return fmt.Errorf("%s: the container does not answer", do)
		}
	}
}

// Kill implements agent.Process.
func (b *box) Kill(ctx context.Context) error {
	if err := b.client.remove(ctx, b.identity.ID); err != nil {
		return fmt.Errorf("kill container %.12s: %w", b.identity.ID, err)
	}
	select {
	case <-b.over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Freeze implements agent.Process. What the stage has stopped does not go on by an unpause
// alone, which may come after the end of its term. If it stops nothing, for whatever
// reason, the engine's freezer holds it all the same.
func (b *box) Freeze() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.frozen {
		return nil
	}
	if err := b.askLocked(doFreeze, holdTime); errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if err := b.engineLocked("pause"); err != nil {
		return err
	}
	b.frozen = true
	return nil
}

// Thaw implements agent.Process.
func (b *box) Thaw() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.frozen {
		if err := b.engineLocked("unpause"); err != nil {
			return err
		}
		b.frozen = false
	}
	return b.askLocked(doThaw, answerTime)
}

// engineLocked has the engine pause the container, or let it go on.
func (b *box) engineLocked(do string) error {
	_, err := b.client.run(context.Background(), do, b.identity.ID)
	return err
}
