// Package testenv gives tests the real parts they run against: Postgres, NATS
// with JetStream, and a proxy that breaks the wire between them and the code
// under test. Only tests import it.
//
// A test gets a database of its own ([Postgres]) on one server that the whole
// process shares, or a server of its own ([PrivatePostgres]) when it wants to
// stop or freeze it. NATS runs inside the test process ([NATS]), which is fast
// and can be stopped and wiped as well; [NATSContainer] is the same server as a
// deployment runs it, and [NATSCluster] is three of them. Everything listens on loopback, demands a password, and
// goes when its test ends.
//
// Servers that are containers need an engine and images: `make engine-up`.
// Settings, from the environment because `go test` offers nothing else:
//
//	PG_IMAGE, NATS_IMAGE     names of the images
//	TURNPIKE_TEST_PG_DSN     a shared Postgres (superuser) that is already there;
//	                         unset, each test process starts one by testcontainers
//	TURNPIKE_TEST_RUN        label of this run's containers, for whoever sweeps them
package testenv

import (
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"sync"

	"go.uber.org/goleak"
)

// Main is the whole TestMain of a package that uses testenv:
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
// It runs the tests, ends the servers that the process shared, and fails when a
// goroutine is left. In a process that a [Cluster] started it is that node instead.
func Main(m interface{ Run() int }, leaks ...goleak.Option) {
	if told := os.Getenv(nodeEnv); told != "" {
		if err := serveNode(told); err != nil {
			fmt.Fprintln(os.Stderr, "testenv: NATS node:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(run(m, leaks))
}

func run(m interface{ Run() int }, leaks []goleak.Option) int {
	code := m.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv: stop the shared servers:", err)
		code = max(code, 1)
	}
	if code != 0 {
		return code // after a failure, what it left behind is noise
	}
	if err := goleak.Find(append(leaks, engineLeaks()...)...); err != nil {
		fmt.Fprintln(os.Stderr, "testenv: goroutines left after the tests:", err)
		return 1
	}
	return 0
}

// shared holds what outlives the test that asked for it first.
var shared servers

type servers struct {
	postgres struct {
		once sync.Once
		dsn  string
		err  error
	}

	mu    sync.Mutex // guards ended
	ended []func() error
}

// atEnd has end called after the last test.
func (s *servers) atEnd(end func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = append(s.ended, end)
}

func (s *servers) stop() error {
	s.mu.Lock()
	ended := s.ended
	s.ended = nil
	s.mu.Unlock()
	var first error
	for i := len(ended) - 1; i >= 0; i-- {
		if err := ended[i](); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Via is rawURL (a DSN or a NATS URL) with its host and port replaced by addr,
// which is how a client is sent through a [Proxy].
func Via(rawURL, addr string) string {
	return edited(rawURL, func(u *url.URL) { u.Host = addr })
}

func edited(rawURL string, edit func(*url.URL)) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		panic(fmt.Sprintf("testenv: not a URL: %v", err))
	}
	edit(u)
	return u.String()
}

// unique is a name nobody else has, on a server that other processes may share.
func unique(prefix string) string {
	return prefix + "_" + strconv.Itoa(os.Getpid()) + "_" + rand.Text()[:10]
}
