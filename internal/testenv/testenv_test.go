package testenv_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"turnpike/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// notes is a schema of one table and one role.
var notes = testenv.Migrated(func(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `
		CREATE TABLE notes (text text NOT NULL);
		DO $$ BEGIN
			CREATE ROLE testenv_reader;
		EXCEPTION WHEN duplicate_object THEN NULL;
		END $$;
		GRANT SELECT ON notes TO testenv_reader`)
	return errors.Join(err, conn.Close(ctx))
})

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func count(t *testing.T, conn *pgx.Conn) (n int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM notes").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestPostgres(t *testing.T) {
	t.Run("gives each test a database of its own", func(t *testing.T) {
		a, b := testenv.Postgres(t, notes), testenv.Postgres(t, notes)
		if _, err := a.Pool(t).Exec(t.Context(), "INSERT INTO notes VALUES ('a')"); err != nil {
			t.Fatal(err)
		}
		if n := count(t, connect(t, b.DSN())); n != 0 {
			t.Errorf("%d notes of another test", n)
		}
	})
	t.Run("copies one template for many at once", func(t *testing.T) {
		for range 4 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				if n := count(t, connect(t, testenv.Postgres(t, notes).DSN())); n != 0 {
					t.Errorf("%d notes", n)
				}
			})
		}
	})
	t.Run("logs in as a role", func(t *testing.T) {
		db := testenv.Postgres(t, notes)
		conn := connect(t, db.Login(t, "testenv_reader"))
		count(t, conn)
		if _, err := conn.Exec(t.Context(), "INSERT INTO notes VALUES ('a')"); err == nil {
			t.Error("a reader may write")
		}
	})
	t.Run("demands a password", func(t *testing.T) {
		db := testenv.Postgres(t, nil)
		u, err := url.Parse(db.DSN())
		if err != nil {
			t.Fatal(err)
		}
		if conn, err := pgx.Connect(t.Context(), db.As(u.User.Username(), "wrong")); err == nil {
			_ = conn.Close(t.Context())
			t.Error("a wrong password is good enough")
		}
	})
}

func TestPrivatePostgres(t *testing.T) {
	pg := testenv.PrivatePostgres(t, notes)
	short := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, pg.DSN())
		if err != nil {
			return err
		}
		return errors.Join(conn.Ping(ctx), conn.Close(ctx))
	}
	if _, err := connect(t, pg.DSN()).Exec(t.Context(), "INSERT INTO notes VALUES ('a')"); err != nil {
		t.Fatal(err)
	}

	pg.Pause(t)
	if err := short(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("paused: got %v, want no answer", err)
	}
	pg.Unpause(t)
	if err := short(); err != nil {
		t.Errorf("unpaused: %v", err)
	}

	pg.Stop(t)
	if err := short(); err == nil {
		t.Error("stopped, and it answers")
	}
	pg.Start(t)
	if n := count(t, connect(t, pg.DSN())); n != 1 {
		t.Errorf("%d notes after a restart, want 1", n)
	}
}

func jetStream(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func TestNATS(t *testing.T) {
	work := jetstream.StreamConfig{Name: "WORK", Subjects: []string{"work.>"}, Retention: jetstream.WorkQueuePolicy}
	t.Run("keeps its address and its store through a restart, and forgets when wiped", func(t *testing.T) {
		broker := testenv.NATS(t)
		js := jetStream(t, broker.URL())
		if _, err := js.CreateStream(t.Context(), work); err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), "work.a", nil); err != nil {
			t.Fatal(err)
		}
		broker.Stop(t)
		broker.Start(t)
		s, err := jetStream(t, broker.URL()).Stream(t.Context(), "WORK")
		if err != nil {
			t.Fatal(err)
		}
		if n := s.CachedInfo().State.Msgs; n != 1 {
			t.Errorf("%d messages after a restart, want 1", n)
		}
		broker.Stop(t)
		broker.Wipe(t)
		broker.Start(t)
		if _, err := jetStream(t, broker.URL()).Stream(t.Context(), "WORK"); !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Errorf("after a wipe: %v, want %v", err, jetstream.ErrStreamNotFound)
		}
	})
	t.Run("holds users to their permissions", func(t *testing.T) {
		broker := testenv.NATS(t, &server.User{
			Username:    "listener",
			Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{">"}}},
		})
		denied := make(chan error, 1)
		nc, err := nats.Connect(broker.As("listener"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			select {
			case denied <- err:
			default:
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if err := nc.Publish("a", nil); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-denied:
			if !errors.Is(err, nats.ErrPermissionViolation) {
				t.Errorf("got %v, want %v", err, nats.ErrPermissionViolation)
			}
		case <-time.After(10 * time.Second):
			t.Error("the listener may publish")
		}
	})
	t.Run("turns strangers away", func(t *testing.T) {
		u, err := url.Parse(testenv.NATS(t).URL())
		if err != nil {
			t.Fatal(err)
		}
		if nc, err := nats.Connect("nats://" + u.Host); err == nil {
			nc.Close()
			t.Error("no credentials are good enough")
		}
	})
}

func TestNATSContainer(t *testing.T) {
	js := jetStream(t, testenv.NATSContainer(t))
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "A", Subjects: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
}

func TestProxy(t *testing.T) {
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	t.Cleanup(func() { _ = echo.Close(); <-served })
	p := testenv.NewProxy(t, echo.Addr().String())

	dial := func(t *testing.T) net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	say := func(c net.Conn, text string, patience time.Duration) error {
		if _, err := io.WriteString(c, text); err != nil {
			return err
		}
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, len(text)))
		return err
	}

	t.Run("forwards", func(t *testing.T) {
		if err := say(dial(t), "hello", 10*time.Second); err != nil {
			t.Error(err)
		}
	})
	t.Run("holds old and new connections, and loses nothing", func(t *testing.T) {
		old := dial(t)
		if err := say(old, "before", 10*time.Second); err != nil {
			t.Fatal(err)
		}
		p.Hold()
		for _, c := range []net.Conn{old, dial(t)} {
			if err := say(c, "held", 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("held: got %v, want silence", err)
			}
		}
		p.Resume()
		if err := old.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len("held"))
		if _, err := io.ReadFull(old, got); err != nil || string(got) != "held" {
			t.Errorf("after Resume: %q, %v", got, err)
		}
	})
	t.Run("cuts old and new connections", func(t *testing.T) {
		old := dial(t)
		if err := say(old, "before", 10*time.Second); err != nil {
			t.Fatal(err)
		}
		p.Cut()
		if err := say(old, "cut", 10*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("an old connection: %v", err)
		}
		if c, err := net.Dial("tcp", p.Addr()); err == nil { // the reset may already meet the dialling
			defer c.Close()
			if err := say(c, "cut", 10*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a new connection: %v", err)
			}
		}
		p.Resume()
		if err := say(dial(t), "after", 10*time.Second); err != nil {
			t.Errorf("after Resume: %v", err)
		}
	})
}
