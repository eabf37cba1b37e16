package chaos_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

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

// crash ends every process of the server at once. None outlives it: it would hold the
// memory that the next server wants.
func (p *postgres) crash() {
	p.t.Helper()
	done := p.server.Done()
	p.signal(syscall.SIGSTOP) // what stands still begins no session
	sessions := childrenOf(p.postmaster())
	p.signal(syscall.SIGKILL)
	<-done
	again := time.NewTicker(time.Millisecond) // nothing tells of the end of another's child
	defer again.Stop()
	for slices.ContainsFunc(sessions, func(pid int) bool { state, _ := stat(pid); return state != "" && state != "Z" }) {
		<-again.C
	}
	p.down()
}

func (p *postgres) freeze() { p.signal(syscall.SIGSTOP) }
func (p *postgres) thaw()   { p.signal(syscall.SIGCONT) }

// signal signals the postmaster, which starts no process after that, and then its children.
func (p *postgres) signal(sig syscall.Signal) {
	p.t.Helper()
	postmaster := p.postmaster()
	children := childrenOf(postmaster)
	_ = syscall.Kill(postmaster, sig) // it is this test's own, and not waited for
	for _, pid := range append(children, childrenOf(postmaster)...) {
		_ = syscall.Kill(pid, sig) // a session may end just now
	}
}

func (p *postgres) postmaster() int {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.dir, "data", "postmaster.pid"))
	if err != nil {
		p.t.Fatal(err)
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	pid, err := strconv.Atoi(string(line))
	if err != nil {
		p.t.Fatal(err)
	}
	return pid
}

func childrenOf(parent int) (pids []int) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		panic(err) // the pattern is good
	}
	for _, dir := range all {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if _, of := stat(pid); of == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}

// stat gives a process's state and parent; none of one that is gone.
func stat(pid int) (state string, parent int) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0
	}
	// pid (name) state ppid
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 2 {
		return "", 0
	}
	parent, err = strconv.Atoi(fields[1])
	if err != nil {
		return "", 0
	}
	return fields[0], parent
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
