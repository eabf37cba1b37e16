//go:build linux

package egress_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"turnpike/internal/agent/egress"
	"turnpike/internal/agent/egress/door"
)

// told fails the test unless a refusal says want.
func told(t *testing.T, p *egress.Proxy, want string) {
	t.Helper()
	if all := p.Refusals(); !slices.ContainsFunc(all, func(s string) bool { return strings.Contains(s, want) }) {
		t.Errorf("%q is missing in %q", want, all)
	}
}

// hangsUp fails the test unless c ends without a word.
func hangsUp(t *testing.T, c net.Conn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("read %d bytes, %v", n, err)
	}
}

func serveHTTP(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func TestNames(t *testing.T) {
	t.Parallel()
	n := enter(t, egress.Limited([]string{"a.test", "*.b.test"}, nil))
	a, code := n.lookup(t, "udp", "a.test")
	if code != dnsmessage.RCodeSuccess || !netip.MustParsePrefix("127.64.0.0/10").Contains(a) {
		t.Fatalf("got %v, %v", a, code)
	}
	for _, network := range []string{"udp", "tcp"} {
		for name, want := range map[string]dnsmessage.RCode{
			"A.Test": dnsmessage.RCodeSuccess, "x.b.test": dnsmessage.RCodeSuccess,
			"c.test": dnsmessage.RCodeNameError, "b.test": dnsmessage.RCodeNameError, "a.test.evil": dnsmessage.RCodeNameError,
			"1.0.0.127.in-addr.arpa": dnsmessage.RCodeNameError, "_x.a.test": dnsmessage.RCodeNameError,
		} {
			got, code := n.lookup(t, network, name)
			if code != want || got.IsValid() != (want == dnsmessage.RCodeSuccess) {
				t.Errorf("%s over %s: %v, %v", name, network, got, code)
			}
			if name == "A.Test" && got != a {
				t.Errorf("the name has two addresses, %v and %v", a, got)
			}
		}
	}
	if got, _ := n.lookup(t, "udp", "localhost"); got != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("localhost is %v", got)
	}
	for kind, want := range map[dnsmessage.Type]dnsmessage.RCode{
		dnsmessage.TypeAAAA: dnsmessage.RCodeSuccess, dnsmessage.TypeTXT: dnsmessage.RCodeSuccess, 65: dnsmessage.RCodeSuccess,
	} {
		if got, code := address(t, n.p.Answer(query(t, "a.test", kind))); got.IsValid() || code != want {
			t.Errorf("%v: %v, %v", kind, got, code)
		}
	}
	if all := n.p.Refusals(); len(all) != 5 {
		t.Errorf("each name is told once: %q", all)
	}
}

func TestNamesAreBounded(t *testing.T) {
	t.Parallel()
	p, err := egress.New(egress.Limited(nil, nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range egress.MaxNames {
		if at, code := address(t, p.Answer(query(t, fmt.Sprintf("n%d.test", i), dnsmessage.TypeA))); !at.IsValid() || code != dnsmessage.RCodeSuccess {
			t.Fatalf("%d: %v, %v", i, at, code)
		}
	}
	if at, code := address(t, p.Answer(query(t, "more.test", dnsmessage.TypeA))); at.IsValid() || code != dnsmessage.RCodeServerFailure {
		t.Errorf("got %v, %v", at, code)
	}
	if at, _ := address(t, p.Answer(query(t, "n0.test", dnsmessage.TypeA))); !at.IsValid() {
		t.Error("a name that was known is none any more")
	}
	for i := range 1000 {
		p.Answer(query(t, fmt.Sprintf("n%d", i), dnsmessage.TypeA))
	}
	if all := p.Refusals(); len(all) > 65 {
		t.Errorf("%d refusals are told", len(all))
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	host := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/stream":
			fmt.Fprint(w, "data: one\n\n")
			w.(http.Flusher).Flush()
			<-hold
			fmt.Fprint(w, "data: two\n\n")
		case "/sum":
			sum := sha256.New()
			if _, err := io.Copy(sum, r.Body); err != nil {
				w.WriteHeader(http.StatusTeapot)
			}
			fmt.Fprintf(w, "%x", sum.Sum(nil))
		case "/socket":
			c, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			rw.Flush()
			_, _ = io.Copy(c, rw) // until either end closes
		default:
			fmt.Fprintf(w, "%s %s %s %q %q %q", r.Method, r.Host, r.RequestURI, r.Header.Get("Upgrade"), r.UserAgent(), r.Header.Get("Accept-Encoding"))
		}
	})
	n := enter(t, egress.Limited([]string{"web.test"}, map[string]string{"web.test:80": host}))
	ask := func(t *testing.T, c net.Conn, r *bufio.Reader, text string) (*http.Response, string) {
		t.Helper()
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res, string(body)
	}
	open := func(t *testing.T) (net.Conn, *bufio.Reader) {
		t.Helper()
		c := n.reach(t, "web.test", 80)
		return c, bufio.NewReader(c)
	}

	t.Run("forwards_requests_as_they_are", func(t *testing.T) {
		c, r := open(t)
		for range 2 {
			if res, body := ask(t, c, r, "GET /a%2Fb?x=1;y&%zz HTTP/1.1\r\nHost: Web.Test\r\n\r\n"); res.StatusCode != http.StatusOK || body != `GET Web.Test /a%2Fb?x=1;y&%zz "" "" ""` {
				t.Errorf("got %s %s", res.Status, body)
			}
		}
	})
	t.Run("judges_every_request_of_a_connection", func(t *testing.T) {
		c, r := open(t)
		if res, _ := ask(t, c, r, "GET / HTTP/1.1\r\nHost: web.test:80\r\n\r\n"); res.StatusCode != http.StatusOK {
			t.Errorf("got %s", res.Status)
		}
		if res, body := ask(t, c, r, "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"); res.StatusCode != http.StatusForbidden || !strings.Contains(body, "turnpike") {
			t.Errorf("got %s %s", res.Status, body)
		}
		hangsUp(t, c)
		told(t, n.p, `"web.test": port 80: a request for "evil.test"`)
	})
	for name, request := range map[string]string{
		"no_host":                  "GET / HTTP/1.0\r\n\r\n",
		"another_port":             "GET / HTTP/1.1\r\nHost: web.test:8080\r\n\r\n",
		"a_host_that_begins_alike": "GET / HTTP/1.1\r\nHost: web.test.evil\r\n\r\n",
		"a_host_with_a_user":       "GET / HTTP/1.1\r\nHost: web.test@evil.test\r\n\r\n",
		"a_URL_of_another_host":    "GET http://evil.test/ HTTP/1.1\r\nHost: web.test\r\n\r\n",
		"a_URL_with_a_user":        "GET http://web.test@evil.test/ HTTP/1.1\r\nHost: web.test\r\n\r\n",
		"a_tunnel":                 "CONNECT evil.test:443 HTTP/1.1\r\nHost: web.test\r\n\r\n",
		"a_tunnel_to_itself":       "CONNECT web.test HTTP/1.1\r\nHost: web.test\r\n\r\n",
		"an_opaque_URL":            "GET http:evil.test HTTP/1.1\r\nHost: web.test\r\n\r\n",
	} {
		t.Run("refuses_"+name, func(t *testing.T) {
			c, r := open(t)
			if res, body := ask(t, c, r, request); res.StatusCode < 400 {
				t.Errorf("got %s %s", res.Status, body)
			}
		})
	}
	t.Run("refuses_what_two_readers_might_read_differently", func(t *testing.T) {
		for _, request := range []string{
			"GET / HTTP/1.1\r\nHost: web.test\r\nHost: evil.test\r\n\r\n",
			"POST / HTTP/1.1\r\nHost: web.test\r\nContent-Length: 4\r\nContent-Length: 40\r\n\r\nGET ",
			"POST / HTTP/1.1\r\nHost: web.test\r\nTransfer-Encoding: x\r\n\r\n",
			"GET / HTTP/1.1\r\nHost : web.test\r\n\r\n",
			"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
			"\x16\x03\x01\x02\x00\r\n\r\n",
		} {
			c, r := open(t)
			if res, body := ask(t, c, r, request); res.StatusCode < 400 {
				t.Errorf("%q: got %s %s", request, res.Status, body)
			}
		}
	})
	t.Run("upgrades_to_nothing_it_cannot_judge", func(t *testing.T) {
		c, r := open(t)
		if _, body := ask(t, c, r, "GET / HTTP/1.1\r\nHost: web.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n"); body != `GET web.test / "" "" ""` {
			t.Errorf("got %s", body)
		}
	})
	t.Run("upgrades_to_websocket", func(t *testing.T) {
		c, r := open(t)
		if _, err := io.WriteString(c, "GET /socket HTTP/1.1\r\nHost: web.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("got %v, %v", res, err)
		}
		if _, err := io.WriteString(c, "hello\n"); err != nil {
			t.Fatal(err)
		}
		if got, err := r.ReadString('\n'); got != "hello\n" {
			t.Errorf("got %q, %v", got, err)
		}
	})
	t.Run("streams_an_answer_as_it_comes", func(t *testing.T) {
		c, r := open(t)
		if _, err := io.WriteString(c, "GET /stream HTTP/1.1\r\nHost: web.test\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		first := make([]byte, len("data: one\n\n"))
		if _, err := io.ReadFull(res.Body, first); err != nil || string(first) != "data: one\n\n" {
			t.Fatalf("got %q, %v", first, err)
		}
		close(hold)
		if rest, err := io.ReadAll(res.Body); string(rest) != "data: two\n\n" {
			t.Errorf("got %q, %v", rest, err)
		}
	})
	t.Run("carries_a_body_whole", func(t *testing.T) {
		body := make([]byte, 3<<20)
		if _, err := rand.Read(body); err != nil {
			t.Fatal(err)
		}
		c, r := open(t)
		before := n.p.Traffic().Sent
		if _, got := ask(t, c, r, fmt.Sprintf("POST /sum HTTP/1.1\r\nHost: web.test\r\nContent-Length: %d\r\n\r\n%s", len(body), body)); got != fmt.Sprintf("%x", sha256.Sum256(body)) {
			t.Errorf("got %s", got)
		}
		if sent := n.p.Traffic().Sent - before; sent < int64(len(body)) {
			t.Errorf("counted %d bytes", sent)
		}
	})
}

func TestTLS(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello ", r.Host) }))
	t.Cleanup(s.Close)
	n := enter(t, egress.Limited([]string{"a.test"}, map[string]string{"a.test:443": s.Listener.Addr().String()}))
	handshake := func(t *testing.T, c *tls.Config) (*tls.Conn, error) {
		t.Helper()
		c.InsecureSkipVerify = true // what is tested is the way, not the certificate
		conn := tls.Client(n.reach(t, "a.test", 443), c)
		err := conn.HandshakeContext(t.Context())
		return conn, err
	}
	for _, name := range []string{"a.test", "A.TEST"} {
		c, err := handshake(t, &tls.Config{ServerName: name})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "GET / HTTP/1.0\r\nHost: inside.test\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if answer, err := io.ReadAll(c); !bytes.Contains(answer, []byte("hello inside.test")) {
			t.Errorf("got %q, %v", answer, err)
		}
	}
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*tls.Config{
		"another_name":                  {ServerName: "evil.test"},
		"a_name_that_begins_alike":      {ServerName: "a.test.evil"},
		"no_name":                       {},
		"an_address":                    {ServerName: "192.0.2.1"},
		"a_name_hidden_behind_this_one": {ServerName: "evil.test", MinVersion: tls.VersionTLS13, EncryptedClientHelloConfigList: hides(key.PublicKey().Bytes(), "a.test")},
	} {
		t.Run("refuses_"+name, func(t *testing.T) {
			if _, err := handshake(t, c); err == nil {
				t.Error("it went through")
			}
		})
	}
	told(t, n.p, `"a.test": port 443: a greeting`)
	t.Run("refuses_what_is_not_TLS", func(t *testing.T) {
		c := n.reach(t, "a.test", 443)
		if _, err := io.WriteString(c, "SSH-2.0-OpenSSH_10.0\r\n"); err != nil {
			t.Fatal(err)
		}
		hangsUp(t, c)
	})
}

// hides makes a list of one configuration for hiding greetings behind one for name.
func hides(key []byte, name string) []byte {
	var c []byte
	c = append(c, 1)                             // its id
	c = binary.BigEndian.AppendUint16(c, 0x20)   // X25519 and HKDF-SHA256
	c = binary.BigEndian.AppendUint16(c, 32)     // the key
	c = append(c, key...)                        //
	c = append(c, 0, 4, 0, 1, 0, 1)              // HKDF-SHA256 and AES-128-GCM
	c = append(c, 32, byte(len(name)))           // the longest name, and this one
	c = append(append(c, name...), 0, 0)         // no extensions
	c = append([]byte{0, byte(len(c))}, c...)    //
	c = append([]byte{0xfe, 0x0d}, c...)         // the version
	return append([]byte{0, byte(len(c))}, c...) //
}

func TestHosts(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() {
				defer c.Close()
				// All that is said is heard before anything is answered.
				all, _ := io.ReadAll(c)
				_, _ = fmt.Fprintf(c, "heard %s", all)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		served.Wait()
	})
	to := l.Addr().String()
	n := enter(t, egress.Limited([]string{"mcp.test", "127.0.0.1"}, map[string]string{
		"mcp.test:9": to, "127.0.0.1:9": to, "127.0.0.1:443": to, "ungranted.test:9": to, "nobody.test:9": "127.0.0.1:1",
	}))
	say := func(t *testing.T, c net.Conn) {
		t.Helper()
		if _, err := io.WriteString(c, "hello"); err != nil {
			t.Fatal(err)
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); string(got) != "heard hello" {
			t.Errorf("got %q, %v", got, err)
		}
	}
	say(t, n.reach(t, "mcp.test", 9))
	for _, at := range []string{"127.0.0.1:9", "127.0.0.1:443"} {
		c, err := n.dial(t, "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		say(t, c)
	}
	if at, code := n.lookup(t, "udp", "ungranted.test"); at.IsValid() {
		t.Errorf("got %v, %v", at, code)
	}
	if _, err := n.dial(t, "tcp", to); err == nil {
		t.Error("the host's loopback answers")
	}
	if c, err := n.dial(t, "tcp", "127.0.0.1:80"); err == nil {
		hangsUp(t, c) // this address leads somewhere on 443 and 9 only
	}
	if got := n.p.Traffic(); got.Sent != 15 || got.Received != 33 {
		t.Errorf("counted %+v", got)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	const more = 40
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var now, peak atomic.Int32
	var served sync.WaitGroup
	came := make(chan struct{}, egress.MaxConnections+more)
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if k := now.Add(1); k > peak.Load() {
				peak.Store(k)
			}
			came <- struct{}{}
			served.Go(func() {
				_, _ = io.Copy(io.Discard, c)
				now.Add(-1)
				c.Close()
			})
		}
	})
	n := enter(t, egress.Limited([]string{"many.test"}, map[string]string{"many.test:9": l.Addr().String()}))
	t.Cleanup(func() {
		l.Close()
		served.Wait()
	})
	var open []net.Conn
	for range egress.MaxConnections + more {
		open = append(open, n.reach(t, "many.test", 9))
	}
	// Each that ends makes room for another, until all were served.
	for i := range open {
		<-came
		open[i].Close()
	}
	if k := int(peak.Load()); k > egress.MaxConnections || k < egress.MaxConnections/2 {
		t.Errorf("%d at a time", k)
	}
}

func TestDoors(t *testing.T) {
	t.Parallel()
	at := netip.MustParseAddrPort("127.0.0.1:0")
	t.Run("of_the_worker's_own_namespace_are_refused", func(t *testing.T) {
		near, far := pair(t)
		gave := make(chan error, 1)
		go func() { gave <- door.Give(far) }()
		err := door.Take(near, []door.Door{{Network: door.Datagram, Address: at}}, func(opened []*os.File) error {
			defer door.Close(opened)
			name, err := net.FilePacketConn(opened[0])
			if err != nil {
				return err
			}
			defer name.Close()
			d := door.Door{Network: door.Datagram, Address: name.LocalAddr().(*net.UDPAddr).AddrPort()}
			if err := (door.Door{Network: door.Stream, Address: d.Address}).Check(opened[0]); err == nil || !strings.Contains(err.Error(), "another socket") {
				t.Errorf("a datagram socket for a stream: %v", err)
			}
			return d.Check(opened[0])
		})
		if err == nil || !strings.Contains(err.Error(), "the worker's own network namespace") {
			t.Errorf("taken: %v", err)
		}
		if err := <-gave; err == nil || !strings.Contains(err.Error(), "the worker's own network namespace") {
			t.Errorf("given: %v", err)
		}
	})
	t.Run("that_are_missing_are_refused", func(t *testing.T) {
		near, far := pair(t)
		p, err := egress.New(egress.Rules{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		wrote := make(chan error, 1)
		go func() {
			_, err := far.Write([]byte("\n")) // a message without any
			wrote <- err
		}()
		if err := p.Attach(near); err == nil || !strings.Contains(err.Error(), "0 doors") {
			t.Errorf("got %v", err)
		}
		if err := <-wrote; err != nil {
			t.Error(err)
		}
	})
}

// TestInternet has hosts of the internet: a copy of this test runs in a namespace whose
// loopback has a public address and a private one.
func TestInternet(t *testing.T) {
	if os.Args[0] != worldName {
		t.Parallel()
		cmd := exec.Command("")
		cmd.Err = nil
		cmd.Args = []string{worldName, "-test.run=^TestInternet$", "-test.count=1", "-test.v"}
		apart(cmd)
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("--- PASS: TestInternet/")) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	var asked [3]atomic.Int32 // of the public address, the private one, and the machine's own
	for i, host := range []string{worldPublic, worldPrivate, worldOwn} {
		l, err := net.Listen("tcp4", host+":80")
		if err != nil {
			t.Fatal(err)
		}
		s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked[i].Add(1)
			w.Header().Set("Connection", "close")
		})}}
		s.Start()
		t.Cleanup(s.Close)
	}
	public, private := netip.MustParseAddr(worldPublic), netip.MustParseAddr(worldPrivate)
	dns := zone(t, map[string][]netip.Addr{
		"public.test.": {public}, "private.test.": {private}, "both.test.": {private, public},
		"self.test.": {netip.MustParseAddr("127.0.0.1")}, "own.test.": {netip.MustParseAddr(worldOwn)}, "none.test.": nil, "mapped.test.": {netip.MustParseAddr("::ffff:127.0.0.1")},
		"rebinds.test.": {public, {}, private}, // one after the other
	})
	get := func(t *testing.T, n *turn, name string) int {
		t.Helper()
		c := n.reach(t, name, 80)
		if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", name); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode
	}
	for domains, list := range map[string][]string{"any": nil, "listed": {"*.test"}} {
		t.Run(domains, func(t *testing.T) {
			n := enter(t, egress.Limited(list, nil))
			n.p.Resolve(dns(t))
			before := asked[0].Load()
			for name, want := range map[string]int{
				"public.test": 200, "both.test": 200, "private.test": 502, "self.test": 502, "own.test": 502, "none.test": 502, "mapped.test": 502,
			} {
				if got := get(t, n, name); got != want {
					t.Errorf("%s: %d", name, got)
				}
			}
			if got := asked[0].Load() - before; got != 2 {
				t.Errorf("the public host was asked %d times", got)
			}
			told(t, n.p, `"private.test": its address is not public`)
			told(t, n.p, `"none.test": there is no such host`)
			if got := get(t, n, "rebinds.test"); got != 200 {
				t.Errorf("before it rebinds: %d", got)
			}
			if got := get(t, n, "rebinds.test"); got != 502 {
				t.Errorf("after it rebinds: %d", got)
			}
		})
	}
	if private, own := asked[1].Load(), asked[2].Load(); private+own != 0 {
		t.Errorf("the private host was asked %d times, the machine itself %d times", private, own)
	}
}

// zone answers for names. Addresses behind an invalid one are what the name has when
// it is asked the next time. What it gives makes a resolver, that begins anew.
func zone(t *testing.T, names map[string][]netip.Addr) func(*testing.T) *net.Resolver {
	t.Helper()
	return func(t *testing.T) *net.Resolver {
		t.Helper()
		c, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var served sync.WaitGroup
		t.Cleanup(func() {
			c.Close()
			served.Wait()
		})
		served.Go(func() {
			seen := map[string]int{}
			buf := make([]byte, 4096)
			for {
				n, from, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				var m dnsmessage.Message
				if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
					continue
				}
				q := m.Questions[0]
				m.Response, m.Additionals = true, nil
				now := names[q.Name.String()]
				if i := slices.IndexFunc(now, func(a netip.Addr) bool { return !a.IsValid() }); i >= 0 {
					if seen[q.Name.String()] > 0 {
						now = now[i+1:]
					} else {
						now = now[:i]
					}
				}
				if q.Type == dnsmessage.TypeA {
					seen[q.Name.String()]++
				}
				if len(now) == 0 {
					m.RCode = dnsmessage.RCodeNameError
				}
				for _, a := range now {
					h := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}
					switch {
					case a.Is4() && q.Type == dnsmessage.TypeA:
						m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
					case a.Is4In6() && q.Type == dnsmessage.TypeAAAA:
						m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
					}
				}
				if text, err := m.Pack(); err == nil {
					_, _ = c.WriteTo(text, from)
				}
			}
		})
		at := c.LocalAddr().String()
		return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			d := net.Dialer{Timeout: 10 * time.Second}
			return d.DialContext(ctx, "udp4", at)
		}}
	}
}
