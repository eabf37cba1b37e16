package mcphost_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/mcphost"
	"turnpike/internal/agent/procs"
)

// standIn plays a server of the worker's owner. Its arguments are what it does, what
// ListenArgs adds and the address.
func standIn(args []string) {
	what, address := args[0], args[len(args)-1]
	if what == "stubborn" {
		signal.Ignore(syscall.SIGTERM)
	}
	if what == "silent" {
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		<-c
		return
	}
	if what == "ends" {
		os.Exit(3)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		panic(err)
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "owner", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "environment"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.Join(append(os.Environ(), os.Args[1:]...), "\n")}}}, nil, nil
	})
	mcp.AddTool(server, &mcp.Tool{Name: "die"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		os.Exit(7)
		return nil, nil, nil
	})
	var h http.Handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true})
	if what != "open" {
		token := os.Getenv("OWNER_TOKEN")
		h = auth.RequireBearerToken(func(_ context.Context, given string, _ *http.Request) (*auth.TokenInfo, error) {
			if token == "" || given != token {
				return nil, auth.ErrInvalidToken
			}
			return &auth.TokenInfo{UserID: "turn", Expiration: time.Now().Add(time.Hour)}, nil
		}, nil)(h)
	}
	if what == "daemon" {
		child := exec.Command("/proc/self/exe", "owner-server", "silent", "x")
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		child.Stdout, child.Env = os.Stdout, []string{}
		if err := child.Start(); err != nil {
			panic(err)
		}
	}
	fmt.Println("starting up\nlistening on http://" + l.Addr().String() + "/mcp")
	fmt.Fprintln(os.Stderr, "careful")
	mux := http.NewServeMux()
	mux.Handle("/mcp", h)
	panic(http.Serve(l, mux))
}

// records is a Recorder that remembers, and may refuse.
type records struct {
	mu     sync.Mutex
	told   []string
	last   agent.Identity
	refuse string
}

func (r *records) tell(word string, what agent.Identity) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if word == r.refuse {
		return errors.New("the record is away")
	}
	r.told, r.last = append(r.told, word+" "+what.Kind+" "+what.Label), what
	return nil
}

func (r *records) Creating(_ context.Context, what agent.Identity) error {
	return r.tell("creating", what)
}
func (r *records) Live(_ context.Context, what agent.Identity) error { return r.tell("live", what) }
func (r *records) Gone(_ context.Context, what agent.Identity) error { return r.tell("gone", what) }

func launch(t *testing.T, what string) (mcphost.Launch, *records) {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &records{}
	return mcphost.Launch{
		Request: agent.Request{
			Profile: agent.Profile{Sandbox: agent.SandboxContainer, Env: map[string]string{"NODE_OPTIONS": "--evil"}},
			HostMCP: &agent.HostMCP{
				Name: "owner", Entry: agent.MCPEntry{Type: "stdio", Command: own, Args: []string{"owner-server", what}},
				Env: map[string]string{"SHARED": "owner's", "SECRET": "s3"}, ListenArgs: []string{"--listen"},
				TokenEnv: "OWNER_TOKEN", ListeningPrefix: "listening on", Path: "/mcp",
			},
		},
		Turn:   &agent.Turn{Env: []string{"SHARED=turn's", "TURNS=1", "NODE_OPTIONS=--evil"}},
		Listen: netip.MustParseAddr("127.0.0.1"), Dir: t.TempDir(), Label: "turn-1", Marker: procs.Marker("/state", "turn-1"),
		Recorder: r, Announce: time.Minute, Grace: 100 * time.Millisecond,
	}, r
}

// bearer sends a token with every request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
}

func call(t *testing.T, s *mcphost.Server, tool string) (string, error) {
	t.Helper()
	_, token, _ := strings.Cut(s.Env()[0], "=")
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(),
		&mcp.StreamableClientTransport{Endpoint: s.Entry().URL, HTTPClient: &http.Client{Transport: bearer(token)}, MaxRetries: -1}, nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	r, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: tool})
	if err != nil {
		return "", err
	}
	return r.Content[0].(*mcp.TextContent).Text, nil
}

var whole = []string{"creating server turn-1", "live server turn-1", "gone server turn-1"}

func gone(t *testing.T, r *records) {
	t.Helper()
	if diff := cmp.Diff(whole, r.told); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
	if alive, err := procs.Find(t.Context(), r.last); err != nil || alive {
		t.Errorf("alive %t, %v", alive, err)
	}
}

func TestServer(t *testing.T) {
	t.Parallel()

	t.Run("serves the turn with a token and ends with it", func(t *testing.T) {
		t.Parallel()
		l, r := launch(t, "serves")
		var log strings.Builder
		l.Log = &log
		s, err := mcphost.StartServer(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		e := s.Entry()
		if s.Name() != "owner" || e.Type != "http" || e.BearerTokenEnv != "OWNER_TOKEN" || len(e.Headers) > 0 || !strings.HasSuffix(e.URL, "/mcp") {
			t.Errorf("%+v", e)
		}
		env, err := call(t, s, "environment")
		if err != nil {
			t.Error(err)
		}
		for _, want := range []string{"SHARED=owner's", "SECRET=s3", "TURNS=1", s.Env()[0], l.Marker, "--listen\n127.0.0.1:0"} {
			if !strings.Contains(env, want) {
				t.Errorf("%q is missing in\n%s", want, env)
			}
		}
		if strings.Contains(env, "--evil") {
			t.Error("the request chose a variable of a process on the host")
		}
		if err := errors.Join(s.Close(), s.Close()); err != nil {
			t.Error(err)
		}
		gone(t, r)
		if got := log.String(); !strings.Contains(got, "starting up") || !strings.Contains(got, "careful") {
			t.Errorf("log %q", got)
		}
		if s2, err := mcphost.StartServer(t.Context(), l); err != nil {
			t.Error(err)
		} else {
			if slices.Equal(s.Env(), s2.Env()) {
				t.Error("the token is not the turn's own")
			}
			if err := s2.Close(); err != nil {
				t.Error(err)
			}
		}
	})

	for _, what := range []string{"stubborn", "daemon"} {
		t.Run("ends one that is "+what, func(t *testing.T) {
			t.Parallel()
			l, r := launch(t, what)
			s, err := mcphost.StartServer(t.Context(), l)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			gone(t, r)
		})
	}

	t.Run("is killed as it stands", func(t *testing.T) {
		l, r := launch(t, "stubborn")
		l.Grace = time.Hour
		s, err := mcphost.StartServer(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.RunUntil(time.Now().Add(time.Hour)); err != nil {
			t.Error(err)
		}
		if err := errors.Join(s.Freeze(), s.Kill()); err != nil {
			t.Error(err)
		}
		select {
		case <-s.Exited():
		default:
			t.Error("it is there")
		}
		if err := s.RunUntil(time.Now()); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("what is gone is bounded: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		gone(t, r)
	})

	t.Run("says that it ended by itself", func(t *testing.T) {
		t.Parallel()
		l, r := launch(t, "serves")
		s, err := mcphost.StartServer(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = call(t, s, "die") // the answer never comes
		<-s.Exited()
		if err := s.Close(); err == nil || !strings.Contains(err.Error(), "exit code 7") {
			t.Errorf("%v", err)
		}
		gone(t, r)
	})

	for what, kind := range map[string]error{"open": agent.ErrUnsupported, "ends": agent.ErrUnready, "silent": agent.ErrUnready} {
		t.Run("is not used when it is "+what, func(t *testing.T) {
			t.Parallel()
			l, r := launch(t, what)
			if what == "silent" {
				l.Announce = 100 * time.Millisecond
			}
			if _, err := mcphost.StartServer(t.Context(), l); !errors.Is(err, kind) {
				t.Errorf("%v, want %v", err, kind)
			}
			gone(t, r)
		})
	}

	t.Run("does not run unrecorded", func(t *testing.T) {
		t.Parallel()
		for word, told := range map[string][]string{
			"creating": nil, "live": {"creating server turn-1", "gone server turn-1"},
		} {
			l, r := launch(t, "serves")
			r.refuse = word
			if _, err := mcphost.StartServer(t.Context(), l); !errors.Is(err, agent.ErrUnready) {
				t.Errorf("%s: %v", word, err)
			}
			if diff := cmp.Diff(told, r.told); diff != "" {
				t.Errorf("%s: %s", word, diff)
			}
		}
	})

	t.Run("ends with the context of its start", func(t *testing.T) {
		t.Parallel()
		l, r := launch(t, "silent")
		ctx, cancel := context.WithCancel(t.Context())
		stop := time.AfterFunc(100*time.Millisecond, cancel)
		defer stop.Stop()
		if _, err := mcphost.StartServer(ctx, l); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		gone(t, r)
	})

	for name, c := range map[string]struct {
		change func(*mcphost.Launch)
		kind   error
	}{
		"the host":             {func(l *mcphost.Launch) { l.Request.Profile.Sandbox = agent.SandboxNone }, agent.ErrUnsupported},
		"no server":            {func(l *mcphost.Launch) { l.Request.HostMCP = nil }, agent.ErrUnsupported},
		"a taken name":         {func(l *mcphost.Launch) { l.Request.HostMCP.Name = mcphost.ServerName }, agent.ErrNotGranted},
		"a name of the turn's": {func(l *mcphost.Launch) { l.Request.Profile.MCP = map[string]agent.MCPEntry{"owner": {}} }, agent.ErrNotGranted},
		"a URL":                {func(l *mcphost.Launch) { l.Request.HostMCP.Entry.URL = "http://x" }, agent.ErrUnsupported},
		"a relative command":   {func(l *mcphost.Launch) { l.Request.HostMCP.Entry.Command = "server" }, agent.ErrUnsupported},
		"no token":             {func(l *mcphost.Launch) { l.Request.HostMCP.TokenEnv = "" }, agent.ErrUnsupported},
		"no prefix":            {func(l *mcphost.Launch) { l.Request.HostMCP.ListeningPrefix = "" }, agent.ErrUnsupported},
		"a relative path":      {func(l *mcphost.Launch) { l.Request.HostMCP.Path = "mcp" }, agent.ErrUnsupported},
		"every address":        {func(l *mcphost.Launch) { l.Listen = netip.IPv4Unspecified() }, agent.ErrUnsupported},
		"a missing executable": {func(l *mcphost.Launch) { l.Request.HostMCP.Entry.Command = "/no/such/server" }, agent.ErrUnready},
	} {
		t.Run("is refused for "+name, func(t *testing.T) {
			t.Parallel()
			l, r := launch(t, "serves")
			c.change(&l)
			if s, err := mcphost.StartServer(t.Context(), l); !errors.Is(err, c.kind) {
				t.Errorf("%v, want %v", err, c.kind)
				if s != nil {
					_ = s.Close()
				}
			}
			if len(r.told) == 1 || len(r.told) > 2 {
				t.Errorf("recorded %v", r.told)
			}
		})
	}
}

func FuzzAnnouncement(f *testing.F) {
	f.Add("listening on 127.0.0.1:80", "listening on")
	f.Add("listening on http://[::1]:8080/mcp", "listening on")
	f.Add("port=65536", "port=")
	f.Fuzz(func(t *testing.T, line, prefix string) {
		if port, ok := mcphost.Announcement(line, prefix); ok && (port == 0 || !strings.Contains(line, fmt.Sprint(port))) {
			t.Errorf("%q: %d", line, port)
		}
	})
}
