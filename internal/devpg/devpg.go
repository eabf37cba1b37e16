// Package devpg runs a private, durable Postgres from the server binaries already
// on the machine, for `dispatcher dev`. It listens on a unix socket only, always
// demands a password, runs under another uid when the caller is root (Postgres
// refuses to run as root), and ends with its caller. It creates no schema and no
// users: those are the store's.
package devpg

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Kinds of failure a caller acts on.
var (
	// ErrNoBinaries says that the machine has no Postgres server.
	ErrNoBinaries = errors.New("no Postgres server binaries on this machine")
	// ErrInUse says that another process runs the server of this directory.
	ErrInUse = errors.New("in use by another process")
)

// Superuser is the name of the server's own superuser.
const Superuser = "postgres"

// maxSocketDir keeps "<dir>/.s.PGSQL.5432" under the kernel's 107 bytes (unix(7)).
const maxSocketDir = 107 - len("/.s.PGSQL.5432")

// Server is a running Postgres.
type Server struct {
	dir, sockets string
	tempSockets  bool
	password     string
	lock         *os.File
	cmd          *exec.Cmd
	done         chan struct{} // closed once the server has ended
	err          error         // how it ended; read after done
}

// Find returns the directory of the newest server binaries, or ErrNoBinaries.
func Find() (string, error) {
	var dirs []string
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin"} {
		found, err := filepath.Glob(pattern + "/postgres")
		if err != nil {
			return "", err
		}
		dirs = append(dirs, found...)
	}
	if len(dirs) > 0 {
		return filepath.Dir(slices.MaxFunc(dirs, func(a, b string) int { return major(a) - major(b) })), nil
	}
	if p, err := exec.LookPath("postgres"); err == nil {
		return filepath.Dir(p), nil
	}
	return "", ErrNoBinaries
}

// major is the version in a path such as /usr/lib/postgresql/15/bin/postgres.
func major(path string) int {
	best := 0
	for part := range strings.FieldsFuncSeq(path, func(r rune) bool { return r < '0' || r > '9' }) {
		if n, err := strconv.Atoi(part); err == nil && n < 1000 {
			best = max(best, n)
		}
	}
	return best
}

// Start runs the server whose data lives in dir, making it first when dir is new,
// and returns once it answers. It returns ErrInUse while another process has dir.
func Start(ctx context.Context, bin, dir string) (_ *Server, err error) {
	owner, err := owner()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the database's directory: %w", err)
	}
	s := &Server{dir: dir, done: make(chan struct{})}
	if s.lock, err = lockFile(filepath.Join(dir, "lock")); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.cleanUp()
		}
	}()
	if s.password, err = s.secret(); err != nil {
		return nil, err
	}
	if err := s.makeSockets(owner); err != nil {
		return nil, err
	}
	if err := s.initialise(ctx, bin, owner); err != nil {
		return nil, err
	}
	if err := s.launch(bin, owner); err != nil {
		return nil, err
	}
	if err := s.ready(ctx); err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

// owner is the uid the server runs under: nil for the caller's own.
func owner() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), Groups: []uint32{}}, nil
	}
	return nil, errors.New("running as root, and there is neither a user postgres nor nobody to run Postgres as")
}

func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("database directory %s: %w", filepath.Dir(path), ErrInUse)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// secret reads the superuser's password, or makes one.
func (s *Server) secret() (string, error) {
	path := filepath.Join(s.dir, "superuser-password")
	b, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(b)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	raw := make([]byte, 18)
	rand.Read(raw)
	password := hex.EncodeToString(raw)
	return password, os.WriteFile(path, []byte(password+"\n"), 0o600)
}

func (s *Server) makeSockets(owner *syscall.Credential) (err error) {
	s.sockets = filepath.Join(s.dir, "socket")
	if len(s.sockets) > maxSocketDir {
		s.sockets, err = os.MkdirTemp("", "turnpike-pg-")
		s.tempSockets = true
	} else {
		err = os.MkdirAll(s.sockets, 0o700)
	}
	if err != nil {
		return fmt.Errorf("make the socket's directory: %w", err)
	}
	return give(s.sockets, owner)
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// initialise makes the cluster unless it is there. It is made beside its place
// and moved there whole, so that a crash leaves none half made.
func (s *Server) initialise(ctx context.Context, bin string, owner *syscall.Credential) error {
	if _, err := os.Stat(filepath.Join(s.data(), "PG_VERSION")); err == nil {
		return nil
	}
	making := s.data() + ".new"
	if err := os.RemoveAll(making); err != nil {
		return err
	}
	if err := os.Mkdir(making, 0o700); err != nil {
		return err
	}
	if err := give(making, owner); err != nil {
		return err
	}
	pw, pwEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	defer pw.Close()
	if owner != nil { // initdb opens it by name, under its own uid
		if err := pw.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	if _, err := pwEnd.WriteString(s.password + "\n"); err != nil {
		return err
	}
	pwEnd.Close()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", making, "-U", Superuser, "--pwfile=/dev/fd/3",
		"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-instructions")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: owner}
	cmd.ExtraFiles = []*os.File{pw}
	cmd.Dir = making
	cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "LC_ALL=C.UTF-8"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, bytes.TrimSpace(out))
	}
	return os.Rename(making, s.data())
}

func (s *Server) launch(bin string, owner *syscall.Credential) error {
	log, err := os.OpenFile(filepath.Join(s.dir, "postgres.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = exec.Command(filepath.Join(bin, "postgres"), "-D", s.data(), "-k", s.sockets, "-h", "",
		"-c", "unix_socket_permissions=0700", "-c", "max_connections=100")
	s.cmd.Dir = s.data()
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "LC_ALL=C.UTF-8"}
	s.cmd.SysProcAttr = attributes(owner)
	started := make(chan error, 1)
	go func() {
		// The signal of a dying parent is that of the thread which started the
		// child (prctl(2)): this one lives as long as the server.
		runtime.LockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			s.err = s.cmd.Wait()
		}
		close(s.done)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	return nil
}

// ready waits until the server says that it takes connections.
func (s *Server) ready(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		// The last line of postmaster.pid is the server's state (pidfile.h); one
		// that is left over from a crash bears another pid.
		b, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
		if err == nil && bytes.HasPrefix(b, []byte(strconv.Itoa(s.cmd.Process.Pid)+"\n")) && bytes.Contains(b, []byte("\nready")) {
			return nil
		}
		select {
		case <-s.done:
			return fmt.Errorf("postgres ended while starting (%w); see %s", s.err, filepath.Join(s.dir, "postgres.log"))
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// DSN is the address of database db for a user, as libpq and pgx read it.
func (s *Server) DSN(db, user, password string) string {
	u := url.URL{Scheme: "postgres", Path: "/" + db}
	u.RawQuery = url.Values{"host": {s.sockets}, "user": {user}, "password": {password}, "sslmode": {"disable"}}.Encode()
	return u.String()
}

// SuperuserDSN is the address of database db for the superuser.
func (s *Server) SuperuserDSN(db string) string { return s.DSN(db, Superuser, s.password) }

// Done is closed when the server ended, wanted or not.
func (s *Server) Done() <-chan struct{} { return s.done }

// Stop ends the server, first cleanly. Its data stays.
func (s *Server) Stop() error {
	s.end()
	s.cleanUp()
	return nil
}

func (s *Server) end() {
	// SIGINT is Postgres' fast shutdown, SIGQUIT its immediate one.
	_ = s.cmd.Process.Signal(syscall.SIGINT) // fails only when it ended already
	select {
	case <-s.done:
	case <-time.After(20 * time.Second):
		_ = s.cmd.Process.Signal(syscall.SIGQUIT)
		<-s.done
	}
}

func (s *Server) cleanUp() {
	if s.tempSockets {
		os.RemoveAll(s.sockets)
	}
	s.lock.Close()
}

func give(path string, to *syscall.Credential) error {
	if to == nil {
		return nil
	}
	return os.Chown(path, int(to.Uid), int(to.Gid))
}
