// Command standin stands in for an agent's CLI: it speaks the stream of claude, well
// enough for the real driver, and does what the ledger of package chaos tells it to.
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"turnpike/internal/chaos"
	"turnpike/internal/job"
)

// pulse is how often a process that runs says so.
const pulse = 20 * time.Millisecond

// child is the argument of what a turn forks.
const child = "child"

func main() {
	if len(os.Args) == 2 && os.Args[1] == child {
		(&turn{conn: os.NewFile(3, "ledger")}).beat()
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "standin:", err)
		os.Exit(1)
	}
}

// turn is one run of the agent.
type turn struct {
	id       string // of the conversation
	out      *bufio.Writer
	messages int

	mu   sync.Mutex // guards writing to conn
	conn *os.File   // to the ledger
}

func run() error {
	hello, err := options()
	if err != nil {
		return err
	}
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	addr, n, err := chaos.ParsePrompt(string(text))
	if err != nil {
		return err
	}
	hello.Plan = n
	dialled, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(context.Background(), "tcp", addr)
	if err != nil {
		return err
	}
	t := &turn{id: hello.Conversation, out: bufio.NewWriter(os.Stdout)}
	// A descriptor of its own: what is forked gets it too.
	if t.conn, err = dialled.(*net.TCPConn).File(); err != nil {
		return err
	}
	dialled.Close()
	if err := t.tell(hello); err != nil {
		return err
	}
	var script chaos.Script
	if err := json.NewDecoder(t.conn).Decode(&script); err != nil {
		return fmt.Errorf("the ledger gives no script: %w", err)
	}
	go t.beat()
	if script.Deaf {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	}
	if script.Keeps {
		if err := t.keep(); err != nil {
			return err
		}
	}
	if err := t.print(map[string]any{"type": "system", "subtype": "init", "claude_code_version": "2.1.332"}); err != nil {
		return err
	}
	for _, s := range script.Steps {
		if err := t.do(s); err != nil {
			return err
		}
	}
	return nil
}

// options reads what matters of the CLI's arguments.
func options() (chaos.Hello, error) {
	h := chaos.Hello{Conversation: uuid()}
	for _, a := range os.Args[1:] {
		if v, ok := strings.CutPrefix(a, "--name="); ok {
			h.Turn = v
		}
		if v, ok := strings.CutPrefix(a, "--resume="); ok {
			h.Conversation, h.Resumed = v, true
		}
	}
	if h.Turn == "" {
		return h, fmt.Errorf("no --name among %q", os.Args[1:])
	}
	return h, nil
}

func uuid() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: see crypto/rand
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// keep writes the conversation where the CLI has it.
func (t *turn) keep() error {
	dir := filepath.Join(os.Getenv("CLAUDE_CONFIG_DIR"), "projects", "work")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, t.id+".jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.WriteString("{\"a\":\"turn\"}\n"); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// beat says that this process runs, until nobody listens.
func (t *turn) beat() {
	tick := time.NewTicker(pulse)
	defer tick.Stop()
	for t.tell(chaos.Word{}) == nil {
		<-tick.C
	}
}

// tell says something to the ledger, in one write: a child has the same connection.
func (t *turn) tell(v any) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, err := t.conn.Write(chaos.Line(v))
	return err
}

// print writes one event of the stream, and returns once the worker can read it.
func (t *turn) print(event map[string]any) error {
	event["session_id"] = t.id
	if _, err := t.out.Write(chaos.Line(event)); err != nil {
		return err
	}
	return t.out.Flush()
}

func (t *turn) do(s chaos.Step) error {
	if s.After > 0 {
		<-time.After(s.After)
	}
	var err error
	switch s.Do {
	case chaos.Say:
		err = t.message(map[string]any{"type": "text", "text": "Working."})
	case chaos.Tool:
		err = t.message(map[string]any{"type": "tool_use", "id": fmt.Sprintf("call-%d", t.messages), "name": "Bash"})
	case chaos.Fork:
		err = t.fork()
	case chaos.Result, chaos.Wrong, chaos.Overloaded, chaos.Limited:
		if err := t.tell(chaos.Word{Will: s.Do, Cost: s.Cost}); err != nil {
			return err
		}
		err = t.result(s.Do, s.Cost)
	case chaos.Hang:
		select {}
	case chaos.Crash:
		os.Exit(3)
	}
	if err != nil {
		return err
	}
	return t.tell(chaos.Word{Heard: s.Do, Cost: s.Cost})
}

func (t *turn) message(block map[string]any) error {
	t.messages++
	return t.print(map[string]any{"type": "assistant", "message": map[string]any{
		"id": fmt.Sprintf("message-%d", t.messages), "model": "standin", "content": []any{block},
	}})
}

// result prints how the turn, or this part of it, ended.
func (t *turn) result(deed chaos.Deed, cost job.USD) error {
	usd := json.RawMessage(cost.String())
	e := map[string]any{
		"type": "result", "subtype": "success", "result": "Done.", "num_turns": t.messages, "total_cost_usd": usd,
		"model_usage_since_last_result": map[string]any{
			"standin": map[string]any{"inputTokens": 100, "outputTokens": 10, "costUSD": usd},
		},
	}
	switch deed {
	case chaos.Wrong:
		e["is_error"], e["subtype"] = true, "error_during_execution"
	case chaos.Overloaded:
		e["is_error"], e["api_error_status"], e["terminal_reason"] = true, 529, "api_error"
	case chaos.Limited:
		e["is_error"], e["api_error_status"], e["terminal_reason"] = true, 429, "api_error"
		if err := t.print(map[string]any{"type": "rate_limit_event", "rate_limit_info": map[string]any{
			"status": "rejected", "resetsAt": time.Now().Add(time.Second).Unix(), "rateLimitType": "five_hour",
		}}); err != nil {
			return err
		}
	}
	return t.print(e)
}

// fork starts a child in a session of its own, with none of the turn's pipes.
func (t *turn) fork() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, child)
	cmd.ExtraFiles = []*os.File{t.conn}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}
