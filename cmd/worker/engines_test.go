package main

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/agent/runner"
)

// engine notes what it is asked for.
type engine struct {
	agent.Engine
	ended, found []agent.Identity
	swept        []string
	err          error
}

func (e *engine) End(_ context.Context, id agent.Identity) (bool, error) {
	e.ended = append(e.ended, id)
	return true, e.err
}

func (e *engine) Find(_ context.Context, id agent.Identity) (bool, error) {
	e.found = append(e.found, id)
	return true, e.err
}

func (e *engine) Sweep(_ context.Context, prefix string) (int, error) {
	e.swept = append(e.swept, prefix)
	return 2, e.err
}

// TestEnginesEndWhatTheyRan: what a dead worker left is ended by whoever ran it, and a
// process never by an engine.
func TestEnginesEndWhatTheyRan(t *testing.T) {
	boxes := &engine{}
	all := engines{agent.SandboxContainer: boxes}
	box := agent.Identity{Kind: agent.KindContainer, ID: "c0ffee", Label: "k=v"}
	if found, err := all.find(t.Context(), box); !found || err != nil {
		t.Errorf("found %t, %v", found, err)
	}
	if ended, err := all.end(t.Context(), box); !ended || err != nil {
		t.Errorf("ended %t, %v", ended, err)
	}
	for _, kind := range []string{agent.KindProcess, agent.KindServer} {
		if _, err := all.end(t.Context(), agent.Identity{Kind: kind, PID: 1}); err == nil {
			t.Errorf("a %s with half an identity was ended", kind)
		}
	}
	if len(boxes.ended) != 1 || boxes.ended[0] != box || len(boxes.found) != 1 {
		t.Errorf("the engine was asked to end %+v and to find %+v", boxes.ended, boxes.found)
	}
}

func TestEnginesSweepTheirWorkersOwn(t *testing.T) {
	boxes := &engine{}
	all := engines{agent.SandboxContainer: boxes}
	sessions := filepath.Join(t.TempDir(), "sessions")
	if n, err := all.sweep(t.Context(), sessions); n != 2 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	label := runner.BoxLabel("", sessions, "some-turn")
	if len(boxes.swept) != 1 || !strings.HasPrefix(label, boxes.swept[0]) || strings.HasPrefix(runner.BoxLabel("", sessions+"-other", "x"), boxes.swept[0]) {
		t.Errorf("swept %q; a turn's label is %q", boxes.swept, label)
	}
	boxes.err = errors.New("down")
	if _, err := all.sweep(t.Context(), sessions); !errors.Is(err, boxes.err) {
		t.Errorf("got %v", err)
	}
}
