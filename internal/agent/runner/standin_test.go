package runner_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"turnpike/internal/agent"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/mcphost"
)

func TestMain(m *testing.M) {
	confine.Entry()
	mcphost.Entry()
	if len(os.Args) > 1 && os.Args[1] == "stand-in" {
		standIn(os.Args[2:])
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// event is a line of the stand-in's stream.
type event struct {
	Say   string  `json:"say,omitempty"`
	Turns int     `json:"turns,omitempty"`
	Cost  float64 `json:"cost,omitempty"`
	End   bool    `json:"end,omitempty"`
	Error string  `json:"error,omitempty"`
}

func say(e event) {
	b, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(b))
}

// forever blocks without using anything. Being signalled is the way out.
func forever() { select {} }

// standIn plays an agent CLI: what it does is its first argument.
func standIn(args []string) {
	// A process without anything to do is a deadlock to the Go runtime; one that
	// listens for a signal is not.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGUSR2)
	switch args[0] {
	case "done":
		say(event{Say: "working", Turns: 1})
		say(event{Say: "done", Turns: 2, Cost: 0.25, End: true})
	case "fails":
		say(event{End: true, Error: "max_turns", Turns: 3})
		os.Exit(1)
	case "succeeds-with-code":
		say(event{Say: "done", End: true})
		os.Exit(3)
	case "prompt":
		text, _ := io.ReadAll(os.Stdin)
		say(event{Say: string(text), End: true})
	case "tries":
		var all []string
		if err := json.NewDecoder(os.Stdin).Decode(&all); err != nil {
			panic(err)
		}
		b, _ := json.Marshal(tried(all))
		say(event{Say: string(b), End: true})
	case "environment":
		b, _ := json.Marshal(os.Environ())
		dir, _ := os.Getwd()
		say(event{Say: string(b) + "\n" + dir, End: true})
	case "shell":
		out, err := exec.Command("/bin/sh", "-c", args[1]).CombinedOutput()
		say(event{Say: fmt.Sprintf("%s%v", out, err), End: true})
	case "huge-line":
		w := bufio.NewWriter(os.Stdout)
		fmt.Fprint(w, `{"say":"`)
		for range 50 {
			fmt.Fprint(w, strings.Repeat("x", 1<<20))
		}
		fmt.Fprintln(w, `"}`)
		w.Flush()
		say(event{Say: "done", End: true})
	case "endless-line":
		for {
			fmt.Print(strings.Repeat("x", 1<<16))
		}
	case "endless-events":
		say(event{Turns: 7})
		for {
			say(event{Turns: 7})
		}
	case "malformed":
		fmt.Println("{\"say\":\nnull\n\x00\xff\xfe\n[[[[[[\n\n{}")
		say(event{Say: "done", End: true})
	case "cut":
		say(event{Turns: 4, Cost: 0.5})
		fmt.Print(`{"say":"do`)
	case "exit":
		say(event{Turns: 1})
	case "hang":
		forever()
	case "hang-after":
		say(event{Turns: 1, Cost: 0.5})
		forever()
	case "stays":
		say(event{Say: "done", End: true})
		forever()
	case "ignores-term":
		signal.Ignore(syscall.SIGTERM)
		say(event{Turns: 1})
		forever()
	case "ends-when-asked":
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		say(event{Turns: 1})
		<-c
		say(event{Cost: 0.75, Turns: 1, End: true, Error: "aborted"})
	case "stays-when-asked":
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		say(event{Turns: 1})
		<-c
		say(event{Turns: 2})
		forever()
	case "dies":
		say(event{Turns: 2})
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		forever()
	case "daemon":
		// A descendant in a session of its own, without the environment, that
		// keeps the output open.
		child := exec.Command("/proc/self/exe", "stand-in", "hang")
		child.Env, child.Stdout, child.Stderr = []string{}, os.Stdout, os.Stderr
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := child.Start(); err != nil {
			panic(err)
		}
		say(event{Say: strconv.Itoa(child.Process.Pid), End: true})
	case "spends":
		for i := range 10 {
			say(event{Turns: i + 1, Cost: 0.25 * float64(i+1)})
		}
		forever()
	case "noisy":
		fmt.Fprintln(os.Stderr, "careful")
		say(event{End: true})
	case "reports":
		if err := report(args[1]); err != nil {
			say(event{End: true, Error: err.Error()})
			return
		}
		say(event{Say: "reported", End: true})
	default:
		panic("stand-in: " + args[0])
	}
}

// report says how the turn ended through the tool server named by entry.
func report(entry string) error {
	var e agent.MCPEntry
	if err := json.Unmarshal([]byte(entry), &e); err != nil {
		return err
	}
	cmd := exec.Command(e.Command, e.Args...)
	cmd.Env = os.Environ()
	for k, v := range e.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	ctx := context.Background()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "stand-in", Version: "1"}, nil).Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		return err
	}
	res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: mcphost.ReportTool, Arguments: map[string]any{"status": "ok", "note": "all well"}})
	if err == nil && res.IsError {
		err = errors.New("refused")
	}
	return errors.Join(err, s.Close())
}

// driver speaks the stand-in's stream.
type driver struct {
	args []string
	// interactive leaves the stand-in's input to the conversation.
	interactive bool
	// runtime is what it needs to run; empty is the directory of its executable.
	runtime  string
	launched func(agent.Launch)
	command  error
	supports map[agent.Placement]agent.ToolSupport
	can      agent.Abilities
}

func (d driver) Descriptor() agent.Backend {
	return agent.Backend{Name: agent.AgentClaude, WritableTools: d.supports, Abilities: d.can}
}

func (d driver) Runtime(bin string) ([]agent.Mount, error) {
	return []agent.Mount{{Path: cmp.Or(d.runtime, filepath.Dir(bin)), Access: agent.ReadOnly}}, nil
}

func (d driver) Command(l agent.Launch) (*agent.Command, error) {
	if d.launched != nil {
		d.launched(l)
	}
	args := append([]string{"stand-in"}, d.args...)
	if e, ok := l.MCP[mcphost.ServerName]; ok && len(d.args) == 1 {
		b, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		args = append(args, string(b))
	}
	c := &agent.Command{Args: args, Env: []string{"STANDIN=1"}}
	if !d.interactive {
		c.Stdin = strings.NewReader(l.Request.Prompt)
	}
	return c, d.command
}

func (d driver) Converse(ctx context.Context, l agent.Launch, pipes agent.Pipes, seen func(agent.Progress)) agent.Conversation {
	if pipes.In != nil {
		_, _ = io.WriteString(pipes.In, l.Request.Prompt)
		_ = pipes.In.Close()
	}
	var c agent.Conversation
	for {
		select {
		case line, ok := <-pipes.Lines:
			if !ok {
				return c
			}
			var e event
			if line.Cut || json.Unmarshal(line.Text, &e) != nil {
				c.Diagnostics = append(c.Diagnostics, "odd line")
				continue
			}
			c.Turns = max(c.Turns, e.Turns)
			if e.Cost > 0 {
				c.CostUSD, c.CostKnown = e.Cost, true
			}
			if e.Say != "" {
				c.ResultText = e.Say
			}
			if e.End {
				c.Ended, c.IsError, c.ErrorSubtype = true, e.Error != "", e.Error
			}
			seen(c.Progress)
			if e.End {
				return c
			}
		case <-ctx.Done():
			return c
		}
	}
}
