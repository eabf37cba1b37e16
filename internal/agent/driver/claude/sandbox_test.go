package claude_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/agenttest"
	"turnpike/internal/agent/driver/claude"
	"turnpike/internal/agent/runner"
	"turnpike/internal/vcs"
)

// place is a workspace for a turn in Claude Code's own sandbox, and what is around it.
type place struct {
	t       *testing.T
	dir, ws string
	runner  *runner.Runner
	request agent.Request
}

func newPlace(t *testing.T, tries ...try) (*place, *agenttest.Script) {
	t.Helper()
	// Not of t.TempDir: the sandbox's own sockets lie deep beneath it, and a test's name
	// would make their paths too long.
	dir, err := os.MkdirTemp("", "own")
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	p := &place{t: t, dir: dir, ws: filepath.Join(dir, "ws")}
	for name, content := range map[string]string{
		"ws/ro/kept": "kept\n", "ws/.git/HEAD": "ref: refs/heads/main\n", "ws/.git/config": "[core]\n",
		"more/x": "x\n", "lib/x": "lib\n", "outside/secret": "s3cret\n",
	} {
		p.write(name, content)
	}
	if err := os.Symlink(p.path("outside"), p.path("ws/way-out")); err != nil {
		t.Fatal(err)
	}
	var steps []agenttest.Step
	for _, y := range tries {
		steps = append(steps, p.placed(y).step())
	}
	script := agenttest.NewProvider(t).Script("own", append(steps, agenttest.Text("Done."))...)
	p.runner = &runner.Runner{
		Drivers:     map[string]agent.Driver{agent.AgentClaude: claude.Driver{MaxRetries: 1}},
		ClaudeBin:   agenttest.ClaudeBin(t),
		SessionsDir: p.path("sessions"),
		AddDirs:     []string{p.path("more")},
		Network:     agent.Network{Open: true},
		Environ: func() []string {
			return []string{"PATH=" + os.Getenv("PATH"), "ANTHROPIC_BASE_URL=" + script.URL(), "ANTHROPIC_API_KEY=sk-test-secret"}
		},
	}
	p.request = agent.Request{
		Name: "own", Prompt: "Go.", ValidOutcomes: []string{},
		Workspace: vcs.Workspace{Dir: p.ws},
		Profile:   agent.Profile{Name: "own", Model: "sonnet", Sandbox: agent.SandboxClaude},
		Grants: &agent.Grants{
			Env: []string{"PATH", "ANTHROPIC_*"}, Tools: []string{agent.ToolsAll},
			Mounts: []agent.Mount{
				{Path: p.ws, Access: agent.ReadWrite}, {Path: p.path("ws/ro"), Access: agent.ReadOnly},
				{Path: p.path("more"), Access: agent.ReadWrite}, {Path: p.path("lib"), Access: agent.ReadOnly},
			},
		},
	}
	return p, script
}

func (p *place) path(name string) string { return filepath.Join(p.dir, name) }

func (p *place) write(name, content string) {
	p.t.Helper()
	if err := os.MkdirAll(filepath.Dir(p.path(name)), 0o700); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(p.path(name), []byte(content), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// there are the files beneath the workspace.
func (p *place) there() []string {
	p.t.Helper()
	var found []string
	err := filepath.WalkDir(p.ws, func(path string, _ os.DirEntry, err error) error {
		if rel, _ := filepath.Rel(p.ws, path); rel != "." {
			found = append(found, rel)
		}
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	slices.Sort(found)
	return found
}

// try is one thing the agent does, and what it must be told of it.
type try struct {
	do   string // a command of the shell, unless tool is set
	tool string
	args map[string]any
	want string // in what the agent is told
	not  string // and what must not be in it
}

func (y try) step() agenttest.Step {
	if y.tool != "" {
		return agenttest.Call(y.tool, y.args)
	}
	return agenttest.Call("Bash", map[string]any{"command": y.do, "description": "Try"})
}

func (p *place) run(script *agenttest.Script, tries []try) {
	p.t.Helper()
	res, err := p.runner.Run(p.t.Context(), p.request)
	if err != nil {
		p.t.Fatal(err)
	}
	if res.IsError {
		p.t.Fatalf("got %+v", res)
	}
	requests := script.Requests()
	told := requests[len(requests)-1].Results
	if len(told) != len(tries) {
		p.t.Fatalf("the agent did %d things of %d", len(told), len(tries))
	}
	for i, y := range tries {
		got := told[i].Text
		if !strings.Contains(got, y.want) || y.not != "" && strings.Contains(got, y.not) {
			p.t.Errorf("%s%v %s\nwant %q in it, and not %q:\n%s", y.tool, y.args, y.do, y.want, y.not, got)
		}
	}
}

// TestOwnSandbox runs the real CLI with its own sandbox on, as the boundary and the
// driver set it up, and has the model try to get out.
func TestOwnSandbox(t *testing.T) {
	t.Parallel()
	t.Run("holds_a_turn", testOwnSandboxHolds)
	t.Run("keeps_a_read_only_workspace", func(t *testing.T) {
		t.Parallel()
		tries := []try{
			{tool: "Read", args: map[string]any{"file_path": "@/ws/.git/HEAD"}, want: "refs/heads/main"},
			{tool: "Write", args: map[string]any{"file_path": "@/ws/new", "content": "x"}, want: "denied"},
			{tool: "Write", args: map[string]any{"file_path": "@/more/new", "content": "x"}, want: "created"},
		}
		p, script := newPlace(t, tries...)
		p.request.Grants.Tools = []string{"Read", "Write"}
		p.request.Grants.Mounts = []agent.Mount{{Path: p.ws, Access: agent.ReadOnly}, {Path: p.path("more"), Access: agent.ReadWrite}}
		p.request.Profile.SandboxDomains = []string{}
		before := p.there()
		p.run(script, tries)
		if diff := cmp.Diff(before, p.there()); diff != "" {
			t.Errorf("the workspace changed (-before +after):\n%s", diff)
		}
	})
	t.Run("runs_no_command_without_it", func(t *testing.T) {
		t.Parallel()
		tries := []try{{do: "touch @/ws/ran; echo ran", want: "", not: "ran"}}
		p, script := newPlace(t, tries...)
		p.write("bin/bwrap", "#!/bin/sh\nexit 1\n")
		if err := os.Chmod(p.path("bin/bwrap"), 0o700); err != nil {
			t.Fatal(err)
		}
		environ := p.runner.Environ
		p.runner.Environ = func() []string {
			return append([]string{"PATH=" + p.path("bin") + ":" + os.Getenv("PATH")}, environ()[1:]...)
		}
		p.request.Profile.SandboxDomains = []string{}
		p.run(script, tries)
		if _, err := os.Lstat(p.path("ws/ran")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the command ran: %v", err)
		}
	})
	t.Run("lets_version_control_write", func(t *testing.T) {
		t.Parallel()
		tries := []try{{do: "echo x > .git/index && rm .git/index && git --version", want: "git version"}}
		p, script := newPlace(t, tries...)
		p.request.Profile.VCSAccess, p.request.Grants.VCS = true, true
		p.request.Profile.SandboxDomains = []string{}
		p.run(script, tries)
	})
}

// placed is y with the place's own directory for each "@/".
func (p *place) placed(y try) try {
	args := map[string]any{}
	for k, v := range y.args {
		if text, ok := v.(string); ok {
			v = strings.ReplaceAll(text, "@/", p.dir+"/")
		}
		args[k] = v
	}
	y.do, y.args = strings.ReplaceAll(y.do, "@/", p.dir+"/"), args
	return y
}

func testOwnSandboxHolds(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte("reached"))
	}))
	t.Cleanup(server.Close)
	tool := func(name, path string) try {
		args := map[string]any{"file_path": path}
		if name == "Write" {
			args["content"] = "x\n"
		}
		return try{tool: name, args: args}
	}
	denied := func(y try) try { y.want = "denied"; return y }
	works := func(y try, want string) try { y.want = want; return y }
	tries := []try{
		// What the turn was granted works.
		{do: "mkdir -p sub && for i in 1 2; do echo $i >> sub/made; done; cat sub/made ro/kept; (cd sub && pwd)", want: "1\n2\nkept"},
		{do: "cat <<E > here\nhere\nE\npython3 -c 'print(6*7)'; cat here; echo x > \"$TMPDIR/t\" && echo tmp", want: "42\nhere\ntmp"},
		works(tool("Write", "@/ws/written"), "created"),
		works(tool("Write", "@/more/written"), "created"),
		works(tool("Read", "@/lib/x"), "lib"),
		// Files that were not.
		{do: "cat way-out/secret ../outside/secret; ls ../outside", want: "No such file", not: "s3cret"},
		{do: "echo x > way-out/new || echo shut; touch ro/new ../lib/new || echo kept; cat ../lib/x", want: "kept\nlib"},
		{do: "chmod 777 ro/kept || echo mode; mv ro gone || echo stays", want: "mode"},
		denied(tool("Read", "@/outside/secret")),
		denied(tool("Read", "@/ws/way-out/secret")),
		denied(tool("Read", "/etc/shadow")),
		denied(tool("Write", "@/outside/new")),
		denied(tool("Write", "@/ws/way-out/new")),
		denied(tool("Write", "@/ws/../outside/new")),
		denied(tool("Write", "@/ws/ro/new")),
		denied(tool("Write", "@/lib/new")),
		denied(tool("Write", "@/ws/.git/hooks/post-commit")),
		// The worker's own, and this turn's configuration.
		{do: "ls @/sessions; cat $CLAUDE_CONFIG_DIR/turnpike-settings.json; cat /proc/1/environ | tr '\\0' '\\n' | grep -c SECRET", not: "allowUnsandboxedCommands", want: "No such file"},
		// To switch it off.
		{tool: "Bash", args: map[string]any{"command": "touch @/outside/off; echo $SANDBOX_RUNTIME; cat @/outside/secret", "description": "Try", "dangerouslyDisableSandbox": true}, want: "1", not: "s3cret"},
		{do: "unshare -m true; mount -t tmpfs none /mnt; unshare -Ur true; echo $?", want: "1", not: "\n0"},
		// Version control.
		{do: "git --version; /usr/bin/git --version; /usr/lib/git-core/git --version; echo ended $?", want: "ended 12", not: "git version"},
		{do: "echo x > .git/config || echo shut; touch .git/new || echo shut; mv .git other || echo stays", want: "stays"},
		// The network.
		{do: "curl -s -m 20 --noproxy '*' " + server.URL + " || echo alone", want: "alone", not: "reached"},
		{do: "curl -s -m 20 " + strings.Replace(server.URL, "127.0.0.1", "localhost", 1) + " --noproxy none || echo refused", not: "reached", want: "refused"},
		{do: "curl -s -m 20 -p -x \"$HTTPS_PROXY\" " + server.URL + " || echo refused", not: "reached", want: "refused"},
		{do: "curl -s -m 20 https://example.org || echo refused", want: "refused"},
		{do: "python3 -c 'import socket; socket.socket(socket.AF_UNIX)'", want: "not permitted"},
		{tool: "WebFetch", args: map[string]any{"url": server.URL, "prompt": "What does it say?"}, want: "denied", not: "reached"},
		// Tools that would run things outside.
		{tool: "Monitor", args: map[string]any{"command": "touch @/outside/monitor", "description": "x"}, want: "No such tool"},
		{tool: "EnterWorktree", args: map[string]any{"name": "x"}, want: "No such tool"},
	}
	p, script := newPlace(t, tries...)
	p.request.Profile.SandboxDomains = []string{"allowed.example.com"}
	before := p.there()
	p.run(script, tries)
	if n := asked.Load(); n != 0 {
		t.Errorf("the server was asked %d times", n)
	}
	for _, name := range []string{"outside/new", "outside/off", "outside/monitor", "lib/new"} {
		if _, err := os.Lstat(p.path(name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was written: %v", name, err)
		}
	}
	want := append([]string{"here", "sub", "sub/made", "written"}, before...)
	slices.Sort(want)
	if diff := cmp.Diff(want, p.there()); diff != "" {
		t.Errorf("what is left in the workspace (-want +got):\n%s", diff)
	}
}
