package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"turnpike/internal/agent/confine"
	"turnpike/internal/job"
)

// composition is the system of compose.yaml, under a name of its own.
type composition struct {
	t       *testing.T
	root    string
	project string
	tool    []string // docker compose, or docker-compose
	args    []string
	env     []string
	client  []string // what a producer's environment has
}

// TestCompose builds the images and starts the whole system the way a user does, with
// three workers and a scripted model beside them.
func TestCompose(t *testing.T) {
	c := compose(t)
	if out, err := c.command("make", "--no-print-directory", "images").CombinedOutput(); err != nil {
		t.Fatalf("make images: %v\n%s", err, out)
	}
	c.run(nil, "up", "-d", "--scale", "worker=3")
	c.eventually("everything is healthy", func() bool {
		return len(c.healthy("worker")) == 3 && len(c.healthy("dispatcher")) == 1 && len(c.healthy("postgres")) == 1
	})

	server := strings.TrimSpace(c.run(nil, "port", "dispatcher", "8420"))
	c.client = append(c.client, "TURNPIKE_SERVER=http://"+server)

	// More than the slots of two workers.
	const jobs = 6
	batch := make([]json.RawMessage, jobs)
	for i := range batch {
		batch[i] = request(nil)
	}
	body, err := json.Marshal(batch)
	if err != nil {
		t.Fatal(err)
	}
	ids := strings.Fields(c.produce(body, "enqueue", "-f", "-", "-o", "name"))
	if len(ids) != jobs {
		t.Fatalf("enqueued %d jobs, want %d: %v", len(ids), jobs, ids)
	}
	for _, id := range ids {
		c.eventually("job "+id+" ends", func() bool {
			var v job.View
			out := c.produce(nil, "get", id, "-o", "json")
			if err := json.Unmarshal([]byte(out), &v); err != nil {
				t.Fatalf("get %s: %v\n%s", id, err, out)
			}
			if v.State.Final() && v.State != job.Succeeded {
				t.Fatalf("job %s ended %s\n%s", id, v.State, out)
			}
			return v.State.Final()
		})
	}
	t.Run("the work was shared out", func(t *testing.T) {
		workers, err := strconv.Atoi(c.sql("SELECT count(DISTINCT worker) FROM turnpike.attempts"))
		if err != nil || workers < 2 {
			t.Errorf("%d workers took part (%v)", workers, err)
		}
	})
	t.Run("workers without capabilities confine their turns", func(t *testing.T) {
		if lanes := c.sql("SELECT string_agg(DISTINCT lane, ',') FROM turnpike.attempts"); lanes != "none-confined/default" {
			t.Errorf("turns ran on %q", lanes)
		}
		var probe struct {
			Confinement struct {
				Mode confine.Mode `json:"mode"`
			} `json:"confinement"`
		}
		if err := json.Unmarshal([]byte(c.run(nil, "exec", "-T", "worker", "worker", "probe", "-o", "json")), &probe); err != nil {
			t.Fatal(err)
		}
		if probe.Confinement.Mode != confine.LandlockOnly {
			t.Errorf("confined by %q, want %q", probe.Confinement.Mode, confine.LandlockOnly)
		}
		if caps := c.run(nil, "exec", "-T", "worker", "grep", "CapBnd", "/proc/self/status"); !strings.Contains(caps, "0000000000000000") {
			t.Errorf("the worker keeps capabilities: %s", caps)
		}
	})
}

func compose(t *testing.T) *composition {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	run := os.Getenv("TURNPIKE_TEST_RUN")
	if run == "" {
		run = "pid-" + strconv.Itoa(os.Getpid())
	}
	c := &composition{t: t, root: root, project: "turnpike-e2e-" + run, tool: []string{"docker", "compose"}}
	if err := exec.Command("docker", "compose", "version").Run(); err != nil {
		c.tool = []string{"docker-compose"}
	}
	dir := t.TempDir()
	env := filepath.Join(dir, "env")
	c.env = append(os.Environ(), "TURNPIKE_TAG="+c.project, "TURNPIKE_PORT=0", "COMPOSE_PROJECT_NAME="+c.project)
	if out, err := c.command("scripts/compose-env.sh", env).CombinedOutput(); err != nil {
		t.Fatalf("compose-env.sh: %v\n%s", err, out)
	}
	settings, err := os.ReadFile(env)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(settings)) {
		if strings.HasPrefix(line, "TURNPIKE_TOKEN=") {
			c.client = append(c.client, strings.TrimSpace(line))
		}
	}
	provider := filepath.Join(dir, "provider")
	build := c.command("go", "build", "-o", provider, "./internal/agent/agenttest/provider")
	build.Env = append(slices.Clone(c.env), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the provider: %v\n%s", err, out)
	}
	c.args = []string{"--env-file", env, "-f", filepath.Join(root, "compose.yaml"), "-f", c.override(dir, provider)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.run(nil, "logs", "--tail=40", "migrate", "dispatcher", "worker"))
		}
		c.run(nil, "down", "-v", "--timeout", "5")
		for _, program := range []string{"dispatcher", "worker"} {
			if out, err := c.command("docker", "rmi", "turnpike-"+program+":"+c.project).CombinedOutput(); err != nil {
				t.Logf("remove the image: %v\n%s", err, out)
			}
		}
	})
	return c
}

// override adds a scripted model, and lets the workers' turns find it.
func (c *composition) override(dir, provider string) string {
	c.t.Helper()
	shipped, err := os.ReadFile(filepath.Join(c.root, "deploy", "ceiling.yaml"))
	if err != nil {
		c.t.Fatal(err)
	}
	const key = "{ANTHROPIC_API_KEY: ANTHROPIC_API_KEY}"
	ceiling := strings.Replace(string(shipped), key, "{ANTHROPIC_API_KEY: ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL: MODEL_URL}", 1)
	if ceiling == string(shipped) {
		c.t.Fatalf("deploy/ceiling.yaml has no account with %s", key)
	}
	files := map[string]string{
		"ceiling.yaml": ceiling,
		"override.yaml": fmt.Sprintf(`
services:
  model:
    image: turnpike-dispatcher:%s
    entrypoint: [/provider, --addr, "0.0.0.0:8399"]
    command: []
    volumes: [%q]
    networks: [front]
  worker:
    environment:
      ANTHROPIC_API_KEY: of-the-scripted-model
      MODEL_URL: http://model:8399/s/write
    volumes: [%q]
    depends_on:
      model: {condition: service_started}
`, c.project, provider+":/provider:ro", filepath.Join(dir, "ceiling.yaml")+":/etc/turnpike/ceiling.yaml:ro"),
	}
	for name, text := range files {
		// For the containers' users to read.
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			c.t.Fatal(err)
		}
	}
	return filepath.Join(dir, "override.yaml")
}

func (c *composition) command(name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // clean-ups outlive the test's context
	c.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = c.root
	cmd.Env = c.env
	return cmd
}

// run runs a compose command and returns what it wrote to stdout.
func (c *composition) run(stdin []byte, args ...string) string {
	c.t.Helper()
	return c.output(c.command(c.tool[0], slices.Concat(c.tool[1:], c.args, args)...), stdin)
}

// produce runs a producer's command on this machine.
func (c *composition) produce(stdin []byte, args ...string) string {
	c.t.Helper()
	cmd := c.command(filepath.Join(c.root, "bin", "dispatcher"), args...)
	cmd.Env = append(slices.Clone(c.env), c.client...)
	return c.output(cmd, stdin)
}

func (c *composition) output(cmd *exec.Cmd, stdin []byte) string {
	c.t.Helper()
	cmd.Stdin = bytes.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		c.t.Fatalf("%v: %v\n%s%s", cmd.Args, err, &out, &errs)
	}
	return out.String()
}

// healthy lists the containers of a service that their health check finds well.
func (c *composition) healthy(service string) []string {
	c.t.Helper()
	out, err := c.command("docker", "ps", "-q", "--filter", "health=healthy",
		"--filter", "label=com.docker.compose.project="+c.project,
		"--filter", "label=com.docker.compose.service="+service).Output()
	if err != nil {
		c.t.Fatalf("docker ps: %v", err)
	}
	return strings.Fields(string(out))
}

// sql asks the database as its superuser.
func (c *composition) sql(query string) string {
	c.t.Helper()
	return strings.TrimSpace(c.run(nil, "exec", "-T", "postgres", "psql", "-U", "postgres", "-d", "turnpike", "-Atc", query))
}

func (c *composition) eventually(what string, ok func() bool) {
	c.t.Helper()
	(&system{t: c.t}).eventually(what, ok)
}
