package sbx

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"turnpike/internal/agent"
)

// answerTime is how long the line may take to obey an order.
const answerTime = 30 * time.Second

// box is a sandbox that runs an agent.
type box struct {
	client   client
	identity agent.Identity

	lineCmd *exec.Cmd
	lineIn  io.Closer
	line    *lines
	answers chan news     // what the line says
	gone    chan struct{} // closes when the line is gone

	agentCmd *exec.Cmd
	input    *os.File
	ended    chan error // has room for one: how the agent's exec ended

	mu   sync.Mutex // guards last: one order at a time
	last news       // what the line said last

	over   chan struct{} // closes when exit and err are set
	finish sync.Once
	exit   agent.Exit
	err    error
}

var (
	_ agent.Process = (*box)(nil)
	_ agent.Bounded = (*box)(nil)
)

// Identity implements agent.Process.
func (b *box) Identity() agent.Identity { return b.identity }

// follow waits for the end of the agent's exec, and of the sandbox.
func (b *box) follow() {
	go func() {
		failed := <-b.ended
		var exited *exec.ExitError
		if failed != nil && !errors.As(failed, &exited) {
			b.err = fmt.Errorf("sandbox %s: %w", b.identity.ID, failed)
		}
		b.exit = exitOf(b.agentCmd.ProcessState)
		ctx, cancel := context.WithTimeout(context.Background(), endTime)
		defer cancel()
		if err := b.client.remove(ctx, b.identity.ID); err != nil {
			b.err = errors.Join(b.err, fmt.Errorf("sandbox %s: %w", b.identity.ID, err))
		}
		b.hangUp()
	}()
}

// exitOf is how the agent ended, as its exec tells: a signal that ended the agent inside
// is told as 128 and its number.
func exitOf(s *os.ProcessState) agent.Exit {
	ws, ok := s.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		return agent.Exit{Code: -1}
	case ws.Signaled():
		return agent.Exit{Code: -1, Signal: int(ws.Signal())}
	}
	return agent.Exit{Code: ws.ExitStatus()}
}

// hangUp ends this side's programs. What they joined is gone, or about to be.
func (b *box) hangUp() {
	b.finish.Do(func() {
		close(b.over)
		if b.input != nil {
			_ = b.input.Close()
		}
		if b.lineCmd != nil && b.lineCmd.Process != nil {
			_ = b.lineIn.Close()
			_ = killGroup(b.lineCmd)
			<-b.gone
			_ = b.lineCmd.Wait() // how it ended says nothing
		}
		if b.agentCmd != nil {
			_ = killGroup(b.agentCmd)
		}
	})
}

// Wait implements agent.Process.
func (b *box) Wait() (agent.Exit, error) {
	<-b.over
	return b.exit, b.err
}

// Terminate implements agent.Process.
func (b *box) Terminate() error { return b.order(doTerminate) }

// Freeze implements agent.Process.
func (b *box) Freeze() error { return b.order(doFreeze) }

// Thaw implements agent.Process.
func (b *box) Thaw() error { return b.order(doThaw) }

// RunUntil implements agent.Bounded. The sandbox has a clock of its own, and the order may
// be long on its way: it tells a time by that clock as it was heard last, which is too early
// by as long as the telling took, and never too late.
func (b *box) RunUntil(at time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.orderLocked(order{Do: doUntil, At: b.insideLocked(at)})
}

// insideLocked is a time by the sandbox's clock.
func (b *box) insideLocked(at time.Time) time.Duration {
	return b.last.Clock + time.Since(b.last.heard) + time.Until(at)
}

// order has the line do something.
func (b *box) order(do string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.orderLocked(order{Do: do})
}

func (b *box) orderLocked(o order) error {
	do := o.Do
	if err := b.line.say(o); err != nil {
		return fmt.Errorf("%s: %w", do, os.ErrProcessDone)
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	for {
		n, err := b.answer(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", do, err)
		}
		switch {
		case n.Did != do: // an answer that came too late for its order
		case n.Error != "":
			return fmt.Errorf("%s: %s", do, n.Error)
		default:
			return nil
		}
	}
}

// answer gives the next thing the line says. Nobody else has the box before its agent
// runs, and then it is for who has mu.
func (b *box) answer(ctx context.Context) (news, error) {
	select {
	case n := <-b.answers:
		b.last = n
		return n, nil
	case <-b.gone:
		return news{}, fmt.Errorf("%w: the line into the sandbox ended: %w", agent.ErrUnready, os.ErrProcessDone)
	case <-b.over:
		return news{}, os.ErrProcessDone
	case <-ctx.Done():
		return news{}, fmt.Errorf("%w: the sandbox does not answer: %w", agent.ErrUnready, context.Cause(ctx))
	}
}

// Kill implements agent.Process.
func (b *box) Kill(ctx context.Context) error {
	if err := b.client.remove(ctx, b.identity.ID); err != nil {
		return fmt.Errorf("kill sandbox %s: %w", b.identity.ID, err)
	}
	// An exec that hangs although its sandbox is gone is only this side's.
	_ = killGroup(b.agentCmd)
	select {
	case <-b.over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
