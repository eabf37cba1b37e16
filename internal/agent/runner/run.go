package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/session"
)

const (
	// recordTime bounds what must be recorded although the caller's context ended.
	recordTime = 10 * time.Second
	// killTime bounds one try to end a tree, killAgain is the time between two, of
	// which there are killTries.
	killTime  = 20 * time.Second
	killAgain = 10 * time.Second
	killTries = 3
	// endTime is how long a driver may think after the output ended.
	endTime = 30 * time.Second
)

// running is a started turn.
type running struct {
	*turn
	out     *output
	watch   *observer
	steer   chan steering
	capped  chan struct{} // has room for one: the cost cap was reached
	settled chan struct{} // closes once the conversation is over
	waited  chan waited   // has room for one: the tree is gone
	over    chan struct{} // closes when supervise returns

	// Written before settled closes.
	conversation agent.Conversation

	// Of supervise, and of what follows it.
	exit        agent.Exit
	cause       string // the subtype of the first stop; empty while nobody asked
	asked       bool   // the tree was asked to end
	still       bool   // it was told to stand still
	linesBefore int64  // lines read before it was
	diagnostics []string
}

// waited is what waiting for a tree gave.
type waited struct {
	exit agent.Exit
	err  error
}

// steering is one call of agent.Control.
type steering struct {
	freeze bool
	done   chan error
}

// run sees a started agent through to its Result.
func (t *turn) run(ctx context.Context) *agent.Result {
	u := &running{
		turn:    t,
		watch:   &observer{to: t.r.Observer, stream: t.r.Stream},
		steer:   make(chan steering),
		capped:  make(chan struct{}, 1),
		settled: make(chan struct{}),
		waited:  make(chan waited, 1),
		over:    make(chan struct{}),
	}
	u.out = &output{
		turn: t, watch: u.watch, lines: make(chan agent.Line, lineBuffer), deaf: u.settled,
		heard: make(chan struct{}, 1), broken: make(chan struct{}, 1),
	}
	unrecorded := u.recordLive(ctx)
	u.watch.started(u)

	var hands sync.WaitGroup // everything but the reading of stdout
	hands.Go(func() { u.feed() })
	hands.Go(func() { _, _ = io.Copy(t.stderr, t.err.ours) }) // the log tells its own errors
	read := make(chan struct{})
	go func() { defer close(read); u.out.read() }()
	// The conversation outlives the caller's context: what a CLI says while it is
	// being stopped, its cost above all, is still wanted.
	talk, hush := context.WithCancel(context.WithoutCancel(ctx))
	defer hush()
	hands.Go(func() {
		defer close(u.settled)
		u.conversation = t.converse(talk, u.out, u.seen)
	})
	// Not among the hands: a tree that cannot be ended cannot be waited for, and
	// supervise says so.
	go func() {
		exit, err := t.tree.Wait()
		u.waited <- waited{exit, err}
	}()

	if unrecorded != nil {
		u.note("the turn was stopped because it could not be recorded: %v", unrecorded)
		u.cause = agent.SubtypeUnrecorded
	}
	left := u.supervise(ctx)
	if left != nil {
		u.note("%v", left)
	}
	if u.server != nil && (u.still || fenced(ctx)) {
		if err := u.server.Kill(); err != nil {
			u.note("%v", err)
		}
	}
	late := time.AfterFunc(endTime, hush)
	defer late.Stop()
	if u.out.drain(read) {
		u.note("something the agent started still held its output open after its tree was gone")
	}
	select {
	case <-u.out.broken: // nobody was left to stop when it was passed
		u.cause = cmp.Or(u.cause, agent.SubtypeProtocol)
	default:
	}
	_ = t.in.ours.Close() // ends feed, and a driver that still writes
	_ = t.err.ours.SetReadDeadline(time.Now().Add(lingerTime))
	hands.Wait()
	for _, p := range []*pipe{&t.in, &t.out, &t.err} {
		p.close()
	}
	return u.result(ctx, left == nil)
}

// recordLive tells the recorder, and the session directory, what was started.
func (u *running) recordLive(ctx context.Context) error {
	if err := u.dir.Update(func(m *session.Meta) { m.Process = &u.identity }); err != nil {
		u.note("session: %v", err)
	}
	if u.r.Recorder == nil || u.boxed != nil { // an engine has recorded its box
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	return u.r.Recorder.Live(ctx, u.identity)
}

// feed gives the agent its input. A CLI that does not read it says so itself.
func (u *running) feed() {
	if u.command.Stdin == nil {
		<-u.settled
	} else {
		_, _ = io.Copy(u.in.ours, u.command.Stdin)
	}
	_ = u.in.ours.Close()
}

// seen takes what the driver learned.
func (u *running) seen(p agent.Progress) {
	if u.overCap(p) {
		select {
		case u.capped <- struct{}{}:
		default: // said before
		}
	}
	u.watch.progress(p)
}

func (u *running) overCap(p agent.Progress) bool {
	return u.req.CostCapUSD > 0 && p.CostKnown && p.CostUSD >= u.req.CostCapUSD
}

// supervise keeps the turn's clocks, and stops the tree when one of them, or
// anybody, asks. It returns when the tree is gone, with an error when it could not
// be verified to be.
func (u *running) supervise(ctx context.Context) error {
	defer close(u.over)
	w := u.r.watch()
	var whole, silence, grace clock
	whole.after(u.req.Profile.Timeout)
	silence.after(w.FirstEvent)
	quiet := agent.SubtypeFirstEvent
	clocks := []*clock{&whole, &silence, &grace}
	done, settled := ctx.Done(), u.settled
	kills := 0

	// stop asks the tree to end, for the first reason that was given.
	stop := func(cause string) {
		whole.stop()
		silence.stop()
		if u.asked {
			return
		}
		if settled != nil || !u.conversation.Ended {
			u.cause = cause // else the turn ended by itself, and this is too late
		}
		u.asked, u.linesBefore = true, u.out.count.Load()
		for _, c := range clocks {
			c.thaw()
		}
		if u.still || fenced(ctx) {
			// It may have a successor by now, and is not let go on to end by itself.
			grace.after(time.Nanosecond)
			return
		}
		_ = u.tree.Terminate() // it fails on a tree that is gone
		grace.after(w.Grace)
	}
	if u.cause != "" {
		stop(u.cause)
	}
	for {
		select {
		case w := <-u.waited:
			u.exit = w.exit
			return w.err
		case <-done:
			done = nil
			stop(agent.SubtypeCancelled)
			if fenced(ctx) {
				grace.after(time.Nanosecond) // it may have been asked before
			}
		case <-whole.fires():
			stop(agent.SubtypeTimeout)
		case <-silence.fires():
			stop(quiet)
		case <-u.capped:
			stop(agent.SubtypeCostCap)
		case <-u.out.broken:
			stop(agent.SubtypeProtocol)
		case <-u.out.heard:
			quiet = agent.SubtypeIdle
			if !u.asked && settled != nil {
				silence.after(w.Idle)
			}
		case <-settled:
			// The CLI has said its last word and is given a moment to leave.
			settled = nil
			whole.stop()
			silence.stop()
			if !u.asked {
				grace.after(w.Grace)
			}
		case <-grace.fires():
			if !u.asked {
				stop("")
				continue
			}
			if kills++; kills > killTries {
				return errors.New("the turn's processes could not be ended")
			}
			if err := u.kill(ctx); err != nil {
				u.note("ending the turn's processes: %v", err)
			}
			grace.after(killAgain)
		case s := <-u.steer:
			err := u.turnTo(s.freeze, clocks)
			if err == nil {
				u.still = s.freeze
			}
			s.done <- err
		}
	}
}

// fenced says whether another may run in the turn's stead by now.
func fenced(ctx context.Context) bool { return errors.Is(context.Cause(ctx), agent.ErrFenced) }

func (u *running) kill(ctx context.Context) error {
	// The caller's context has mostly ended by now, and the tree must end anyway.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	return u.tree.Kill(ctx)
}

// turnTo freezes or thaws the tree and the clocks with it.
func (u *running) turnTo(freeze bool, clocks []*clock) error {
	if u.asked {
		return fmt.Errorf("the turn is being stopped: %w", os.ErrProcessDone)
	}
	if !freeze {
		if err := errors.Join(u.tree.Thaw(), u.serverTo(freeze)); err != nil {
			return err
		}
		for _, c := range clocks {
			c.thaw()
		}
		return nil
	}
	if err := errors.Join(u.tree.Freeze(), u.serverTo(freeze)); err != nil {
		// Half a tree may stand still; none of it shall.
		return errors.Join(err, u.tree.Thaw(), u.serverTo(false))
	}
	for _, c := range clocks {
		c.freeze()
	}
	return nil
}

// Freeze stops the turn's processes and its clocks.
func (u *running) Freeze() error { return u.call(true) }

// Thaw lets both go on.
func (u *running) Thaw() error { return u.call(false) }

// RunUntil bounds how long the agent and its server may run unseen, where what it runs in can.
func (u *running) RunUntil(at time.Time) error {
	if u.server != nil {
		if err := u.server.RunUntil(at); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return errors.Join(err, u.boundTree(at))
		}
	}
	return u.boundTree(at)
}

func (u *running) boundTree(at time.Time) error {
	if b, able := u.tree.(agent.Bounded); able {
		return b.RunUntil(at)
	}
	return nil
}

func (u *running) call(freeze bool) error {
	s := steering{freeze: freeze, done: make(chan error, 1)}
	select {
	case u.steer <- s:
	case <-u.over:
		return os.ErrProcessDone
	}
	select {
	case err := <-s.done:
		return err
	case <-u.over:
		return os.ErrProcessDone
	}
}

func (u *running) note(format string, args ...any) {
	u.diagnostics = append(u.diagnostics, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
}

// result puts together what is known of the turn, and records it.
func (u *running) result(ctx context.Context, gone bool) *agent.Result {
	c := u.conversation
	res := &agent.Result{
		Name: u.req.Name, Role: u.req.Profile.Name, Agent: u.req.Profile.AgentName(),
		SessionDir: u.dir.Path(), Transcript: u.dir.Transcript(),
		StartedAt: u.startedAt.UTC(), Duration: time.Since(u.startedAt),
		ExitCode: u.exit.Code, Signal: u.exit.Signal,
		ClaudeID: c.Conversation, ResultText: c.ResultText, NumTurns: c.Turns,
		CostUSD: c.CostUSD, CostKnown: c.CostKnown, CostPartial: c.CostKnown && !c.Ended, RateLimit: c.RateLimit,
		Failure: c.Failure, ToolCalls: c.ToolCalls, Models: c.Models, AgentVersion: c.AgentVersion,
		WorkDir: u.launch.WorkDir,
	}
	u.judge(res)
	if u.host != nil {
		res.Outcome, res.HasOutcome = u.host.Outcome()
	}
	if u.egress != nil {
		if err := u.egress.Close(); err != nil {
			u.note("%v", err)
		}
		for _, refusal := range u.egress.Refusals() {
			u.note("%s", refusal)
		}
	}
	for _, h := range u.servers() {
		if err := h.Close(); err != nil {
			u.note("server %s: %v", h.Name(), err)
		}
	}
	if u.server != nil {
		if err := u.server.Close(); err != nil {
			u.note("%v", err)
		}
	}
	if gone {
		clearAway(u.workspace(), u.left)
	}
	findings, whole := newFindings(u.before, takeInventory(u.workspace()))
	res.Findings = findings
	if !whole {
		u.note("the workspace is too large to look through for new executable configuration")
	}
	for _, log := range u.logs() {
		if err := errors.Join(log.Err(), log.Close()); err != nil {
			u.note("%v", err)
		}
	}
	if gone {
		u.keepConversation(c.Conversation)
	}
	if gone && u.r.Recorder != nil {
		if err := u.tellGone(ctx); err != nil {
			u.note("%v", err)
		}
	}
	res.Diagnostics = slices.Concat(c.Diagnostics, u.diagnostics)
	if err := u.dir.WriteResult(res); err != nil {
		res.Diagnostics = append(res.Diagnostics, strings.ReplaceAll(err.Error(), "\n", "; "))
		u.r.log().Error("a turn's result could not be kept in its session directory", "turn", u.req.Name, "session", u.dir.Path(), "error", err)
	}
	return res
}

// judge decides how the turn ended. The exit code is no part of it.
func (u *running) judge(res *agent.Result) {
	c := u.conversation
	// A final event that was read after the tree was asked to end may be the
	// answer to that, unless it reports success.
	bySelf := c.Ended && (u.cause == "" || !c.IsError || u.out.count.Load() == u.linesBefore)
	switch {
	case bySelf:
		res.IsError, res.ErrorSubtype = c.IsError, c.ErrorSubtype
	case u.cause != "":
		res.IsError, res.ErrorSubtype = true, u.cause
		res.TimedOut = u.cause == agent.SubtypeTimeout || u.cause == agent.SubtypeFirstEvent || u.cause == agent.SubtypeIdle
	case res.Signal != 0 && !u.asked:
		res.IsError, res.ErrorSubtype = true, "signal_"+signalName(res.Signal)
	case c.ErrorSubtype != "":
		res.IsError, res.ErrorSubtype = true, c.ErrorSubtype
	default:
		res.IsError, res.ErrorSubtype = true, agent.SubtypeNoResult
	}
	if u.overCap(c.Progress) && res.ErrorSubtype != agent.SubtypeCancelled {
		res.CostCapped, res.IsError, res.ErrorSubtype = true, true, agent.SubtypeCostCap
	}
}

func signalName(n int) string {
	return strings.ReplaceAll(syscall.Signal(n).String(), " ", "_")
}
