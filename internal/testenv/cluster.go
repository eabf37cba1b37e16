package testenv

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// clusterNodes is how many servers a [Cluster] has: the fewest that outlive one.
const clusterNodes = 3

// Cluster is a NATS cluster of three with JetStream. Each node is a process of its own,
// this test's binary started again (see [Main]): a server that ends in order hands over
// what it leads, and only a process can be killed before it does. Addresses, names and
// the user stay the same for as long as the cluster lives.
type Cluster struct {
	user, password string
	nodes          [clusterNodes]*node
}

// node is a server of a cluster, and what the process that is it is told.
type node struct {
	Name, Store     string
	Port, RoutePort int
	Routes          string // of all nodes, separated by commas
	User, Password  string

	process *exec.Cmd // nil while stopped
	life    io.Closer // the process's stdin: it ends in order when this is closed
}

// nodeEnv holds a node as JSON for the process that is to be it.
const nodeEnv = "TURNPIKE_TEST_NATS_NODE"

// NATSCluster starts a cluster for this test, and returns once streams of three replicas
// can be made.
func NATSCluster(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{user: "admin", password: rand.Text()}
	var routes []string
	for i := range c.nodes {
		n := &node{Name: "node-" + strconv.Itoa(i), Store: filepath.Join(t.TempDir(), "jetstream"), User: c.user, Password: c.password}
		for _, port := range []*int{&n.Port, &n.RoutePort} {
			var err error
			if *port, err = fixedPort(); err != nil {
				t.Fatal(err)
			}
		}
		c.nodes[i] = n
		routes = append(routes, "nats-route://"+loopback(n.RoutePort))
	}
	t.Cleanup(func() {
		for i, n := range c.nodes {
			if n.process != nil {
				c.KillNode(t, i)
			}
		}
	})
	for i, n := range c.nodes {
		n.Routes = strings.Join(routes, ",")
		c.StartNode(t, i)
	}
	c.waitReady(t)
	return c
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// URL is the addresses of all nodes, with credentials, as a deployment writes them.
func (c *Cluster) URL() string {
	var all []string
	for i := range c.nodes {
		all = append(all, c.NodeURL(i))
	}
	return strings.Join(all, ",")
}

// NodeURL is the address of one node, with credentials.
func (c *Cluster) NodeURL(i int) string {
	return (&url.URL{Scheme: "nats", User: url.UserPassword(c.user, c.password), Host: loopback(c.nodes[i].Port)}).String()
}

// NodeName is what a node calls itself.
func (c *Cluster) NodeName(i int) string { return c.nodes[i].Name }

// Size is how many nodes there are.
func (c *Cluster) Size() int { return len(c.nodes) }

// StartNode starts a stopped node on the store it left, and returns when it listens.
func (c *Cluster) StartNode(t testing.TB, i int) {
	t.Helper()
	n := c.nodes[i]
	if n.process != nil {
		t.Fatalf("%s runs already", n.Name)
	}
	told, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), nodeEnv+"="+string(told))
	cmd.Stderr = os.Stderr
	life, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	up, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n.process, n.life = cmd, life
	if _, err := io.ReadFull(up, make([]byte, 1)); err != nil {
		t.Fatalf("%s did not come up: %v", n.Name, err)
	}
}

// StopNode ends a node in order: it hands over what it leads. Its store stays.
func (c *Cluster) StopNode(t testing.TB, i int) {
	t.Helper()
	n := c.running(t, i)
	if err := errors.Join(n.life.Close(), n.process.Wait()); err != nil {
		t.Errorf("stop %s: %v", n.Name, err)
	}
	n.process = nil
}

// KillNode ends a node as kill -9 does. Its store stays.
func (c *Cluster) KillNode(t testing.TB, i int) {
	t.Helper()
	n := c.running(t, i)
	if err := n.process.Process.Kill(); err != nil {
		t.Errorf("kill %s: %v", n.Name, err)
	}
	_ = n.process.Wait() // "signal: killed"
	n.process = nil
}

func (c *Cluster) running(t testing.TB, i int) *node {
	t.Helper()
	if c.nodes[i].process == nil {
		t.Fatalf("%s does not run", c.nodes[i].Name)
	}
	return c.nodes[i]
}

// WipeNode deletes the store of a stopped node.
func (c *Cluster) WipeNode(t testing.TB, i int) {
	t.Helper()
	if c.nodes[i].process != nil {
		t.Fatal("stop the node before wiping its store")
	}
	if err := os.RemoveAll(c.nodes[i].Store); err != nil {
		t.Fatal(err)
	}
}

// Leader is the node that leads a stream. It waits until one does.
func (c *Cluster) Leader(t testing.TB, stream string) int {
	t.Helper()
	leader := -1
	c.until(t, "a leader of stream "+stream, func(ctx context.Context, js jetstream.JetStream) error {
		s, err := js.Stream(ctx, stream)
		if err != nil {
			return err
		}
		if cluster := s.CachedInfo().Cluster; cluster != nil {
			leader = slices.IndexFunc(c.nodes[:], func(n *node) bool { return n.Name == cluster.Leader && n.process != nil })
		}
		if leader < 0 {
			return errors.New("nobody leads it")
		}
		return nil
	})
	return leader
}

// waitReady returns once there is a leader that knows all nodes, which is when it can
// place a stream on all of them.
func (c *Cluster) waitReady(t testing.TB) {
	t.Helper()
	c.until(t, "a leader that knows all nodes", func(ctx context.Context, js jetstream.JetStream) error {
		probe := jetstream.StreamConfig{Name: "PROBE", Subjects: []string{"testenv.probe"}, Replicas: len(c.nodes)}
		if _, err := js.CreateStream(ctx, probe); err != nil {
			return err
		}
		return js.DeleteStream(ctx, probe.Name)
	})
}

// until asks the nodes that run until answer is content.
func (c *Cluster) until(t testing.TB, what string, answer func(context.Context, jetstream.JetStream) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	nc, err := nats.Connect(c.URL(), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		one, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := answer(one, js)
		cancel()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-tick.C:
		}
	}
}

// serveNode is the whole life of a process that is a node: until its stdin ends, which
// it also does when the test's process is gone.
func serveNode(told string) error {
	var n node
	if err := json.Unmarshal([]byte(told), &n); err != nil {
		return err
	}
	s, err := server.NewServer(&server.Options{
		ServerName: n.Name,
		Host:       "127.0.0.1",
		Port:       n.Port,
		Users:      []*server.User{{Username: n.User, Password: n.Password}},
		Cluster:    server.ClusterOpts{Name: "turnpike", Host: "127.0.0.1", Port: n.RoutePort},
		Routes:     server.RoutesFromStr(n.Routes),
		JetStream:  true,
		StoreDir:   n.Store,
		NoSigs:     true,
		NoLog:      true,
	})
	if err != nil {
		return err
	}
	s.Start()
	defer func() {
		s.Shutdown()
		s.WaitForShutdown()
	}()
	if !s.ReadyForConnections(startTimeout) {
		return errors.New("the server does not listen")
	}
	if _, err := fmt.Print("."); err != nil { // StartNode waits for it
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
