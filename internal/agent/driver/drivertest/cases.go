package drivertest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/agenttest"
	"turnpike/internal/agent/mcphost"
)

func placements(t *testing.T, s Subject) {
	d := s.Driver.Descriptor()
	if !slices.Contains(agent.Agents(), d.Name) || len(d.Credentials) == 0 || len(d.ProviderEnv) == 0 {
		t.Errorf("descriptor %+v", d)
	}
	if d.Restricted == nil {
		t.Error("says nothing about read-only turns")
	}
	for _, p := range agent.Placements() {
		support, declared := d.WritableTools[p]
		if !declared || !support.Supported && support.Remedy == "" {
			t.Errorf("placement %s: declared %t, %+v", p, declared, support)
		}
	}
}

func runtimeFiles(t *testing.T, s Subject) {
	mounts, err := s.Driver.Runtime(s.Bin)
	if err != nil {
		t.Fatal(err)
	}
	bin, err := filepath.EvalSymlinks(s.Bin)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(mounts, func(m agent.Mount) bool { return strings.HasPrefix(bin, m.Path+"/") }) {
		t.Errorf("%s is in none of %v", bin, mounts)
	}
	for _, m := range mounts {
		if m.Access != agent.ReadOnly || !filepath.IsAbs(m.Path) {
			t.Errorf("mount %+v", m)
		}
	}
	if _, err := s.Driver.Runtime(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a missing executable has a runtime")
	}
}

func text(t *testing.T, s Subject) {
	sc := script(t, agenttest.Text("Hello there."))
	b := newBench(t, s, sc)
	r := b.run(t)
	r.wantSuccess(t, "Hello there.")
	if r.Conversation.Conversation == "" || r.AgentVersion == "" || r.Turns != 1 || r.ToolCalls != 0 {
		t.Errorf("progress %+v", r.Progress)
	}
	if len(r.told) == 0 || r.told[0].Conversation == "" {
		t.Errorf("told %+v, want the conversation's id first", r.told)
	}
	if len(r.Diagnostics) > 0 {
		t.Errorf("diagnostics %q", r.Diagnostics)
	}
	want := s.Usage
	if want == (agenttest.Usage{}) {
		want = agenttest.DefaultUsage
	}
	if len(r.Models) != 1 {
		t.Errorf("usage %+v, want that of one model", r.Models)
	}
	for _, u := range r.Models {
		if u.InputTokens != int64(want.Input) || u.OutputTokens != int64(want.Output) ||
			u.CacheReadTokens != int64(want.CacheRead) || u.CacheWriteTokens != int64(want.CacheWrite) {
			t.Errorf("usage %+v, want %+v", u, want)
		}
		if s.Prices != (u.CostUSD != nil) {
			t.Errorf("cost by model %v, known is %t", u.CostUSD, s.Prices)
		}
	}
	if s.Prices != r.CostKnown || s.Prices != (r.CostUSD > 0) {
		t.Errorf("cost %v, known %t", r.CostUSD, r.CostKnown)
	}
	if asked := sc.Requests(); len(asked) != 1 {
		t.Errorf("%d requests, want one", len(asked))
	} else if q := asked[0]; strings.TrimSpace(q.Prompt) != "Say hello." || q.Credential() != secret ||
		q.WorkDir != "" && q.WorkDir != b.launch.WorkDir {
		t.Errorf("prompt %q, credential %q, directory %q", q.Prompt, q.Credential(), q.WorkDir)
	}
}

func credentials(t *testing.T, s Subject) {
	declared := s.Driver.Descriptor().Credentials
	tried := s.Credentials
	if tried == nil {
		tried = declared
	}
	for _, variable := range tried {
		if !slices.Contains(declared, variable) {
			t.Errorf("%s is not among %v", variable, declared)
		}
		sc := script(t, agenttest.Text("Hello."))
		newBenchWith(t, s, sc, variable).run(t).wantSuccess(t, "Hello.")
		if got := sc.Requests()[0].Credential(); got != secret {
			t.Errorf("%s: the provider was sent %q", variable, got)
		}
	}
}

func tools(t *testing.T, s Subject) {
	sc := script(t, agenttest.Write("out.txt", "written\n"), agenttest.Shell("cat out.txt"), agenttest.Text("Done."))
	b := newBench(t, s, sc)
	r := b.run(t)
	r.wantSuccess(t, "Done.")
	if r.ToolCalls != 2 || r.Turns != 3 {
		t.Errorf("%d tool calls in %d turns, want 2 in 3", r.ToolCalls, r.Turns)
	}
	if got, err := os.ReadFile(filepath.Join(b.launch.WorkDir, "out.txt")); string(got) != "written\n" {
		t.Errorf("out.txt: %q, %v", got, err)
	}
	// It is known before the end that a turn may have changed something.
	if !slices.ContainsFunc(r.told, func(p agent.Progress) bool { return p.ToolCalls == 1 }) {
		t.Errorf("told %+v, want the first tool call as it happens", r.told)
	}
	if asked := sc.Requests(); len(asked) != 3 || !strings.Contains(asked[2].Results[1].Text, "written") {
		t.Errorf("%d requests; the shell's result is missing", len(asked))
	}
}

func outcome(t *testing.T, s Subject) {
	// The report tool is no tool of the agent's own: it is there without any, and
	// however many there are.
	for name, own := range map[string][]string{"no tools": {}, "all tools": nil} {
		host, err := mcphost.Start(t.Context(), t.TempDir(), mcphost.Report{Valid: []string{"shipped", "blocked"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := host.Close(); err != nil {
				t.Error(err)
			}
		})
		b := newBench(t, s, script(t,
			agenttest.ReportStatus("done", "no such status"), agenttest.Report("all green"), agenttest.Text("Done.")))
		b.launch.MCP = map[string]agent.MCPEntry{mcphost.ServerName: host.Entry()}
		b.launch.Turn.Tools = own
		r := b.run(t)
		r.wantSuccess(t, "Done.")
		if got, ok := host.Outcome(); !ok || got.Status != "shipped" || got.Note != "all green" {
			t.Errorf("%s: outcome %+v, %t", name, got, ok)
		}
		if !slices.ContainsFunc(r.Diagnostics, func(d string) bool { return strings.Contains(d, "shipped") && strings.Contains(d, "blocked") }) {
			t.Errorf("%s: diagnostics %q, want the refused report", name, r.Diagnostics)
		}
	}
}

func systemPrompt(t *testing.T, s Subject) {
	sc := script(t, agenttest.Text("Hello."))
	b := newBench(t, s, sc)
	b.launch.Request.SystemPrompt = "--Speak like a pirate.\n" + strings.Repeat("Really. ", 20_000)
	b.run(t).wantSuccess(t, "Hello.")
	if !strings.Contains(sc.Requests()[0].System, strings.TrimSpace(b.launch.Request.SystemPrompt)) {
		t.Error("the system prompt did not reach the provider whole")
	}
}

func prompts(t *testing.T, s Subject) {
	file := filepath.Join(t.TempDir(), "file.txt")
	if err := os.WriteFile(file, []byte("the-content-of-a-file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, prompt := range append([]string{"--help", "-p", fmt.Sprintf("Read "+s.Mention, file)}, s.Commands...) {
		sc := script(t, agenttest.Text("Understood."))
		b := newBench(t, s, sc)
		b.launch.Request.Prompt = prompt
		b.run(t).wantSuccess(t, "Understood.")
		q := sc.Requests()[0]
		if strings.TrimSpace(q.Prompt) != prompt {
			t.Errorf("prompt %q reached the provider as %q", prompt, q.Prompt)
		}
		if strings.Contains(string(q.Body), "the-content-of-a-file") {
			t.Errorf("prompt %q had a file read", prompt)
		}
	}
}

func longPrompt(t *testing.T, s Subject) {
	sc := script(t, agenttest.Text("A lot."))
	b := newBench(t, s, sc)
	b.launch.Request.Prompt = strings.Repeat("word ", 100_000) + "end"
	b.run(t).wantSuccess(t, "A lot.")
	if got := strings.TrimSpace(sc.Requests()[0].Prompt); got != b.launch.Request.Prompt {
		t.Errorf("a prompt of %d bytes reached the provider as %d", len(b.launch.Request.Prompt), len(got))
	}
}

func effort(t *testing.T, s Subject) {
	sc := script(t, agenttest.Text("Hello."))
	b := newBench(t, s, sc)
	b.launch.Request.Profile.Effort = s.Effort
	b.run(t).wantSuccess(t, "Hello.")
	if got := s.SeesEffort(sc.Requests()[0].Body); got != s.Effort {
		t.Errorf("effort %q reached the provider as %q", s.Effort, got)
	}
}

func toolList(t *testing.T, s Subject) {
	offered := func(tools []string) []string {
		sc := script(t, agenttest.Text("Hello."))
		b := newBench(t, s, sc)
		b.launch.Turn.Tools = tools
		b.run(t).wantSuccess(t, "Hello.")
		var names []string
		for _, tool := range sc.Requests()[0].Tools {
			names = append(names, tool.Name)
		}
		return names
	}
	if got := offered([]string{}); len(got) != s.NoTools {
		t.Errorf("without tools the model is offered %v", got)
	}
	if !s.Driver.Descriptor().WritableTools[agent.Placement{Sandbox: agent.SandboxNone}].Supported {
		b := newBench(t, s, script(t, agenttest.Text("Hello.")))
		b.launch.Turn.Tools = []string{"some-tool"}
		if _, err := s.Driver.Command(b.launch); !errors.Is(err, agent.ErrUnsupported) {
			t.Errorf("a list of tools: %v, want it refused", err)
		}
	} else if got := offered([]string{s.ReadTool}); len(got) != s.NoTools+1 || !slices.Contains(got, s.ReadTool) {
		t.Errorf("with %s the model is offered %v", s.ReadTool, got)
	}
	if got := offered(nil); len(got) <= s.NoTools+1 {
		t.Errorf("with all tools the model is offered %v", got)
	}
}

func maxTurns(t *testing.T, s Subject) {
	sc := script(t, agenttest.Shell("true").Repeat())
	b := newBench(t, s, sc)
	b.launch.Request.Profile.MaxTurns = 2
	if s.MaxTurns == "" {
		if _, err := s.Driver.Command(b.launch); err == nil {
			t.Error("takes a limit of turns that the CLI does not have")
		}
		return
	}
	r := b.run(t)
	r.wantFailure(t, "")
	beyond := len(sc.Requests()) - 2
	if r.ErrorSubtype != s.MaxTurns || r.ToolCalls != 2 || beyond < 0 || beyond > s.Overrun || s.Prices && !r.CostKnown {
		t.Errorf("%q after %d tool calls and %d requests, cost known %t", r.ErrorSubtype, r.ToolCalls, len(sc.Requests()), r.CostKnown)
	}
}

// title looks for the conversation's name where the CLI keeps what it knows.
func title(t *testing.T, s Subject) {
	sc := script(t, agenttest.Text("Hello."))
	b := newBench(t, s, sc)
	b.launch.Title = "acme: a turn's title"
	b.run(t).wantSuccess(t, "Hello.")
	kept := false
	err := fs.WalkDir(os.DirFS(b.launch.Home), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(b.launch.Home, name))
		kept = kept || bytes.Contains(content, []byte(b.launch.Title))
		return err
	})
	if err != nil || !kept {
		t.Errorf("the title is nowhere in the CLI's home, %v", err)
	}
	if asked := sc.Requests(); len(asked) != 1 || strings.Contains(string(asked[0].Body), b.launch.Title) {
		t.Errorf("%d requests; the title is for people, not for the model", len(asked))
	}
}

func resume(t *testing.T, s Subject) {
	sc := script(t, agenttest.Text("The word is xyzzy."))
	b := newBench(t, s, sc)
	b.launch.Request.SystemPrompt = "Speak like a pirate."
	first := b.run(t)
	first.wantSuccess(t, "The word is xyzzy.")

	b.launch.Request.ResumeID = first.Conversation.Conversation
	b.launch.Request.SystemPrompt = "Speak like a poet."
	b.launch.Request.Prompt = "Which word was it?"
	b.moveHome(t)
	second := b.run(t)
	second.wantSuccess(t, "The word is xyzzy.")
	if second.Conversation.Conversation != first.Conversation.Conversation {
		t.Errorf("conversation %s continues as %s", first.Conversation.Conversation, second.Conversation.Conversation)
	}
	if second.CostUSD != first.CostUSD || second.CostKnown != first.CostKnown || second.Turns != first.Turns {
		t.Errorf("second run: %+v, first run: %+v; want the same again, not the sum", second.Progress, first.Progress)
	}
	for model, u := range second.Models {
		if u.OutputTokens != first.Models[model].OutputTokens {
			t.Errorf("usage of %s is %+v, was %+v", model, u, first.Models[model])
		}
	}
	q := sc.Requests()[1]
	if !strings.Contains(string(q.Body), "xyzzy") || strings.TrimSpace(q.Prompt) != "Which word was it?" {
		t.Error("the conversation does not go on")
	}
	earlier := strings.LastIndex(q.System, "like a pirate")
	if strings.LastIndex(q.System, "like a poet") <= earlier || earlier >= 0 && !s.KeepsPrompts {
		t.Error("the second run does not have its own system prompt")
	}
}

// moveHome gives the CLI another, fresh home with nothing but the conversation's files:
// what a later turn finds on another worker.
func (b *bench) moveHome(t *testing.T) {
	t.Helper()
	keeper, ok := b.s.Driver.(agent.Conversations)
	if !ok {
		return // it goes on in one home only, and turns that are to go on are refused
	}
	from, to := os.DirFS(b.launch.Home), t.TempDir()
	moved := 0
	err := fs.WalkDir(from, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || !keeper.ConversationFile(b.launch.Request.ResumeID, name) {
			return err
		}
		moved++
		content, err := fs.ReadFile(from, name)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(to, filepath.Dir(name)), 0o700); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), content, 0o600)
	})
	if err != nil || moved == 0 {
		t.Fatalf("the conversation has %d files, %v", moved, err)
	}
	b.launch.Home, b.launch.HomeInside = to, to
}

func resumeUnknown(t *testing.T, s Subject) {
	sc := script(t, agenttest.Text("Hello."))
	b := newBench(t, s, sc)
	// A conversation that is real, and another worker's.
	other := newBench(t, s, sc)
	known := other.run(t)
	b.launch.Request.ResumeID = known.Conversation.Conversation
	r := b.run(t)
	if s.StartsAnew {
		r.wantSuccess(t, "Hello.")
		if id := known.Conversation.Conversation; r.Conversation.Conversation != id ||
			!slices.ContainsFunc(r.Diagnostics, func(d string) bool { return strings.Contains(d, id) }) {
			t.Errorf("conversation %q, diagnostics %q; want %s begun anew, and that said", r.Conversation.Conversation, r.Diagnostics, id)
		}
		return
	}
	r.wantFailure(t, agent.FailureResume)
	if r.Conversation.Conversation != "" || r.CostUSD != 0 || len(sc.Requests()) != 1 {
		t.Errorf("progress %+v after %d requests, want nothing to have happened", r.Progress, len(sc.Requests())-1)
	}
}

// failure runs a script whose every answer is that one.
func failure(t *testing.T, s Subject, answer agenttest.Step) run {
	t.Helper()
	return failureWith(t, s, answer, s.Driver.Descriptor().Credentials[0])
}

// failureWith is failure with the credential in a variable of choice.
func failureWith(t *testing.T, s Subject, answer agenttest.Step, variable string) run {
	t.Helper()
	sc := script(t, answer)
	r := newBenchWith(t, s, sc, variable).run(t)
	if n := len(sc.Requests()); n > s.MostRequests {
		t.Errorf("%d requests; at most %d", n, s.MostRequests)
	}
	if r.ToolCalls != 0 || r.CostUSD != 0 {
		t.Errorf("progress %+v of a turn that never came to anything", r.Progress)
	}
	return r
}

func credential(t *testing.T, s Subject) {
	failure(t, s, agenttest.Fail(401, "authentication_error", "invalid x-api-key")).wantFailure(t, agent.FailureCredential)
	failure(t, s, agenttest.Fail(403, "permission_error", "This key may not use this model")).wantFailure(t, agent.FailureCredential)
}

func limited(t *testing.T, s Subject) {
	tooMany := agenttest.Fail(http.StatusTooManyRequests, "rate_limit_error", "This request would exceed your rate limit")
	far := agenttest.RetryAfter(time.Hour)
	failure(t, s, tooMany.WithHeader(far)).wantFailure(t, agent.FailureLimited)
	answer := s.LimitAnswer
	if answer == nil {
		if s.Limit == nil {
			return
		}
		answer = func(reset time.Time) agenttest.Step { return tooMany.WithHeader(far).WithHeader(s.Limit(reset)) }
	}
	reset := time.Now().Add(time.Hour).Truncate(time.Second)
	variable := cmp.Or(s.LimitCredential, s.Driver.Descriptor().Credentials[0])
	r := failureWith(t, s, answer(reset), variable)
	r.wantFailure(t, agent.FailureLimited)
	if !r.RateLimit.Blocking() || !r.RateLimit.ResetsAt.Equal(reset) {
		t.Errorf("rate limit %+v, want it to block until %s", r.RateLimit, reset)
	}
}

func throttled(t *testing.T, s Subject) {
	failure(t, s, agenttest.Fail(http.StatusTooManyRequests, "rate_limit_error", "Slow down").
		WithHeader(agenttest.RetryAfter(time.Second))).wantFailure(t, agent.FailureOverloaded)
}

func failing(t *testing.T, s Subject) {
	failure(t, s, agenttest.Fail(500, "api_error", "Internal server error")).wantFailure(t, agent.FailureOverloaded)
	failure(t, s, agenttest.Fail(529, "overloaded_error", "Overloaded")).wantFailure(t, agent.FailureOverloaded)
}

func passing(t *testing.T, s Subject) {
	sc := script(t, agenttest.Fail(529, "overloaded_error", "Overloaded").Once(), agenttest.Text("At last."))
	newBench(t, s, sc).run(t).wantSuccess(t, "At last.")
}

func broken(t *testing.T, s Subject) {
	answer := agenttest.Text("one two three four")
	for name, step := range map[string]agenttest.Step{
		"cut":   answer.Cut(),
		"error": answer.StreamError("overloaded_error", "Overloaded"),
		"json":  answer.BadJSON(),
	} {
		r := newBench(t, s, script(t, step)).run(t)
		if r.IsError && r.Failure != agent.FailureOverloaded {
			t.Errorf("%s: error %q %q, text %q", name, r.ErrorSubtype, r.Failure, r.ResultText)
		}
		if !r.IsError && r.ResultText != "one two three four" {
			t.Errorf("%s: a success with half the text: %q", name, r.ResultText)
		}
	}
	failure(t, s, agenttest.HTML()).wantFailure(t, agent.FailureOverloaded)
}

func silent(t *testing.T, s Subject) {
	for name, step := range map[string]agenttest.Step{"from the start": agenttest.Hang(), "half way": agenttest.HangMid("one two three")} {
		sc := script(t, step)
		b := newBench(t, s, sc)
		ctx, stop := context.WithCancel(t.Context())
		wait := b.start(ctx, t)
		waiting, giveUp := context.WithTimeout(t.Context(), patience)
		asked, err := sc.Wait(waiting, 1)
		giveUp()
		stop()
		r := wait()
		if err != nil {
			t.Fatalf("%s: %v\nstderr: %s", name, err, r.stderr)
		}
		<-asked.Done() // the CLI is gone, so its connection is too
		if r.Ended || !r.IsError || r.CostKnown {
			t.Errorf("%s: %+v, want a turn without an end", name, r.Conversation)
		}
	}
}

func deadServer(t *testing.T, s Subject) {
	b := newBench(t, s, script(t, agenttest.Text("Hello.")))
	b.launch.MCP = map[string]agent.MCPEntry{
		"dead": {Command: filepath.Join(t.TempDir(), "no-such-server")},
		"gone": {URL: "http://127.0.0.1:9/mcp", BearerTokenEnv: "GONE_TOKEN"},
	}
	b.launch.Turn.Env = append(b.launch.Turn.Env, "GONE_TOKEN=a-secret-value")
	r := b.run(t)
	r.wantSuccess(t, "Hello.")
	for name := range b.launch.MCP {
		if !slices.ContainsFunc(r.Diagnostics, func(d string) bool { return strings.Contains(d, name) }) {
			t.Errorf("diagnostics %q say nothing of %s", r.Diagnostics, name)
		}
	}
	// The agent can read its configuration; a secret in it would be told to the model.
	err := filepath.WalkDir(b.launch.Home, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), "a-secret-value") {
			t.Errorf("%s holds the bearer token", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// quiet has whatever else the CLI would ask for, of its vendor's or of a plugin's server, go
// through a proxy that writes it down.
func quiet(t *testing.T, s Subject) {
	var (
		mu    sync.Mutex // guards asked
		asked []string
	)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.Method+" "+r.Host)
		w.WriteHeader(http.StatusBadGateway)
	}))
	t.Cleanup(proxy.Close)
	b := newBench(t, s, script(t, agenttest.Shell("true"), agenttest.Text("Hello.")))
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		b.launch.Turn.Env = append(b.launch.Turn.Env, name+"="+proxy.URL, strings.ToLower(name)+"="+proxy.URL)
	}
	b.launch.Turn.Env = append(b.launch.Turn.Env, "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	b.run(t).wantSuccess(t, "Hello.")
	mu.Lock()
	defer mu.Unlock()
	if len(asked) > 0 {
		t.Errorf("the CLI also asked for %q", asked)
	}
}

func instructions(t *testing.T, s Subject) {
	if s.Instructions == "" {
		return
	}
	for _, read := range []bool{true, false} {
		sc := script(t, agenttest.Text("Hello."))
		b := newBench(t, s, sc)
		if err := os.WriteFile(filepath.Join(b.launch.WorkDir, s.Instructions), []byte("Prefer tabs-over-spaces.\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if !read {
			b.launch.Turn.Tools = []string{}
		}
		b.run(t).wantSuccess(t, "Hello.")
		if got := strings.Contains(string(sc.Requests()[0].Body), "tabs-over-spaces"); got != read {
			t.Errorf("a turn that may read files: %t; %s reached the model: %t", read, s.Instructions, got)
		}
	}
}

func hostile(t *testing.T, s Subject) {
	p := agenttest.NewProvider(t)
	steps := []agenttest.Step{agenttest.Shell("echo hello"), agenttest.Text("Done.")}
	right, wrong := p.Script("right", steps...), p.Script("wrong", steps...)
	mark := filepath.Join(t.TempDir(), "mark")
	b := newBench(t, s, right)
	for name, content := range s.Hostile(wrong.URL(), "touch "+mark) {
		path := filepath.Join(b.launch.WorkDir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.run(t).wantSuccess(t, "Done.")
	untouched(t, right, wrong, mark)
}

func takeover(t *testing.T, s Subject) {
	p := agenttest.NewProvider(t)
	wrong := p.Script("wrong", agenttest.Text("Wrong."))
	mark := filepath.Join(t.TempDir(), "mark")
	name, content := s.Takeover(wrong.URL(), "touch "+mark)
	// The home is not known before there is a bench, nor the bench before a script.
	var home string
	right := p.Script("right",
		agenttest.Func(func(*agenttest.Request) agenttest.Step { return agenttest.Write(filepath.Join(home, name), content) }),
		// Long enough for a CLI that watches its settings to have read them.
		agenttest.Shell("sleep 2"), agenttest.Shell("echo hello"), agenttest.Text("Done."))
	b := newBench(t, s, right)
	home = b.launch.Home
	b.run(t).wantSuccess(t, "Done.")
	if got, err := os.ReadFile(filepath.Join(home, name)); string(got) != content {
		t.Errorf("the settings were not written: %q, %v", got, err)
	}
	untouched(t, right, wrong, mark)
}

func untouched(t *testing.T, right, wrong *agenttest.Script, mark string) {
	t.Helper()
	if n := len(wrong.Requests()); n > 0 {
		t.Errorf("%d requests went elsewhere", n)
	}
	if len(right.Requests()) == 0 {
		t.Error("the provider was never asked")
	}
	if _, err := os.Lstat(mark); err == nil {
		t.Error("a command of the settings was run")
	}
}
