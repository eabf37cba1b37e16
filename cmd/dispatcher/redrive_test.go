package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"turnpike/cmd/internal/cli"
	"turnpike/internal/job"
)

// command runs one against a dispatcher that answers with handle.
func command(t *testing.T, handle http.HandlerFunc, words ...string) (stdout, stderr string, err error) {
	t.Helper()
	t.Setenv("TURNPIKE_TOKEN", "t")
	server := httptest.NewServer(handle)
	defer server.Close()
	var out, talk bytes.Buffer
	cmd := root()
	cli.Prepare(cmd)
	cmd.SetArgs(append(words, "--server", server.URL))
	cmd.SetOut(&out)
	cmd.SetErr(&talk)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), talk.String(), err
}

func TestRedriveCommand(t *testing.T) {
	// parts answers a part after the other and keeps what it was asked.
	parts := func(asked *[]map[string]any, answers ...job.RedriveAnswer) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var body map[string]any
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.Method+r.URL.Path != "POST/v1/redrive" {
				t.Errorf("%s %s: %v", r.Method, r.URL.Path, err)
			}
			*asked = append(*asked, body)
			if len(*asked) > len(answers) {
				http.Error(w, `{"title":"Too Many Requests","detail":"the tenant is full"}`, http.StatusTooManyRequests)
				return
			}
			if err := json.NewEncoder(w).Encode(answers[len(*asked)-1]); err != nil {
				t.Error(err)
			}
		}
	}
	one := func(old, id, next job.ID) job.RedriveAnswer {
		return job.RedriveAnswer{Redriven: 1, PassedOver: 2, Jobs: []job.Redriven{{RetryOf: old, ID: id, Tenant: "acme", Ended: job.Failed, Reason: "crashed"}}, Next: next}
	}
	t.Run("goes on until everything was looked at", func(t *testing.T) {
		var asked []map[string]any
		out, talk, err := command(t, parts(&asked, one("old1", "new1", "old1"), one("old2", "new2", "")), "redrive", "--reason", "crashed", "--tenant", "acme", "--tag", "x", "-o", "name")
		if err != nil || out != "new1\nnew2\n" || !strings.Contains(talk, "2 redriven, 4 passed over") {
			t.Errorf("%q %q %v", out, talk, err)
		}
		first := map[string]any{"reasons": []any{"crashed"}, "tenant": "acme", "tag": "x", "limit": 500.0, "dry_run": false}
		then := map[string]any{"reasons": []any{"crashed"}, "tenant": "acme", "tag": "x", "limit": 500.0, "dry_run": false, "after": "old1"}
		if diff := cmp.Diff([]map[string]any{first, then}, asked); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("stops at its limit", func(t *testing.T) {
		var asked []map[string]any
		_, talk, err := command(t, parts(&asked, one("old1", "", "old1"), one("old2", "", "old2")), "redrive", "--state", "failed", "--limit", "2", "--dry-run")
		if err != nil || len(asked) != 2 || asked[0]["limit"] != 2.0 || asked[1]["limit"] != 1.0 || asked[1]["dry_run"] != true || !strings.Contains(talk, "2 would be redriven") {
			t.Errorf("asked %v, said %q, %v", asked, talk, err)
		}
	})
	t.Run("tells what was done before it failed", func(t *testing.T) {
		var asked []map[string]any
		out, _, err := command(t, parts(&asked, one("old1", "new1", "old1")), "redrive", "--name", "n", "-o", "name")
		if !errors.Is(err, job.ErrQueueFull) || out != "new1\n" {
			t.Errorf("%q %v", out, err)
		}
	})
	t.Run("refuses what is no choice, and asks nobody", func(t *testing.T) {
		for _, words := range [][]string{
			{}, {"--lane", "none/default"}, {"--name", "n", "--since", "yesterday"}, {"--name", "n", "--until", "-1h"}, {"--name", "n", "--limit", "-1"},
		} {
			_, _, err := command(t, func(http.ResponseWriter, *http.Request) { t.Errorf("%v was sent", words) }, append([]string{"redrive"}, words...)...)
			if err == nil {
				t.Errorf("%v: no error", words)
			}
		}
	})
	t.Run("takes an age or a time", func(t *testing.T) {
		var asked []map[string]any
		if _, _, err := command(t, parts(&asked, job.RedriveAnswer{}), "redrive", "--name", "n", "--since", "2026-11-30T08:00:00+02:00", "--until", "1h"); err != nil || asked[0]["since"] != "2026-11-30T06:00:00Z" || asked[0]["until"] == nil {
			t.Errorf("asked %v, %v", asked, err)
		}
	})
}
