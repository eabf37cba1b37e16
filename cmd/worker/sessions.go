package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"turnpike/internal/agent"
	"turnpike/internal/agent/session"
	"turnpike/internal/worker"
)

// sessions shows the worker its session directories.
type sessions struct {
	root    string
	drivers map[string]agent.Driver
}

// maxLine is the most of one transcript line that is looked at.
const maxLine = 8 << 20

func (s *sessions) New(name string) (string, error) {
	d, err := session.Create(s.root, name)
	if err != nil {
		return "", err
	}
	return d.Path(), nil
}

// Read tells what a turn whose worker died had come to. Its driver reads the
// transcript as it would have read the agent.
func (s *sessions) Read(dir string) (worker.Past, error) {
	d, err := session.Open(dir)
	if err != nil {
		return worker.Past{}, err
	}
	meta, err := d.Meta()
	if err != nil {
		return worker.Past{}, err
	}
	past := worker.Past{StartedAt: meta.StartedAt, Interrupted: agent.Interrupted{
		Role: meta.Role, Name: filepath.Base(dir), Dir: dir,
	}}
	past.Interrupted.Note, past.Interrupted.Killed = d.Killed()
	if d.Ended() {
		past.Result, err = d.Result()
		return past, err
	}
	f, err := os.Open(d.Transcript())
	if errors.Is(err, fs.ErrNotExist) {
		return past, nil
	}
	if err != nil {
		return past, err
	}
	defer f.Close()
	past.Interrupted.Transcript = d.Transcript()
	name := meta.Agent
	if name == "" {
		name = agent.AgentClaude
	}
	driver, ok := s.drivers[name]
	if !ok {
		return past, fmt.Errorf("agent %q: %w", name, agent.ErrUnsupported)
	}
	// What a turn cost may depend on whether its conversation had cost something before.
	c, err := replay(driver, agent.Launch{Request: agent.Request{ResumeID: meta.ResumeID}}, f)
	past.Progress, past.Models, past.Interrupted.Turns = c.Progress, c.Models, c.Turns
	return past, err
}

// replay has a driver read a transcript.
func replay(d agent.Driver, l agent.Launch, transcript io.Reader) (agent.Conversation, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lines := make(chan agent.Line)
	read := make(chan error, 1)
	go func() {
		defer close(lines)
		in := session.NewLines(transcript, maxLine)
		for {
			line, err := in.Next()
			if err != nil {
				if errors.Is(err, io.EOF) {
					err = nil
				}
				read <- err
				return
			}
			select {
			case lines <- line:
			case <-ctx.Done():
				read <- nil
				return
			}
		}
	}()
	c := d.Converse(ctx, l, agent.Pipes{Lines: lines}, func(agent.Progress) {})
	cancel()
	return c, <-read
}

func (s *sessions) List() ([]worker.SessionEntry, error) {
	all, err := session.List(s.root)
	out := make([]worker.SessionEntry, len(all))
	for i, e := range all {
		out[i] = worker.SessionEntry(e)
	}
	return out, err
}

func (s *sessions) Remove(dir string) error { return session.Remove(dir) }
