//go:build linux

package egress_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"turnpike/internal/agent/egress"
)

// FuzzAnswer: whatever is asked, only an allowed name has an address, and what is
// answered can be read.
func FuzzAnswer(f *testing.F) {
	f.Add(query(f, "a.test", dnsmessage.TypeA))
	f.Add(query(f, "evil.test", dnsmessage.TypeAAAA))
	f.Add(query(f, "a.test", dnsmessage.TypeA)[:20])
	f.Add([]byte("\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01")) // a name that points at itself
	p, err := egress.New(egress.Limited([]string{"a.test"}, nil), nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, asked []byte) {
		answer := p.Answer(asked)
		if answer == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(answer); err != nil || !m.Response || len(asked) < 2 || !bytes.Equal(answer[:2], asked[:2]) {
			t.Fatalf("answered %x: %v", answer, err)
		}
		for _, a := range m.Answers {
			name := strings.ToLower(a.Header.Name.String())
			if name != "a.test." && name != "localhost." && !strings.HasSuffix(name, ".localhost.") {
				t.Errorf("%s has an address", name)
			}
		}
	})
}

// FuzzGreeting: a greeting that is let through is passed on byte by byte, and names the
// host.
func FuzzGreeting(f *testing.F) {
	for _, name := range []string{"a.test", "evil.test"} {
		near, far := net.Pipe()
		go func() {
			_ = tls.Client(near, &tls.Config{ServerName: name}).Handshake() // it is not answered
		}()
		hello := make([]byte, 4096)
		n, err := far.Read(hello)
		if err != nil {
			f.Fatal(err)
		}
		far.Close()
		f.Add(hello[:n])
	}
	f.Add([]byte("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03"))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		read, err := egress.Greeting(saying{Reader: bytes.NewReader(said)}, "a.test")
		if err != nil {
			return
		}
		if !bytes.HasPrefix(said, read) {
			t.Errorf("read %x of %x", read, said)
		}
		if !bytes.Contains(bytes.ToLower(read), []byte("a.test")) {
			t.Errorf("%x names no host", read)
		}
	})
}

// saying is a connection that is only listened to.
type saying struct {
	net.Conn
	io.Reader
}

func (s saying) Read(b []byte) (int, error) { return s.Reader.Read(b) }

// FuzzRequest: a request that is let through asks for the host and nothing else, also
// in the words it is passed on in.
func FuzzRequest(f *testing.F) {
	for _, head := range []string{
		"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", "GET http://a.test/x HTTP/1.1\r\nHost: evil.test\r\n\r\n", "CONNECT a.test:80 HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: A.TEST.:80\r\n\r\n", "GET //evil.test/ HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
		"GET http:evil.test HTTP/1.1\r\nHost: a.test\r\n\r\n",
	} {
		f.Add([]byte(head))
	}
	f.Fuzz(func(t *testing.T, head []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
		if err != nil || egress.Fits(r, "a.test") != nil {
			return
		}
		if up := r.Header.Get("Upgrade"); up != "" && !strings.EqualFold(up, "websocket") {
			t.Errorf("upgrades to %q", up)
		}
		r.Body, r.ContentLength, r.TransferEncoding = nil, 0, nil
		r.URL.Scheme, r.URL.Host = "http", "a.test"
		var out bytes.Buffer
		if err := r.Write(&out); err != nil {
			return // it would not be sent either
		}
		again, err := http.ReadRequest(bufio.NewReader(&out))
		if err != nil {
			t.Fatalf("%q is passed on as what nobody reads: %v", head, err)
		}
		if err := egress.Fits(again, "a.test"); err != nil {
			t.Errorf("%q is passed on as one for another host: %v", head, err)
		}
	})
}

// FuzzCanonical: a name in canonical form stays as it is, and no resolver takes it for
// an address.
func FuzzCanonical(f *testing.F) {
	for _, name := range []string{"a.test", "A.TEST.", "127.0.0.1", "0x7f.1", "::1", "a@b.test"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got, ok := egress.Canonical(name)
		if !ok {
			return
		}
		if again, ok := egress.Canonical(got); !ok || again != got {
			t.Errorf("%q becomes %q and then %q", name, got, again)
		}
		if net.ParseIP(got) != nil || strings.ContainsAny(got, " @:/\\%\x00_") || !strings.EqualFold(got, strings.TrimSuffix(name, ".")) {
			t.Errorf("%q becomes %q", name, got)
		}
	})
}
