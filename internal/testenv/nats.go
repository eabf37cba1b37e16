package testenv

import (
	"context"
	"crypto/rand"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/testcontainers/testcontainers-go"
	tcnats "github.com/testcontainers/testcontainers-go/modules/nats"
)

// Broker is a NATS server with JetStream inside the test process. Its address and
// users stay the same through Stop, Wipe and Start.
type Broker struct {
	options server.Options
	store   string
	server  *server.Server // nil while stopped
}

// NATS starts a broker for this test. Its first user may do everything; more users,
// with permissions of their own, may be given. A user without a password gets one.
func NATS(t testing.TB, users ...*server.User) *Broker {
	t.Helper()
	port, err := fixedPort()
	if err != nil {
		t.Fatal(err)
	}
	all := append([]*server.User{{Username: "admin"}}, users...)
	for _, u := range all {
		if u.Password == "" {
			u.Password = rand.Text()
		}
	}
	b := &Broker{store: filepath.Join(t.TempDir(), "jetstream")}
	b.options = server.Options{
		Host:      "127.0.0.1",
		Port:      port,
		Users:     all,
		JetStream: true,
		StoreDir:  b.store,
		NoSigs:    true, // signals are the test binary's
		NoLog:     true,
	}
	t.Cleanup(func() {
		if b.server != nil {
			b.Stop(t)
		}
	})
	b.Start(t)
	return b
}

// URL is the broker's address with the credentials of the user that may do all.
func (b *Broker) URL() string { return b.As(b.options.Users[0].Username) }

// As is the broker's address with the credentials of one of its users.
func (b *Broker) As(user string) string {
	for _, u := range b.options.Users {
		if u.Username == user {
			return (&url.URL{
				Scheme: "nats",
				User:   url.UserPassword(u.Username, u.Password),
				Host:   net.JoinHostPort(b.options.Host, strconv.Itoa(b.options.Port)),
			}).String()
		}
	}
	panic("testenv: the broker has no user " + user)
}

// Stop ends the broker; its store stays.
func (b *Broker) Stop(t testing.TB) {
	t.Helper()
	if b.server == nil {
		t.Fatal("the broker is already stopped")
	}
	b.server.Shutdown()
	b.server.WaitForShutdown()
	b.server = nil
}

// Wipe deletes the store of a stopped broker.
func (b *Broker) Wipe(t testing.TB) {
	t.Helper()
	if b.server != nil {
		t.Fatal("stop the broker before wiping its store")
	}
	if err := os.RemoveAll(b.store); err != nil {
		t.Fatal(err)
	}
}

// Start starts a stopped broker on the store it left.
func (b *Broker) Start(t testing.TB) {
	t.Helper()
	options := b.options // the server writes into what it is given
	s, err := server.NewServer(&options)
	if err != nil {
		t.Fatalf("broker: %v", err)
	}
	s.Start()
	if !s.ReadyForConnections(startTimeout) {
		s.Shutdown()
		t.Fatal("the broker did not come up")
	}
	b.server = s
}

// NATSContainer starts a NATS server for this test the way a deployment does, and is
// its URL. Prefer [NATS] where the difference does not matter.
func NATSContainer(t testing.TB) string {
	t.Helper()
	useEngine()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	user, password := "admin", rand.Text()
	c, err := tcnats.Run(ctx, natsImage(),
		tcnats.WithUsername(user),
		tcnats.WithPassword(password),
		labelled(),
		testcontainers.WithExposedPorts("4222/tcp"),
		onLoopback("4222/tcp", 0),
	)
	t.Cleanup(func() {
		if c != nil {
			if err := terminate(c); err != nil {
				t.Errorf("remove the NATS container: %v", err)
			}
		}
	})
	if err != nil {
		t.Fatalf("NATS container: %v", err)
	}
	endpoint, err := c.ConnectionString(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return edited(endpoint, func(u *url.URL) { u.User = url.UserPassword(user, password) })
}
