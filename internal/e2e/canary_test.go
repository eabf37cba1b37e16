package e2e_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"turnpike/internal/agent/agenttest"
	"turnpike/internal/job"
)

// canary begins every credential the worker of a test holds: nothing but the agent, and
// whom it is for, may ever see one.
const canary = "canary-5f1d2c7e"

// watchArguments looks at the command lines of all processes until stop is called, which
// says where a canary was seen.
func watchArguments() (stop func() []string) {
	ctx, cancel := context.WithCancel(context.Background())
	var seen []string
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, file := range lines {
				// A process may go while we look.
				if args, err := os.ReadFile(file); err == nil && bytes.Contains(args, []byte(canary)) {
					seen = append(seen, strings.ReplaceAll(string(args), "\x00", " "))
				}
			}
		}
	})
	return func() []string {
		cancel()
		watching.Wait()
		return seen
	}
}

// secretIn notes the password of an address and gives the address.
func (s *system) secretIn(address string) string {
	s.t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		s.t.Fatal("an address of the test's own is no URL")
	}
	password, ok := u.User.Password()
	if !ok {
		s.t.Fatalf("the address for %s has no password", u.User.Username())
	}
	s.secrets = append(s.secrets, password)
	return address
}

// keepsSecrets looks for the worker's credentials in all that a test's system leaves.
func (s *system) keepsSecrets() {
	s.t.Helper()
	found := func(where string, text []byte) {
		s.t.Helper()
		for _, secret := range s.secrets {
			if at := bytes.Index(text, []byte(secret)); at >= 0 {
				s.t.Errorf("a credential is in %s: ...%s", where, text[max(0, at-60):min(len(text), at+20)])
			}
		}
	}
	for _, p := range s.started {
		p.mu.Lock()
		found("the log of "+p.name, []byte(strings.Join(p.log, "\n")))
		found("the output of "+p.name, p.out.Bytes())
		p.mu.Unlock()
	}
	s.searchFiles(found)
	s.searchDatabase(found)
	s.searchStreams(found)
}

// searchFiles goes through state directories, session directories and workspaces.
func (s *system) searchFiles(found func(string, []byte)) {
	files := 0
	err := filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		found(path, opened(text))
		return nil
	})
	if err != nil {
		s.t.Errorf("look through %s: %v", s.dir, err)
	}
	if files == 0 && slices.ContainsFunc(s.started, func(p *process) bool { return p.name == "worker" }) {
		s.t.Error("no file was looked through")
	}
}

// opened is what a file holds, unpacked where it is packed.
func opened(text []byte) []byte {
	z, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return text
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		return text
	}
	return plain
}

func (s *system) searchDatabase(found func(string, []byte)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), soon) // a test's own has ended by now
	defer cancel()
	rows, err := s.db.Query(ctx, `SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = 'turnpike' AND c.relkind = 'r' ORDER BY 1`)
	if err != nil {
		s.t.Errorf("the tables: %v", err)
		return
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(tables) == 0 {
		s.t.Errorf("%d tables: %v", len(tables), err)
		return
	}
	for _, table := range tables {
		rows, err := s.db.Query(ctx, "SELECT t::text FROM "+table+" t")
		if err != nil {
			s.t.Errorf("read %s: %v", table, err)
			continue
		}
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			s.t.Errorf("read %s: %v", table, err)
		}
		for _, row := range all {
			found("table "+table, []byte(row))
		}
	}
}

func (s *system) searchStreams(found func(string, []byte)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), soon)
	defer cancel()
	nc, err := nats.Connect(s.broker.URL())
	if err != nil {
		s.t.Errorf("connect to NATS: %v", err)
		return
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		s.t.Errorf("JetStream: %v", err)
		return
	}
	streams := js.ListStreams(ctx)
	for info := range streams.Info() {
		stream, err := js.Stream(ctx, info.Config.Name)
		if err != nil {
			s.t.Errorf("stream %s: %v", info.Config.Name, err)
			continue
		}
		for seq := info.State.FirstSeq; seq > 0 && seq <= info.State.LastSeq; seq++ {
			m, err := stream.GetMsg(ctx, seq)
			switch {
			case errors.Is(err, jetstream.ErrMsgNotFound):
				continue
			case err != nil:
				s.t.Errorf("message %d of %s: %v", seq, info.Config.Name, err)
				return
			}
			found(fmt.Sprintf("stream %s, subject %s", info.Config.Name, m.Subject), opened(m.Data))
			found("the header of a message of "+info.Config.Name, fmt.Append(nil, m.Header))
		}
	}
	if err := streams.Err(); err != nil {
		s.t.Errorf("the streams: %v", err)
	}
}

// distrusted is a server that demands a password, over a connection nobody vouches for.
func distrusted(t *testing.T) (at string) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // it is told that its certificate is bad
	t.Cleanup(server.Close)
	return server.URL
}

// Every way a turn can end is gone through by a worker whose credentials are all canaries;
// none is found in what the system leaves, nor in what it tells while it runs. What one
// system left is looked through after every test; see newSystem.
func TestCredentialsAreKept(t *testing.T) {
	t.Parallel()
	s := newSystem(t, agenttest.Func(func(r *agenttest.Request) agenttest.Step {
		switch said := r.Prompt; {
		case strings.Contains(said, "be refused"):
			return agenttest.Fail(http.StatusUnauthorized, "authentication_error", "invalid key")
		case strings.Contains(said, "hang"):
			return agenttest.Hang()
		}
		return agenttest.Text("Done.")
	}).Repeat())
	at := distrusted(t)
	s.dispatcher()
	metrics := freeAddr(t)
	s.secretEnv = []string{"FORGE_TOKEN=" + canary + "-forge", "TOOLS_TOKEN=" + canary + "-tools"}
	host := strings.TrimPrefix(at, "https://")
	s.workerUnder(strings.Replace(fmt.Sprintf(ceiling, s.workspaces()), "scratch: true", fmt.Sprintf("scratch: true, git: [%q]", at), 1)+fmt.Sprintf(`
  forge: {env: {TOKEN: FORGE_TOKEN}, git_hosts: [%q]}
  tools:
    env: {ANTHROPIC_API_KEY: MODEL_KEY, ANTHROPIC_BASE_URL: MODEL_URL, TOOLS_TOKEN: TOOLS_TOKEN}
    agents: [claude]
    mcp_urls: [%q]
mcp: {urls: [%q]}
`, host, at, at), "w1", "--listen", metrics)

	say := func(prompt string) func(map[string]any) {
		return func(r map[string]any) { r["prompt"] = prompt }
	}
	s.finished(s.enqueue(say("be done")), job.Succeeded)
	s.finished(s.enqueue(func(r map[string]any) { // and does not trust the server
		r["account"] = "tools"
		r["profile"] = map[string]any{"name": "builder", "confine": true, "timeout": "2m", "mcp": map[string]any{"t": map[string]any{"type": "http", "url": at + "/mcp", "bearer_token_env": "TOOLS_TOKEN"}}}
		g := grantsOf(r)
		g["env"] = []string{"ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "TOOLS_TOKEN"}
		g["tools"] = []string{"*", "mcp__t"}
	}), job.Succeeded)
	cloning := s.enqueue(func(r map[string]any) {
		r["workspace"] = map[string]any{"git": map[string]any{"url": at + "/repo.git", "ref": "main", "credentials": []string{"forge"}}}
	})
	s.until(cloning, "the clone fails", func(v job.View) bool { return len(v.Attempts) > 0 && v.Attempts[0].Ending == job.EndUnready })
	s.call(http.MethodPost, "/v1/jobs/"+string(cloning)+"/cancel", nil, nil)
	s.finished(cloning, job.Cancel)
	hanging := s.enqueue(say("hang"))
	s.running(hanging)
	if status := s.call(http.MethodPost, "/v1/jobs/"+string(hanging)+"/cancel", nil, nil); status != http.StatusAccepted {
		t.Fatalf("cancel: %d", status)
	}
	s.finished(hanging, job.Cancel)
	s.enqueue(say("be refused"))
	s.eventually("the account is paused", func() bool {
		return s.count("SELECT count(*) FROM turnpike.pauses WHERE scope = 'account'") == 1
	})

	for _, url := range []string{"http://" + metrics + "/metrics", "http://" + metrics + "/readyz", "http://" + s.addr + "/metrics", "http://" + s.addr + "/v1/jobs", "http://" + s.addr + "/v1/pauses"} {
		res, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || len(text) == 0 {
			t.Errorf("%s: %d bytes, %v", url, len(text), err)
		}
		if bytes.Contains(text, []byte(canary)) {
			t.Errorf("%s tells a credential:\n%s", url, text)
		}
	}
	requests := s.script.Requests()
	if len(requests) == 0 || requests[0].Credential() != canary+"-model" {
		t.Error("the model was not shown its credential, so the test shows nothing")
	}
}
