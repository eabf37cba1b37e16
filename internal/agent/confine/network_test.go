//go:build linux && (amd64 || arm64)

package confine_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
	"turnpike/internal/agent/confine"
	"turnpike/internal/agent/egress"
)

// limit limits c to domains, served until the test ends.
func limit(t *testing.T, c *agent.Confinement, domains []string, hosts map[string]string) *egress.Proxy {
	t.Helper()
	p, err := egress.New(egress.Limited(domains, hosts), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	c.Network, c.Egress = agent.Network{Proxied: true, Domains: domains, Hosts: hosts}, p
	return p
}

// full runs do in a confinement of mode Full.
func full(t *testing.T, do func(t *testing.T, h confine.Confiner, r *room, c agent.Confinement)) {
	each(t, func(t *testing.T, mode confine.Mode, h confine.Confiner, r *room, c agent.Confinement) {
		if mode == confine.Full {
			do(t, h, r, c)
		}
	})
}

// TestLimitedAttacks has a turn that reaches some hosts try what one that reaches none
// tries: the rest of the network is as far away.
func TestLimitedAttacks(t *testing.T) {
	full(t, func(t *testing.T, h confine.Confiner, r *room, c agent.Confinement) {
		r.Socket = listen(t, "unix", r.Outside+"/s")
		r.Abstract = listen(t, "unix", "@turnpike-limited-"+r.Outside)
		r.Loopback = listen(t, "tcp", "127.0.0.1:0")
		limit(t, &c, nil, nil)
		met := r.play(t, h, c)
		compare(t, column{"full", kindOfUser()}, met, "look a name up") // which its own resolver refuses
	})
}

// TestResolvers has programs with resolvers of every kind reach hosts by name.
func TestResolvers(t *testing.T) {
	full(t, func(t *testing.T, h confine.Confiner, r *room, c agent.Confinement) {
		hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello %s", r.Host) })
		plain, secure := httptest.NewServer(hello), httptest.NewTLSServer(hello)
		t.Cleanup(plain.Close)
		t.Cleanup(secure.Close)
		domains, hosts := []string{"plain.test", "*.tls.test", "127.0.0.1"}, map[string]string{
			"plain.test:80": plain.Listener.Addr().String(), "a.tls.test:443": secure.Listener.Addr().String(),
			"plain.test:8080": plain.Listener.Addr().String(), "127.0.0.1:8899": plain.Listener.Addr().String(),
		}
		const node = `process.env.NODE_TLS_REJECT_UNAUTHORIZED = '0'
			const get = u => fetch(u).then(r => r.text()).then(console.log);
			const c = require('dns');
			get('http://plain.test/').then(() => get('https://a.tls.test/')).then(() => get('http://127.0.0.1:8899/'))
				.then(() => c.promises.resolve4('plain.test')).then(console.log)
				.then(() => c.promises.lookup('other.test')).catch(e => console.log(e.code))
				.then(() => c.promises.resolve4('other.test')).catch(e => console.log(e.code))`
		const python = `import socket, ssl, urllib.request as u
x = ssl._create_unverified_context()
print(u.urlopen('http://plain.test/').read(), u.urlopen('https://a.tls.test/', context=x).read(), u.urlopen('http://plain.test:8080/').read())
try: socket.getaddrinfo('other.test', 80)
except socket.gaierror as e: print(e.errno == socket.EAI_NONAME)`
		for _, row := range []struct {
			says    []string
			program []string
		}{
			{[]string{"hello plain.test"}, []string{"/usr/bin/curl", "-sS", "http://plain.test/"}},
			{[]string{"hello PLAIN.test."}, []string{"/usr/bin/curl", "-sS", "--ipv4", "http://PLAIN.test./"}},
			{[]string{"hello a.tls.test"}, []string{"/usr/bin/curl", "-sSk", "https://a.tls.test/"}},
			{[]string{"hello plain.test:8080"}, []string{"/usr/bin/curl", "-sS", "http://plain.test:8080/"}},
			{[]string{"hello 127.0.0.1:8899"}, []string{"/usr/bin/curl", "-sS", "http://127.0.0.1:8899/"}},
			{[]string{"Could not resolve host"}, []string{"/usr/bin/curl", "-sS", "http://other.test/"}},
			{[]string{"Could not resolve host"}, []string{"/usr/bin/curl", "-sS", "https://tls.test/"}},
			{[]string{"hello plain.test"}, []string{"/usr/bin/wget", "-qO-", "http://plain.test/"}},
			{[]string{"127.64.0."}, []string{"/usr/bin/getent", "ahosts", "plain.test"}},
			{[]string{"127.0.0.1"}, []string{"/usr/bin/getent", "ahostsv4", "localhost"}},
			{[]string{"hello plain.test", "hello a.tls.test", "hello 127.0.0.1:8899", "'127.64.0.", "ENOTFOUND\nENOTFOUND"}, []string{"/usr/bin/node", "-e", node}},
			{[]string{"hello plain.test' b'hello a.tls.test' b'hello plain.test:8080'", "True"}, []string{"/usr/bin/python3", "-c", python}},
			{[]string{"hello plain.test"}, []string{"/usr/bin/perl", "-MHTTP::Tiny", "-e", "print HTTP::Tiny->new->get('http://plain.test/')->{content}"}},
			{[]string{"CONNECTED"}, []string{"/usr/bin/openssl", "s_client", "-connect", "a.tls.test:443", "-servername", "a.tls.test"}},
		} {
			if _, err := os.Stat(row.program[0]); err != nil {
				continue // nothing is claimed of programs that are not here
			}
			limit(t, &c, domains, hosts) // each is a turn of its own, and a proxy serves one
			out, _ := run(t, h, c, []string{"NODE_NO_WARNINGS=1"}, row.program...)
			for _, want := range row.says {
				if !strings.Contains(out, want) {
					t.Errorf("%q: %q is missing in\n%s", row.program, want, out)
				}
			}
		}
	})
}

// reach is one thing a program with a limited network may try.
type reach struct {
	Name string
	// Address is what is dialled; Send is sent there, and what comes back is told.
	Network, Address, Send string
}

// reachName is argv[0] of a program that tries what its input asks for.
const reachName = "turnpike-reach"

// reachOut is that program. It tells an error, or the first line that came back.
func reachOut() {
	var tries []reach
	if err := json.NewDecoder(os.Stdin).Decode(&tries); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	out := json.NewEncoder(os.Stdout)
	for _, r := range tries {
		if err := out.Encode(r.try()); err != nil {
			os.Exit(1)
		}
	}
	os.Exit(0)
}

func (r reach) try() string {
	c, err := net.DialTimeout(r.Network, r.Address, 10*time.Second)
	if err != nil {
		return "error: " + err.Error()
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return "error: " + err.Error()
	}
	if _, err := io.WriteString(c, r.Send); err != nil {
		return "error: " + err.Error()
	}
	if r.Network == "udp" {
		return ""
	}
	answer := make([]byte, 4096)
	n, err := c.Read(answer)
	if err != nil {
		return "error: " + err.Error()
	}
	line, _, _ := bytes.Cut(answer[:n], []byte("\r\n"))
	return string(line)
}

// TestNetwork has a turn that may reach one host try to reach others: each way out of
// a network limited to domains that was found somewhere in public.
func TestNetwork(t *testing.T) {
	full(t, func(t *testing.T, h confine.Confiner, r *room, c agent.Confinement) {
		var asked atomic.Int32
		server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
		t.Cleanup(server.Close)
		host := server.Listener.Addr().String()
		r.Loopback = listen(t, "tcp", "127.0.0.1:0")
		p := limit(t, &c, []string{"allowed.test"}, map[string]string{"allowed.test:80": host})
		get := func(host string) string { return "GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n" }

		const none, unreachable, reset = "no such host", "unreachable", "connection reset"
		rows := []struct {
			reach
			want string
		}{
			{reach{"what is allowed", "tcp", "allowed.test:80", get("allowed.test")}, "200 OK"},
			{reach{"mixed case and a dot at the end", "tcp", "aLLoweD.Test.:80", get("ALLOWED.test.")}, "200 OK"},
			{reach{"a name that begins with an allowed one", "tcp", "allowed.test.evil:80", ""}, none},
			{reach{"a name that ends with an allowed one", "tcp", "notallowed.test:80", ""}, none},
			{reach{"a name below an allowed one", "tcp", "a.allowed.test:80", ""}, none},
			{reach{"the name above an allowed one", "tcp", "test:80", ""}, none},
			{reach{"another name", "tcp", "evil.test:443", ""}, none},
			{reach{"a name that says something", "udp", "c2VjcmV0.evil.test:53", "x"}, none},
			{reach{"a name with a user", "tcp", "allowed.test@evil.test:80", ""}, none},
			{reach{"a name with a NUL", "tcp", "evil.test\x00.allowed.test:80", ""}, none},
			{reach{"another host by the allowed one", "tcp", "allowed.test:80", get("evil.test")}, "403 Forbidden"},
			{reach{"another host in a URL", "tcp", "allowed.test:80", "GET http://evil.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n"}, "403 Forbidden"},
			{reach{"two hosts", "tcp", "allowed.test:80", "GET / HTTP/1.1\r\nHost: allowed.test\r\nHost: evil.test\r\n\r\n"}, "400 Bad Request"},
			{reach{"a proxy's method", "tcp", "allowed.test:80", "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n"}, "403 Forbidden"},
			{reach{"another port", "tcp", "allowed.test:22", ""}, "refused"},
			{reach{"plain text on 443", "tcp", "allowed.test:443", get("allowed.test")}, reset},
			{reach{"an address that stands for no name", "tcp", "127.64.9.9:443", get("allowed.test")}, reset},
			{reach{"the metadata address", "tcp", "169.254.169.254:80", ""}, unreachable},
			{reach{"the metadata address of IPv6", "tcp", "[fd00:ec2::254]:80", ""}, unreachable},
			{reach{"an address", "tcp", "192.0.2.1:443", ""}, unreachable},
			{reach{"an address of IPv6", "tcp", "[2001:db8::1]:443", ""}, unreachable},
			{reach{"an address of IPv4 in IPv6", "tcp", "[::ffff:192.0.2.1]:443", ""}, unreachable},
			{reach{"a resolver elsewhere", "udp", "192.0.2.1:53", "x"}, unreachable},
			{reach{"the host's loopback", "tcp", r.Loopback, ""}, "refused"},
			{reach{"where the name really leads", "tcp", host, get("allowed.test")}, "refused"},
		}
		// Numbers that resolvers take for addresses: none leads anywhere.
		for _, spelled := range []string{"3221225985", "0xc0000201", "0300.0.2.1", "192.0.513", "0xc0.0.2.1", "192.0.2.1."} {
			rows = append(rows, struct {
				reach
				want string
			}{reach{"an address as " + spelled, "tcp", spelled + ":443", ""}, "error: "})
		}
		tries := make([]reach, len(rows))
		for i, row := range rows {
			tries[i] = row.reach
		}
		input, err := json.Marshal(tries)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		tree, err := start(h, c, &exec.Cmd{
			Path: r.Bin + "/probe", Args: []string{reachName}, Env: []string{"PATH=/usr/bin:/bin"},
			Stdin: bytes.NewReader(input), Stdout: &out, Stderr: os.Stderr,
		})
		if err != nil {
			t.Fatal(err)
		}
		if exit, err := tree.Wait(); err != nil || exit != (agent.Exit{}) {
			t.Fatalf("ended with %+v, %v", exit, err)
		}
		d := json.NewDecoder(&out)
		for _, row := range rows {
			var got string
			if err := d.Decode(&got); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(got, row.want) {
				t.Errorf("%s: got %q, want %q", row.Name, got, row.want)
			}
		}
		if n := asked.Load(); n != 2 {
			t.Errorf("the allowed host was asked %d times, want 2", n)
		}
		told := p.Refusals()
		for _, want := range []string{`"evil.test": is none of this turn's hosts`, `"allowed.test": port 80: a request for "evil.test"`} {
			if !slices.ContainsFunc(told, func(s string) bool { return strings.Contains(s, want) }) {
				t.Errorf("%s is missing in %q", want, told)
			}
		}
	})
}

// TestNothingIsNothing: an empty list of domains is no host, and not all of them.
func TestNothingIsNothing(t *testing.T) {
	full(t, func(t *testing.T, h confine.Confiner, _ *room, c agent.Confinement) {
		server := httptest.NewServer(http.NotFoundHandler())
		t.Cleanup(server.Close)
		limit(t, &c, []string{}, map[string]string{"some.test:80": server.Listener.Addr().String()})
		if out, _ := run(t, h, c, nil, "/usr/bin/getent", "ahosts", "some.test"); out != "" {
			t.Errorf("got %s", out)
		}
	})
}

// TestDoorsAreServedOrNothingStarts: an agent never runs with a way out that nobody
// judges, nor without the one it was granted.
func TestDoorsAreServedOrNothingStarts(t *testing.T) {
	full(t, func(t *testing.T, h confine.Confiner, r *room, c agent.Confinement) {
		c.Network = agent.Network{Proxied: true}
		for name, way := range map[string]agent.Egress{"nobody": nil, "one who fails": broken{}, "one who hangs up": deaf{}} {
			c.Egress = way
			_, err := start(h, c, shell("echo ran > "+c.WorkDir+"/ran"))
			if !errors.Is(err, agent.ErrUnsupported) {
				t.Errorf("served by %s: %v", name, err)
			}
			if _, err := os.Stat(r.Work + "/ran"); err == nil {
				t.Errorf("served by %s: the agent ran", name)
			}
		}
	})
}

// broken takes no doors, deaf does not even listen.
type (
	broken struct{}
	deaf   struct{}
)

func (broken) Attach(c *net.UnixConn) error {
	_, err := io.WriteString(c, "no doors\n")
	return err
}

func (deaf) Attach(c *net.UnixConn) error { return c.Close() }

// TestDoorsEndWithTheTurn: what serves a turn holds its namespace no longer than it
// serves, and a connection ends with it.
func TestDoorsEndWithTheTurn(t *testing.T) {
	full(t, func(t *testing.T, h confine.Confiner, _ *room, c agent.Confinement) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		p := limit(t, &c, []string{"host.test"}, map[string]string{"host.test:7": l.Addr().String()})
		tree, _ := begin(t, h, c, &exec.Cmd{
			Path: "/bin/bash", Args: []string{"bash", "-c", "exec 5<>/dev/tcp/host.test/7; echo said >&5; echo ready; read -u 5 x"},
			Env: []string{"PATH=/usr/bin:/bin"}, Stderr: os.Stderr,
		})
		far, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer far.Close()
		said := make([]byte, 5)
		if _, err := io.ReadFull(far, said); err != nil || string(said) != "said\n" {
			t.Fatalf("got %q, %v", said, err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := far.Read(said); err == nil {
			t.Error("the connection goes on")
		}
		if exit, err := tree.Wait(); err != nil || exit == (agent.Exit{Code: -1, Signal: int(unix.SIGKILL)}) {
			t.Errorf("the agent's end of the connection stayed open: %+v, %v", exit, err)
		}
		if got := p.Traffic(); got.Sent != 5 || got.Received != 0 {
			t.Errorf("counted %+v", got)
		}
	})
}
