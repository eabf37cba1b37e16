package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"turnpike/internal/agent"
)

// box is a container that runs an agent.
type box struct {
	client   client
	identity agent.Identity
	dir      string // of the worker's, for this container
	news     *json.Decoder

	mu     sync.Mutex // guards line, for writing, and frozen
	line   *net.UnixConn
	frozen bool

	over chan struct{} // closes when exit and err are set
	exit agent.Exit
	err  error
}

var _ agent.Process = (*box)(nil)

// Identity implements agent.Process.
func (b *box) Identity() agent.Identity { return b.identity }

// follow waits for the end of the agent, and of the container.
func (b *box) follow() {
	b.over = make(chan struct{})
	go func() {
		defer close(b.over)
		// A container that says nothing before its end was ended from outside.
		b.exit = agent.Exit{Code: -1, Signal: int(killed)}
		for {
			var n news
			if err := b.news.Decode(&n); err != nil {
				break
			}
			if n.Exit != nil {
				b.exit = *n.Exit
				break
			}
		}
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

// Wait implements agent.Process.
func (b *box) Wait() (agent.Exit, error) {
	<-b.over
	return b.exit, b.err
}

// Terminate implements agent.Process.
func (b *box) Terminate() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return json.NewEncoder(b.line).Encode(order{Do: doTerminate})
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

// Freeze implements agent.Process.
func (b *box) Freeze() error { return b.freeze(true) }

// Thaw implements agent.Process.
func (b *box) Thaw() error { return b.freeze(false) }

func (b *box) freeze(still bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.frozen == still {
		return nil
	}
	do := "unpause"
	if still {
		do = "pause"
	}
	if _, err := b.client.run(context.Background(), do, b.identity.ID); err != nil {
		return err
	}
	b.frozen = still
	return nil
}
