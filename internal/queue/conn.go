package queue

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"turnpike/internal/job"
)

// Config is how to reach the server. URL is required.
type Config struct {
	URL         string // one or more, separated by commas
	Name        string // shown in the server's connection list
	User        string
	Password    string
	Credentials string        // a credentials file, instead of user and password
	RootCA      string        // a PEM file that vouches for the server
	Role        Role          // chooses the inbox its permissions allow; zero uses the common one
	Timeout     time.Duration // every call's deadline; default 5 s
	Log         *slog.Logger
}

// Conn is a connection to the server that never gives up. Close it at the end.
type Conn struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	timeout time.Duration
	log     *slog.Logger
	closed  chan struct{}
}

// publishWindow is how many publications may be unacknowledged at once.
const publishWindow = 1024

// Connect returns a connection that may not be up yet: a server that is away is an
// outage like any other. Only settings that cannot work are errors.
func Connect(cfg Config) (*Conn, error) {
	if cfg.Timeout <= 0 {
		cfg.Timeout = 5 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Conn{timeout: cfg.Timeout, log: cfg.Log, closed: make(chan struct{})}
	options := []nats.Option{
		nats.Name(cfg.Name),
		nats.Timeout(cfg.Timeout),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, time.Second),
		nats.IgnoreAuthErrorAbort(),             // credentials may be put right while we wait
		nats.ReconnectBufSize(-1),               // a call fails now rather than be sent late
		nats.PingInterval(5 * time.Second),      // a connection that went silent
		nats.MaxPingsOutstanding(2),             // is given up after three of them
		nats.CustomInboxPrefix(inbox(cfg.Role)), // see Permissions
		nats.ClosedHandler(func(*nats.Conn) { close(c.closed) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				c.log.Warn("NATS connection lost; reconnecting", "err", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			c.log.Info("NATS connection is back", "server", nc.ConnectedServerName())
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			c.log.Warn("NATS reports", "subject", subject, "err", err)
		}),
	}
	switch {
	case cfg.Credentials != "":
		options = append(options, nats.UserCredentials(cfg.Credentials))
	case cfg.User != "":
		options = append(options, nats.UserInfo(cfg.User, cfg.Password))
	}
	if cfg.RootCA != "" {
		options = append(options, nats.RootCAs(cfg.RootCA))
	}
	nc, err := nats.Connect(cfg.URL, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	js, err := jetstream.New(nc,
		jetstream.WithPublishAsyncMaxPending(publishWindow),
		jetstream.WithPublishAsyncTimeout(cfg.Timeout),
		jetstream.WithDefaultTimeout(cfg.Timeout))
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	c.nc, c.js = nc, js
	return c, nil
}

// Close sends what was written, acks above all, and ends the connection.
func (c *Conn) Close() {
	if c.nc.IsConnected() {
		if err := c.nc.FlushTimeout(c.timeout); err != nil {
			c.log.Warn("NATS connection closed before all was sent", "err", err)
		}
	}
	c.js.CleanupPublisher()
	c.nc.Close()
	<-c.closed
}

// Check asks the server for a sign of life. It returns [job.ErrUnavailable] when
// there is none.
func (c *Conn) Check(ctx context.Context) error {
	if err := c.up("check NATS"); err != nil {
		return err
	}
	call, cancel := c.call(ctx)
	defer cancel()
	return kind(ctx, "check NATS", c.nc.FlushWithContext(call))
}

// call bounds one call.
func (c *Conn) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.timeout)
}

// up fails at once when there is no connection. Calls ask it first: some of the
// client's own paths would wait, or leave a subscription behind.
func (c *Conn) up(doing string) error {
	if !c.nc.IsConnected() {
		return fmt.Errorf("%s: %w: no connection to NATS", doing, job.ErrUnavailable)
	}
	return nil
}

// listen calls handle for every message on subject until ctx ends, and again when
// messages may have been missed: at the start and after each reconnect. It makes the
// subscription anew when it finds it invalid.
func (c *Conn) listen(ctx context.Context, subject string, handle func(*nats.Msg), again func()) error {
	for ctx.Err() == nil {
		msgs := make(chan *nats.Msg, 256)
		sub, err := c.nc.ChanSubscribe(subject, msgs)
		if err != nil {
			return fmt.Errorf("listen on %s: %w", subject, err) // closed, or no subject at all
		}
		again()
		c.hear(ctx, sub, msgs, handle, again)
		if c.nc.IsClosed() {
			return fmt.Errorf("listen on %s: %w", subject, nats.ErrConnectionClosed)
		}
		_ = sub.Unsubscribe() // fails only for a subscription that is gone already
	}
	return nil
}

// hear serves one subscription for as long as it is valid.
func (c *Conn) hear(ctx context.Context, sub *nats.Subscription, msgs <-chan *nats.Msg, handle func(*nats.Msg), again func()) {
	status := c.nc.StatusChanged(nats.CONNECTED)
	defer func() { c.nc.RemoveStatusListener(status) }()
	check := time.NewTicker(time.Second)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-msgs:
			handle(m)
		case _, open := <-status:
			if !open { // the client drops a listener that reads too slowly
				status = c.nc.StatusChanged(nats.CONNECTED)
			}
			again()
		case <-check.C:
			if !sub.IsValid() {
				return
			}
		}
	}
}
