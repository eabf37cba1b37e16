//go:build !linux

package container

import (
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"runtime"

	"turnpike/internal/agent"
)

// Engine refuses everything where containers do not share the worker's kernel.
type Engine struct {
	Bin, Stage, Dir, Label string
	Log                    *slog.Logger
}

// Report is what an engine can hold a turn to, for people.
type Report struct {
	OK         bool     `json:"ok"`
	Version    string   `json:"version,omitempty"`
	Missing    []string `json:"missing,omitempty"`
	Weaknesses []string `json:"weaknesses,omitempty"`
}

var _ agent.Engine = (*Engine)(nil)

// Entry returns at once.
func Entry() {}

func refusal() error {
	return fmt.Errorf("%w: on %s, containers run in a machine of their own, whose files and kernel are not the worker's", agent.ErrUnsupported, runtime.GOOS)
}

func (*Engine) Look(context.Context, string, agent.Profile) (agent.Premises, error) {
	return agent.Premises{}, refusal()
}

func (*Engine) Start(context.Context, *exec.Cmd, agent.Box, agent.Recorder) (agent.Process, error) {
	return nil, refusal()
}
func (*Engine) Find(context.Context, agent.Identity) (bool, error) { return false, refusal() }
func (*Engine) End(context.Context, agent.Identity) (bool, error)  { return false, refusal() }
func (*Engine) Sweep(context.Context, string) (int, error)         { return 0, nil }
func (*Engine) Probe(context.Context) Report                       { return Report{Missing: []string{refusal().Error()}} }
