package testenv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"go.uber.org/goleak"
)

// Label marks every container a test starts; its value is the run's name.
const Label = "turnpike.testenv"

// startTimeout bounds a start on a busy machine; a healthy one takes seconds.
const startTimeout = 2 * time.Minute

// image is the one place that names images.
func image(setting, standard string) string {
	if name := os.Getenv(setting); name != "" {
		return name
	}
	return standard
}

func postgresImage() string { return image("PG_IMAGE", "postgres:15") }
func natsImage() string     { return image("NATS_IMAGE", "nats:2.15") }

// engineUsed says that this process talked to the engine.
var engineUsed atomic.Bool

// useEngine settles how testcontainers behaves, before it reads its settings.
var useEngine = sync.OnceFunc(func() {
	engineUsed.Store(true)
	defaults := map[string]string{
		// Its reaper is an image of its own, which not every machine can pull.
		// Tests remove what they start; [Label] lets `make test` and `make clean`
		// sweep after a crash.
		"TESTCONTAINERS_RYUK_DISABLED": "true",
		// A host that carries a /.dockerenv is taken for a container otherwise, and
		// published ports are then dialled at the default gateway.
		"TESTCONTAINERS_HOST_OVERRIDE": "127.0.0.1",
	}
	for name, value := range defaults {
		if _, set := os.LookupEnv(name); !set {
			if err := os.Setenv(name, value); err != nil {
				panic(err)
			}
		}
	}
})

// engineLeaks are goroutines that the engine's client leaves on purpose.
func engineLeaks() []goleak.Option {
	if !engineUsed.Load() {
		return nil
	}
	return []goleak.Option{
		// testcontainers keeps one HTTP client, with idle connections, for the life of
		// the process and offers no way to close it.
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
	}
}

// labelled marks a container with this run's name.
func labelled() testcontainers.ContainerCustomizer {
	run := os.Getenv("TURNPIKE_TEST_RUN")
	if run == "" {
		run = "pid-" + strconv.Itoa(os.Getpid())
	}
	return testcontainers.WithLabels(map[string]string{Label: run})
}

// onLoopback publishes one port of a container on 127.0.0.1 only, which is not
// testcontainers' habit. hostPort 0 lets the engine choose, but then the port
// changes with every start.
func onLoopback(port string, hostPort int) testcontainers.ContainerCustomizer {
	return testcontainers.WithHostConfigModifier(func(c *container.HostConfig) {
		c.PortBindings = network.PortMap{network.MustParsePort(port): {{
			HostIP:   netip.AddrFrom4([4]byte{127, 0, 0, 1}),
			HostPort: strconv.Itoa(hostPort),
		}}}
	})
}

// fixedPort finds a free port to keep through restarts: below the ephemeral
// range, so that no outgoing connection takes it while its server is down.
func fixedPort() (int, error) {
	for range 100 {
		port := 20000 + rand.IntN(10000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		return port, l.Close()
	}
	return 0, errors.New("no free port between 20000 and 30000")
}

// terminate removes a container. It runs at the end of a test, when the test's
// own context is gone.
func terminate(c testcontainers.Container) error {
	if c == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return testcontainers.TerminateContainer(c, testcontainers.StopContext(ctx), testcontainers.StopTimeout(0))
}

// faults are what a test may do to a container of its own.
type faults struct {
	container testcontainers.Container
	ready     func(context.Context) error // returns when the server answers
}

// Stop ends the server in an orderly way; its data stays.
func (f faults) Stop(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	grace := 20 * time.Second
	if err := f.container.Stop(ctx, &grace); err != nil {
		t.Fatalf("stop the server: %v", err)
	}
}

// Start starts a stopped server at its old address and returns when it answers.
func (f faults) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := f.container.Start(ctx); err != nil {
		t.Fatalf("start the server: %v", err)
	}
	if err := f.ready(ctx); err != nil {
		t.Fatalf("start the server: %v", err)
	}
}

// Pause freezes the server: connections stay open and nothing answers.
func (f faults) Pause(t testing.TB) {
	t.Helper()
	f.engine(t, func(ctx context.Context, c *testcontainers.DockerClient, id string) error {
		_, err := c.ContainerPause(ctx, id, client.ContainerPauseOptions{})
		return err
	})
}

// Unpause lets a frozen server go on where it was.
func (f faults) Unpause(t testing.TB) {
	t.Helper()
	f.engine(t, func(ctx context.Context, c *testcontainers.DockerClient, id string) error {
		_, err := c.ContainerUnpause(ctx, id, client.ContainerUnpauseOptions{})
		return err
	})
}

func (f faults) engine(t testing.TB, do func(context.Context, *testcontainers.DockerClient, string) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	c, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		t.Fatalf("reach the engine: %v", err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Errorf("leave the engine: %v", err)
		}
	}()
	if err := do(ctx, c, f.container.GetContainerID()); err != nil {
		t.Fatal(err)
	}
}

// permanent is an error that trying again does not cure.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// until tries again every 25 ms until try succeeds, fails for good, or ctx ends.
func until(ctx context.Context, what string, try func(context.Context) error) error {
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if final := (permanent{}); errors.As(err, &final) {
			return fmt.Errorf("%s: %w", what, final.error)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w (last: %w)", what, ctx.Err(), err)
		case <-tick.C:
		}
	}
}
