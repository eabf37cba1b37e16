package chaos_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/devpg"
	"turnpike/internal/store"
)

// postgres is a private server that keeps its word: what it committed outlives kill -9.
// It listens on a socket alone, and whoever speaks to it does so through a proxy.
type postgres struct {
	t      testing.TB
	bin    string
	dir    string
	server *devpg.Server // nil: down
}

func startPostgres(t testing.TB, dir string) *postgres {
	t.Helper()
	bin, err := devpg.Find()
	if err != nil {
		t.Fatalf("%v: `make deps` installs them", err)
	}
	p := &postgres{t: t, bin: bin, dir: dir}
	p.up()
	t.Cleanup(func() {
		if p.server != nil {
			p.down()
		}
	})
	if _, err := store.Migrate(t.Context(), p.server.SuperuserDSN(database), nil); err != nil {
		t.Fatal(err)
	}
	return p
}

const database = "postgres"

// socket is the address that proxies dial.
func (p *postgres) socket() string { return filepath.Join(p.dir, "socket", ".s.PGSQL.5432") }

func (p *postgres) up() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	var err error
	if p.server, err = devpg.Start(ctx, p.bin, p.dir); err != nil {
		p.t.Fatal(err)
	}
}

// down ends the server in order.
func (p *postgres) down() {
	p.t.Helper()
	if err := p.server.Stop(); err != nil {
		p.t.Fatal(err)
	}
	p.server = nil
}

// crash ends every process of the server at once.
func (p *postgres) crash() {
	p.t.Helper()
	done := p.server.Done()
	// A session that begins just now would outlive it, and hold the memory that the next
	// one wants: what stands still begins none.
	p.signal(syscall.SIGSTOP)
	p.signal(syscall.SIGKILL)
	<-done
	p.down()
}

func (p *postgres) freeze() { p.signal(syscall.SIGSTOP) }
func (p *postgres) thaw()   { p.signal(syscall.SIGCONT) }

// signal signals the postmaster, which starts no process after that, and then its children.
func (p *postgres) signal(sig syscall.Signal) {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.dir, "data", "postmaster.pid"))
	if err != nil {
		p.t.Fatal(err)
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	postmaster, err := strconv.Atoi(string(line))
	if err != nil {
		p.t.Fatal(err)
	}
	children := childrenOf(postmaster)
	_ = syscall.Kill(postmaster, sig) // it is this test's own, and not waited for
	for _, pid := range append(children, childrenOf(postmaster)...) {
		_ = syscall.Kill(pid, sig) // a session may end just now
	}
}

func childrenOf(parent int) (pids []int) {
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		panic(err) // the pattern is good
	}
	for _, f := range all {
		b, err := os.ReadFile(f) // it may go while we look
		if err != nil {
			continue
		}
		// pid (name) state ppid
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			if err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// login makes a member of a role and gives its DSN through the proxy at addr.
func (p *postgres) login(role string) func(addr string) string {
	p.t.Helper()
	conn, err := pgx.Connect(p.t.Context(), p.server.SuperuserDSN(database))
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	password := rand.Text()
	if _, err := conn.Exec(p.t.Context(), fmt.Sprintf(`CREATE ROLE chaos_%s LOGIN PASSWORD '%s' IN ROLE %[1]s`, role, password)); err != nil {
		p.t.Fatal(err)
	}
	return func(addr string) string {
		return (&url.URL{
			Scheme: "postgres", User: url.UserPassword("chaos_"+role, password), Host: addr, Path: "/" + database, RawQuery: "sslmode=disable",
		}).String()
	}
}
