package testenv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/testcontainers/testcontainers-go"
	tcpostgres "github.com/testcontainers/testcontainers-go/modules/postgres"
)

const (
	superuser     = "turnpike_test"
	adminDatabase = "postgres"
)

// Template is a migrated database that others are copied from.
type Template struct {
	migrate func(ctx context.Context, dsn string) error

	once sync.Once
	name string
	err  error
}

// Migrated is a template that migrate makes from an empty database, once, when it
// is first needed. Hold one per test package:
//
//	var schema = testenv.Migrated(store.Migrate)
//
// migrate closes its connections before it returns.
func Migrated(migrate func(ctx context.Context, dsn string) error) *Template {
	return &Template{migrate: migrate}
}

// DB is a database that only one test uses.
type DB struct {
	dsn string
}

// Postgres gives the test a database of its own on the shared server, copied from
// the template, or empty when from is nil. It goes when the test ends.
func Postgres(t testing.TB, from *Template) *DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	server, err := sharedPostgres(ctx)
	if err != nil {
		t.Fatalf("shared Postgres: %v", err)
	}
	template := "template0"
	if from != nil {
		from.once.Do(func() { from.name, from.err = makeTemplate(ctx, server, from.migrate) })
		if from.err != nil {
			t.Fatalf("migrate the template database: %v", from.err)
		}
		template = from.name
	}
	name := unique("test")
	if err := copyDatabase(ctx, server, name, template); err != nil {
		t.Fatalf("create database: %v", err)
	}
	t.Cleanup(func() {
		if err := dropDatabase(server, name); err != nil {
			t.Errorf("drop database: %v", err)
		}
	})
	return &DB{dsn: inDatabase(server, name)}
}

// DSN connects as the superuser.
func (db *DB) DSN() string { return db.dsn }

// As is the DSN with other credentials.
func (db *DB) As(user, password string) string {
	return edited(db.dsn, func(u *url.URL) { u.User = url.UserPassword(user, password) })
}

// Login makes a user that is a member of role, with nothing of its own, and is the
// DSN to connect as that user: how a test sees the database as one of the programs.
func (db *DB) Login(t testing.TB, role string) string {
	t.Helper()
	user, password := unique("login"), rand.Text()
	member := ident(user)
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := execute(ctx, db.dsn,
		"CREATE ROLE "+member+" LOGIN PASSWORD '"+password+"' IN ROLE "+ident(role)); err != nil {
		t.Fatalf("create a login for %s: %v", role, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		if err := execute(ctx, db.dsn, "DROP OWNED BY "+member, "DROP ROLE "+member); err != nil {
			t.Errorf("drop the login for %s: %v", role, err)
		}
	})
	return db.As(user, password)
}

// Pool connects as the superuser; it closes when the test ends.
func (db *DB) Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), db.dsn)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Server is a Postgres server that only one test uses, and may break. Its address
// never changes.
type Server struct {
	DB
	faults
}

// PrivatePostgres starts a server for this test, migrated as the template says. It
// takes seconds: use it only to break it.
func PrivatePostgres(t testing.TB, from *Template) *Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	port, err := fixedPort()
	if err != nil {
		t.Fatal(err)
	}
	c, server, err := runPostgres(ctx, port)
	t.Cleanup(func() {
		if err := terminate(c); err != nil {
			t.Errorf("remove the private Postgres: %v", err)
		}
	})
	if err != nil {
		t.Fatalf("private Postgres: %v", err)
	}
	name := "private"
	if err := copyDatabase(ctx, server, name, "template0"); err != nil {
		t.Fatalf("create database: %v", err)
	}
	dsn := inDatabase(server, name)
	if from != nil {
		if err := from.migrate(ctx, dsn); err != nil {
			t.Fatalf("migrate: %v", err)
		}
	}
	return &Server{
		DB:     DB{dsn: dsn},
		faults: faults{container: c, ready: func(ctx context.Context) error { return answers(ctx, dsn) }},
	}
}

// sharedPostgres is the server this process shares: the one it was told about, or
// one it starts.
func sharedPostgres(ctx context.Context) (string, error) {
	s := &shared.postgres
	s.once.Do(func() {
		if dsn := os.Getenv("TURNPIKE_TEST_PG_DSN"); dsn != "" {
			s.dsn, s.err = dsn, answers(ctx, dsn)
			return
		}
		c, dsn, err := runPostgres(ctx, 0)
		if c != nil {
			shared.atEnd(func() error { return terminate(c) })
		}
		s.dsn, s.err = dsn, err
	})
	return s.dsn, s.err
}

// runPostgres starts a container. It returns one even with an error if there is
// something to remove.
func runPostgres(ctx context.Context, hostPort int) (testcontainers.Container, string, error) {
	useEngine()
	password := rand.Text()
	c, err := tcpostgres.Run(ctx, postgresImage(),
		tcpostgres.WithUsername(superuser),
		tcpostgres.WithPassword(password),
		tcpostgres.WithDatabase(adminDatabase),
		// No test survives the machine, so nothing waits for the disk.
		testcontainers.WithCmd("postgres", "-c", "fsync=off", "-c", "synchronous_commit=off",
			"-c", "full_page_writes=off", "-c", "max_connections=300"),
		labelled(),
		onLoopback("5432/tcp", hostPort),
	)
	if c == nil {
		return nil, "", err
	}
	if err != nil {
		return c, "", err
	}
	dsn, err := c.ConnectionString(ctx, "sslmode=disable")
	if err != nil {
		return c, "", err
	}
	return c, dsn, answers(ctx, dsn)
}

// answers waits until the server takes a query. The server that initialises the
// data folder listens on its socket only, so an answer comes from the real one.
func answers(ctx context.Context, dsn string) error {
	return until(ctx, "wait for Postgres", func(ctx context.Context) error {
		// A connection to a starting container may hang half open: bound each try.
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		return execute(ctx, dsn, "SELECT")
	})
}

// makeTemplate migrates a new database. Roles belong to the whole server, and
// processes that share it would create them at the same time: one lock on the
// server lets one migrate after the other.
func makeTemplate(ctx context.Context, server string, migrate func(context.Context, string) error) (string, error) {
	name := unique("template")
	if err := copyDatabase(ctx, server, name, "template0"); err != nil {
		return "", err
	}
	shared.atEnd(func() error { return dropDatabase(server, name) })
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }() // ends the lock in any case
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtext('turnpike.testenv.migrate'))"); err != nil {
		return "", err
	}
	return name, migrate(ctx, inDatabase(server, name))
}

func copyDatabase(ctx context.Context, server, name, template string) error {
	return until(ctx, "copy "+template, func(ctx context.Context) error {
		err := execute(ctx, server, "CREATE DATABASE "+ident(name)+" TEMPLATE "+ident(template))
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Code != objectInUse {
			return permanent{err}
		}
		return err
	})
}

func dropDatabase(server, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return execute(ctx, server, "DROP DATABASE IF EXISTS "+ident(name)+" WITH (FORCE)")
}

// objectInUse is what Postgres says while a closed connection's backend is still
// leaving the template.
const objectInUse = "55006"

func execute(ctx context.Context, dsn string, statements ...string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }() // nothing is lost with it
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

func inDatabase(server, name string) string {
	return edited(server, func(u *url.URL) { u.Path = "/" + name })
}

func ident(name string) string { return pgx.Identifier{name}.Sanitize() }
