//go:build !darwin && (!linux || (!amd64 && !arm64))

package confine

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"

	"turnpike/internal/agent"
)

func entry() {}

// Platform gives a Confiner that refuses everything.
func Platform(Options) Confiner { return refusal{} }

// DefaultSystemPaths has nothing to name where nothing is confined.
func DefaultSystemPaths() []agent.Mount { return nil }

// Pins gives no pins where nothing is confined.
func Pins(agent.Confinement) ([]agent.Pin, error) { return nil, nil }

type refusal struct{}

func (refusal) err() error {
	return fmt.Errorf("%w: host turns are not confined on %s/%s yet: use a container", agent.ErrUnsupported, runtime.GOOS, runtime.GOARCH)
}

func (r refusal) Check(agent.Confinement) error            { return r.err() }
func (r refusal) Start(*exec.Cmd, agent.Confinement) error { return r.err() }
func (refusal) Mode() Mode                                 { return None }
func (r refusal) Probe(context.Context) Report {
	return Report{Mode: None, Reason: r.err().Error()}
}
