package runner_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/agent/session"
)

// keeping is a stand-in whose conversations are the files beneath talks.
type keeping struct{ driver }

func (k keeping) ConversationFile(_, name string) bool { return strings.HasPrefix(name, "talks/") }

func (k keeping) Converse(ctx context.Context, l agent.Launch, p agent.Pipes, seen func(agent.Progress)) agent.Conversation {
	c := k.driver.Converse(ctx, l, p, seen)
	c.Conversation = "c1"
	return c
}

func TestRunContinues(t *testing.T) {
	t.Parallel()
	d := driver{args: []string{"shell", `mkdir -p "$HOME/talks" && echo said >> "$HOME/talks/c1" && echo x > "$HOME/settings" && wc -l < "$HOME/talks/c1"`}}
	t.Run("what_was_kept_in_a_fresh_home", func(t *testing.T) {
		t.Parallel()
		r, req := newRunner(t, d), request(t)
		r.Drivers[agent.AgentClaude] = keeping{d}
		first := run(t, r, req)
		if !strings.HasPrefix(first.ResultText, "1\n") || first.WorkDir != req.Workspace.Dir {
			t.Fatalf("got %+v", first)
		}
		next, err := session.Create(r.SessionsDir, "next")
		if err != nil {
			t.Fatal(err)
		}
		kept, err := os.ReadFile(filepath.Join(first.SessionDir, agent.ConversationFile))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(next.Continued(), kept, 0o600); err != nil {
			t.Fatal(err)
		}
		req.SessionDir, req.ResumeID = next.Path(), "c1"
		if second := run(t, r, req); !strings.HasPrefix(second.ResultText, "2\n") {
			t.Fatalf("got %+v", second)
		}
	})
	for name, resume := range map[string]func(t *testing.T, dir *session.Dir){
		"nothing_that_is_not_kept": func(*testing.T, *session.Dir) {},
		"no_bundle_that_is_none": func(t *testing.T, dir *session.Dir) {
			if err := os.WriteFile(dir.Continued(), []byte("junk"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, req := newRunner(t, d), request(t)
			r.Drivers[agent.AgentClaude] = keeping{d}
			dir, err := session.Create(r.SessionsDir, "turn")
			if err != nil {
				t.Fatal(err)
			}
			resume(t, dir)
			req.SessionDir, req.ResumeID = dir.Path(), "c1"
			if res, err := r.Run(t.Context(), req); !errors.Is(err, agent.ErrUnsupported) || !strings.Contains(err.Error(), "c1") {
				t.Fatalf("got %+v, %v", res, err)
			}
		})
	}
	t.Run("nothing_with_a_driver_that_cannot", func(t *testing.T) {
		t.Parallel()
		r, req := newRunner(t, d), request(t)
		req.ResumeID = "c1"
		if res, err := r.Run(t.Context(), req); !errors.Is(err, agent.ErrUnsupported) {
			t.Fatalf("got %+v, %v", res, err)
		}
	})
}
