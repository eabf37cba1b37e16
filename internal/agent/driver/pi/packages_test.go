package pi_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/agenttest"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/driver/drivertest"
	"turnpike/internal/agent/driver/pi"
	"turnpike/internal/agent/runner"
	"turnpike/internal/vcs"
)

// hail is a package with a tool of that name.
var hail = map[string]string{
	"package.json": `{"name":"pi-hail","version":"1.0.0","pi":{"extensions":["./extensions"]}}`,
	"extensions/hail.js": `export default function (pi) {
	pi.registerTool({
		name: "hail", label: "Hail", description: "Hails.", parameters: { type: "object", properties: {} },
		async execute() { return { content: [{ type: "text", text: "hail from the package" }], details: {} }; },
	});
}
`,
}

func directory(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// registry serves packages of npm's kind and says what it was asked for.
func registry(t *testing.T, name string, files map[string]string) (url string, asked func() []string) {
	t.Helper()
	var tarball bytes.Buffer
	zipped := gzip.NewWriter(&tarball)
	archive := tar.NewWriter(zipped)
	for file, content := range files {
		err := archive.WriteHeader(&tar.Header{Name: "package/" + file, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg})
		if err == nil {
			_, err = archive.Write([]byte(content))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(archive.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	sum := sha512.Sum512(tarball.Bytes())
	var (
		mu    sync.Mutex // guards paths
		paths []string
	)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		paths = append(paths, r.URL.Path)
		mu.Unlock()
		switch r.URL.Path {
		case "/" + name:
			data, err := json.Marshal(object{
				"name": name, "dist-tags": object{"latest": "1.0.0"},
				"versions": object{"1.0.0": object{
					"name": name, "version": "1.0.0",
					"dist": object{
						"tarball":   "http://" + r.Host + "/" + name + ".tgz",
						"integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
					},
				}},
			})
			if err != nil {
				t.Error(err)
			}
			_, _ = w.Write(data) // npm may have gone away
		case "/" + name + ".tgz":
			_, _ = w.Write(tarball.Bytes())
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(paths)
	}
}

// repository serves a git repository with those files.
func repository(t *testing.T, files map[string]string) (url string) {
	t.Helper()
	dir, served := directory(t, files), t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	git("init", "--quiet", "--initial-branch=main")
	git("add", ".")
	git("commit", "--quiet", "-m", "one")
	git("tag", "v1")
	git("clone", "--quiet", "--bare", dir, filepath.Join(served, "acme", "hail"))
	git("--git-dir="+filepath.Join(served, "acme", "hail"), "update-server-info")
	s := httptest.NewServer(http.FileServer(http.Dir(served)))
	t.Cleanup(s.Close)
	return s.URL + "/acme/hail"
}

func hails(t *testing.T) *agenttest.Script {
	t.Helper()
	return agenttest.NewProvider(t).Script("turn", agenttest.Call("hail", object{}), agenttest.Text("Done."))
}

// TestPackages runs the real CLI with packages of every kind.
func TestPackages(t *testing.T) {
	t.Parallel()
	npm, fetched := registry(t, "pi-hail", hail)
	elsewhere, strayed := registry(t, "pi-hail", nil)
	for name, c := range map[string]struct {
		source string
		vcs    bool
	}{
		"of a directory":              {source: directory(t, hail)},
		"of npm":                      {source: "npm:pi-hail@1.0.0"},
		"of npm, whichever is latest": {source: "npm:pi-hail"},
		"of a URL":                    {source: repository(t, hail), vcs: true},
		"of git at a tag":             {source: "git:" + repository(t, hail) + "@v1", vcs: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sc := hails(t)
			got := drivertest.Run(t, subject(t), sc, func(l *agent.Launch) {
				l.Request.Profile.PiPackages, l.Turn.VCS = []string{c.source}, c.vcs
				l.Turn.Env = append(l.Turn.Env, "npm_config_registry="+npm)
				// Where packages come from is not the workspace's to say.
				if err := os.WriteFile(filepath.Join(l.WorkDir, ".npmrc"), []byte("registry="+elsewhere+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			})
			if got.IsError || got.ResultText != "Done." || got.ToolCalls != 1 || len(got.Diagnostics) > 0 {
				t.Fatalf("%+v", got)
			}
			if asked := sc.Requests(); len(asked) != 2 || asked[1].Results[0].Text != "hail from the package" {
				t.Errorf("%d requests; the package's tool did not run", len(asked))
			}
		})
	}

	t.Run("that is not there", func(t *testing.T) {
		t.Parallel()
		sc := hails(t)
		got := drivertest.Run(t, subject(t), sc, func(l *agent.Launch) {
			l.Request.Profile.PiPackages = []string{"npm:pi-other@1.0.0"}
			l.Turn.Env = append(l.Turn.Env, "npm_config_registry="+npm)
		})
		if !got.Ended || got.ErrorSubtype != "package_missing" || got.Failure != agent.FailureOverloaded || len(sc.Requests()) > 0 ||
			!slices.ContainsFunc(got.Diagnostics, func(d string) bool { return strings.Contains(d, "npm:pi-other@1.0.0") }) {
			t.Errorf("%+v after %d requests", got, len(sc.Requests()))
		}
	})

	t.Run("are held to the tools of the turn", func(t *testing.T) {
		t.Parallel()
		dir := directory(t, hail)
		for _, tools := range [][]string{{}, {"read"}, {"hail"}, {"hail", "read"}} {
			sc := agenttest.NewProvider(t).Script("turn", agenttest.Text("Hello."))
			got := drivertest.Run(t, subject(t), sc, func(l *agent.Launch) {
				l.Request.Profile.PiPackages, l.Turn.Tools = []string{dir}, tools
			})
			var names []string
			for _, tool := range sc.Requests()[0].Tools {
				names = append(names, tool.Name)
			}
			slices.Sort(names)
			if got.IsError || !slices.Equal(names, tools) {
				t.Errorf("with %v the model is offered %v: %+v", tools, names, got)
			}
		}
	})

	t.Cleanup(func() { // after the parallel ones
		if all := strayed(); len(all) > 0 {
			t.Errorf("the workspace's registry was asked for %v", all)
		}
		if all := fetched(); !slices.Contains(all, "/pi-hail.tgz") || slices.Contains(all, "/npm") {
			t.Errorf("the registry was asked for %v", all)
		}
	})
}

// TestPackagesConfined: what holds a turn holds what fetches its packages, and they must be
// granted where they are on this machine's disk.
func TestPackagesConfined(t *testing.T) {
	t.Parallel()
	npm, fetched := registry(t, "pi-hail", hail)
	local := directory(t, hail)
	run := func(t *testing.T, packages []string, mounts ...agent.Mount) (*agent.Result, *agenttest.Script, error) {
		t.Helper()
		sc, dir := hails(t), t.TempDir()
		s := subject(t)
		r := &runner.Runner{
			PiBin: s.Bin, SessionsDir: filepath.Join(t.TempDir(), "sessions"),
			Drivers:  map[string]agent.Driver{agent.AgentPi: at(sc.URL())},
			Network:  agent.Network{Open: true},
			Confiner: confine.Platform(confine.Options{UnixSockets: true}),
			Environ:  func() []string { return []string{"ANTHROPIC_API_KEY=sk-test", "npm_config_registry=" + npm} },
		}
		res, err := r.Run(t.Context(), agent.Request{
			Name: "confined", Prompt: "Hail.", ValidOutcomes: []string{},
			Profile:   agent.Profile{Name: "builder", Agent: agent.AgentPi, Model: s.Model, Confine: true, PiPackages: packages},
			Workspace: vcs.Workspace{Dir: dir},
			Grants: &agent.Grants{
				Env: []string{"*"}, Tools: []string{agent.ToolsAll},
				Mounts: append([]agent.Mount{{Path: dir, Access: agent.ReadWrite}}, mounts...),
			},
		})
		return res, sc, err
	}
	for name, c := range map[string]struct {
		source string
		mounts []agent.Mount
	}{
		"of npm":         {"npm:pi-hail@1.0.0", nil},
		"of a directory": {local, []agent.Mount{{Path: local, Access: agent.ReadOnly}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res, sc, err := run(t, []string{c.source}, c.mounts...)
			if err != nil {
				t.Fatal(err)
			}
			if res.IsError || res.ResultText != "Done." {
				stderr, _ := os.ReadFile(filepath.Join(res.SessionDir, "stderr.log"))
				t.Fatalf("%+v\nstderr: %s", res, stderr)
			}
			if asked := sc.Requests(); len(asked) != 2 || asked[1].Results[0].Text != "hail from the package" {
				t.Errorf("%d requests; the package's tool did not run", len(asked))
			}
			if name == "of npm" && len(fetched()) == 0 {
				t.Error("the registry was not asked")
			}
		})
	}
	t.Run("of a directory that is not granted", func(t *testing.T) {
		t.Parallel()
		if res, _, err := run(t, []string{local}); !errors.Is(err, agent.ErrNotGranted) {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

func TestPackageSources(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for source, c := range map[string]struct {
		kind    error
		fetched object // what the CLI is to have put where
	}{
		"npm:lint":                                 {nil, object{"store": "npm", "path": "node_modules/lint"}},
		"npm:@acme/lint@^1.2.0":                    {nil, object{"store": "npm", "path": "node_modules/@acme/lint"}},
		"git:git.example.com/acme/lint@v1":         {nil, object{"store": "git-git.example.com", "path": "acme/lint"}},
		"git:git@git.example.com:acme/lint.git":    {nil, object{"store": "git-git.example.com", "path": "acme/lint"}},
		"https://git.example.com/acme/lint.git@v1": {nil, object{"store": "git-git.example.com", "path": "acme/lint"}},
		"ssh://git@git.example.com:2222/a/b/c":     {nil, object{"store": "git-git.example.com", "path": "a/b/c"}},
		link:                                       {nil, nil},
		filepath.Join(dir, "missing"):              {agent.ErrUnready, nil},
		dir + "/../x":                              {agent.ErrUnsupported, nil},
		"./lint":                                   {agent.ErrUnsupported, nil},
		"~/lint":                                   {agent.ErrUnsupported, nil},
		"lint":                                     {agent.ErrUnsupported, nil},
		"builtin:mcp":                              {agent.ErrUnsupported, nil},
		"npm:--registry=http://x":                  {agent.ErrUnsupported, nil},
		"npm:lint@file:/etc":                       {agent.ErrUnsupported, nil},
		"git:acme/lint":                            {agent.ErrUnsupported, nil},
		"https://user:word@git.example.com/a/b":    {agent.ErrUnsupported, nil},
		"--mode":                                   {agent.ErrUnsupported, nil},
	} {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			l := launch(t)
			l.Request.Profile.PiPackages, l.Turn.VCS = []string{source}, true
			cmd, err := pi.Driver{}.Command(l)
			if !errors.Is(err, c.kind) || c.kind == nil && err != nil {
				t.Fatalf("%v, want %v", err, c.kind)
			}
			if c.kind != nil {
				return
			}
			told := source
			if source == link {
				told = dir // what a turn is granted has no links
			}
			i := slices.Index(cmd.Args, told)
			if i < 1 || cmd.Args[i-1] != "-e" || slices.Contains(cmd.Env, "PI_OFFLINE=1") != (c.fetched == nil) {
				t.Errorf("%q, %q", cmd.Args, cmd.Env)
			}
			code, err := os.ReadFile(filepath.Join(l.Home, "turnpike.js"))
			if err != nil {
				t.Fatal(err)
			}
			_, list, _ := strings.Cut(string(code), "const fetched = ")
			list, _, _ = strings.Cut(list, ";\n")
			want := []object{}
			if c.fetched != nil {
				c.fetched["source"] = source
				want = append(want, c.fetched)
			}
			var got []object
			if err := json.Unmarshal([]byte(list), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("fetched (-want +got):\n%s", diff)
			}
		})
	}

	for name, change := range map[string]func(*agent.Launch){
		"git without version control": func(l *agent.Launch) { l.Request.Profile.PiPackages = []string{"https://git.example.com/a/b"} },
		"npm without a network": func(l *agent.Launch) {
			l.Request.Profile.PiPackages, l.Turn.Confinement = []string{"npm:lint"}, &agent.Confinement{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := launch(t)
			change(&l)
			_, err := pi.Driver{}.Command(l)
			if !errors.Is(err, agent.ErrNotGranted) && !errors.Is(err, agent.ErrUnsupported) {
				t.Error(fmt.Sprint(err))
			}
		})
	}
}
