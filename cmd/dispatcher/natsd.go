package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"turnpike/internal/job"
	"turnpike/internal/queue"
)

// natsd is the NATS server inside `dispatcher dev`: on loopback, with a user for
// each role and a password nobody else has.
type natsd struct {
	server    *server.Server
	passwords map[queue.Role]string
}

// natsPort is a fixed port so that a worker started by hand finds the server, too.
const natsPort = 8422

func startNATS(ctx context.Context, dir string, port int, log *slog.Logger) (*natsd, error) {
	n := &natsd{passwords: map[queue.Role]string{}}
	var users []*server.User
	for _, r := range queue.Roles() {
		n.passwords[r] = rand.Text()
		p := queue.PermissionsOf(r)
		users = append(users, &server.User{
			Username: string(r),
			Password: n.passwords[r],
			Permissions: &server.Permissions{
				Publish:   allow(p.Publish),
				Subscribe: allow(p.Subscribe),
			},
		})
	}
	s, err := server.NewServer(&server.Options{
		ServerName: "turnpike-dev",
		Host:       "127.0.0.1",
		Port:       port,
		JetStream:  true,
		StoreDir:   filepath.Join(dir, "nats"),
		Users:      users,
		NoSigs:     true, // this program's own signals are its own business
		NoLog:      true,
	})
	if err != nil {
		return nil, fmt.Errorf("set up NATS: %w", err)
	}
	s.SetLoggerV2(natsLog{log}, false, false, false)
	s.Start()
	limit := 10 * time.Second
	if d, ok := ctx.Deadline(); ok {
		limit = time.Until(d)
	}
	if !s.ReadyForConnections(limit) {
		s.Shutdown()
		s.WaitForShutdown()
		return nil, fmt.Errorf("NATS does not listen on 127.0.0.1:%d; is the port taken by another `dispatcher dev`? (see --nats-port): %w", port, job.ErrUnavailable)
	}
	n.server = s
	return n, nil
}

// allow lists subjects; an empty list must not mean everything.
func allow(subjects []string) *server.SubjectPermission {
	if len(subjects) == 0 {
		return &server.SubjectPermission{Deny: []string{">"}}
	}
	return &server.SubjectPermission{Allow: subjects}
}

func (n *natsd) url() string { return n.server.ClientURL() }

func (n *natsd) stop() {
	n.server.Shutdown()
	n.server.WaitForShutdown()
}

// natsLog passes the server's own log on, quietly: what it calls a notice is
// detail here.
type natsLog struct{ *slog.Logger }

func (l natsLog) Noticef(f string, a ...any) { l.say(slog.LevelDebug, f, a) }
func (l natsLog) Warnf(f string, a ...any)   { l.say(slog.LevelDebug, f, a) }
func (l natsLog) Errorf(f string, a ...any)  { l.say(slog.LevelWarn, f, a) }
func (l natsLog) Fatalf(f string, a ...any)  { l.say(slog.LevelError, f, a) }
func (l natsLog) Debugf(f string, a ...any)  { l.say(slog.LevelDebug, f, a) }
func (l natsLog) Tracef(string, ...any)      {}

func (l natsLog) say(level slog.Level, f string, a []any) {
	l.Log(context.Background(), level, "NATS server", "says", strings.TrimSpace(fmt.Sprintf(f, a...)))
}
