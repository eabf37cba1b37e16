package egress

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"
)

const (
	// maxHead bounds the head of a request and of a response.
	maxHead = 1 << 20
	// keepTime is how long a connection is kept for another request.
	keepTime = 2 * time.Minute
)

// transport reaches port 80 of hosts that were judged.
func (p *Proxy) transport() *http.Transport {
	return &http.Transport{
		// A connection outlives the request it was made for.
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			name, port, err := splitHostPort(address)
			if err != nil {
				return nil, err
			}
			c, err := p.dial(p.ctx, name, port)
			if err != nil {
				return nil, err
			}
			return &kept{Conn: c, p: p}, nil
		},
		DisableCompression:     true, // a body goes through as it is
		IdleConnTimeout:        keepTime,
		ResponseHeaderTimeout:  idleTime,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxHead,
	}
}

// kept is a connection that Close ends until it ends by itself.
type kept struct {
	net.Conn
	p *Proxy
}

func (k *kept) Read(b []byte) (int, error) {
	n, err := k.Conn.Read(b)
	k.p.received.Add(int64(n))
	return n, err
}

func (k *kept) Write(b []byte) (int, error) {
	n, err := k.Conn.Write(b)
	k.p.sent.Add(int64(n))
	return n, err
}

func (k *kept) Close() error {
	k.p.drop(k.Conn)
	return nil
}

// serveHTTP forwards the requests of a connection that are for the host it is for.
func (p *Proxy) serveHTTP(c net.Conn, name string) {
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", name, r.In.Host
			r.Out.URL.RawQuery = r.In.URL.RawQuery // as it was, well-formed or not
		},
		Transport:     p.upstream,
		FlushInterval: -1, // a model's answer comes word by word
		ErrorLog:      log.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, fmt.Sprintf("turnpike: %s was not reached: %v", name, err), http.StatusBadGateway)
		},
	}
	ended := make(chan struct{})
	end := sync.OnceFunc(func() { close(ended) })
	var handling sync.WaitGroup
	server := http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handling.Add(1)
			defer handling.Done()
			if err := fits(r, name); err != nil {
				p.refuse(name, "port 80: %v", err)
				w.Header().Set("Connection", "close")
				http.Error(w, fmt.Sprintf("turnpike: this turn may not ask %s: %v", name, err), http.StatusForbidden)
				return
			}
			forward.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: greetingTime, IdleTimeout: keepTime, MaxHeaderBytes: maxHead,
		ErrorLog: log.New(io.Discard, "", 0),
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed || s == http.StateHijacked {
				end()
			}
		},
	}
	_ = server.Serve(&only{conn: c, ended: ended}) // it says that there is no second one
	handling.Wait()
}

// fits says what speaks against forwarding r to the host called name. Of upgrades it
// leaves that to WebSocket: after any other nobody could see whom a request is for.
func fits(r *http.Request, name string) error {
	host := strings.TrimSuffix(r.Host, ":80")
	if said, ok := canonical(host); !ok || said != name {
		return fmt.Errorf("a request for %q", r.Host)
	}
	if r.Method == http.MethodConnect || r.URL.Opaque != "" || r.URL.User != nil {
		return fmt.Errorf("a request of the form %s %q", r.Method, r.RequestURI)
	}
	if up := r.Header.Values("Upgrade"); len(up) != 1 || !strings.EqualFold(up[0], "websocket") {
		r.Header.Del("Upgrade")
	}
	return nil
}

// only is a listener that has one connection to give, and ends with it.
type only struct {
	conn  net.Conn
	given bool
	ended <-chan struct{}
}

func (o *only) Accept() (net.Conn, error) {
	if !o.given {
		o.given = true
		return o.conn, nil
	}
	<-o.ended
	return nil, net.ErrClosed
}

func (*only) Close() error     { return nil }
func (o *only) Addr() net.Addr { return o.conn.LocalAddr() }
