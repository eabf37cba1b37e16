package sbx

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"turnpike/internal/agent"
)

const (
	// EnvDaggerRunnerHost is the variable the Dagger CLI finds its engine by.
	EnvDaggerRunnerHost = "_EXPERIMENTAL_DAGGER_RUNNER_HOST"
	// daggerDir is where the Dagger CLI is installed inside.
	daggerDir  = "/tmp/turnpike-dagger"
	daggerURL  = "https://dl.dagger.io/dagger/releases"
	daggerTime = 5 * time.Minute
	dialTime   = 10 * time.Second
)

var (
	daggerVersion = regexp.MustCompile(`^v?(\d+\.\d+\.\d+)$`)
	containerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)
)

// dialer reaches something of the host for a connection from inside.
type dialer func(ctx context.Context) (io.ReadWriteCloser, error)

// engineDialer reaches a Dagger engine at its address, in any of its three forms.
func (e *Engine) engineDialer(engine, docker string) (dialer, error) {
	if path, ok := strings.CutPrefix(engine, "unix://"); ok && strings.HasPrefix(path, "/") {
		return dialTo("unix", path), nil
	}
	if at, ok := strings.CutPrefix(engine, "tcp://"); ok {
		if host, port, err := net.SplitHostPort(at); err == nil && host != "" && port != "" {
			return dialTo("tcp", at), nil
		}
	}
	if name, ok := strings.CutPrefix(engine, "docker-container://"); ok && containerName.MatchString(name) {
		// The engine's image has a program that joins its streams to the engine's
		// socket, under one of two names.
		const join = "if command -v dial-stdio >/dev/null; then exec dial-stdio; fi; exec buildctl dial-stdio"
		return func(context.Context) (io.ReadWriteCloser, error) {
			return startJoined(client{docker}.command(context.Background(), "exec", "-i", name, "sh", "-c", join))
		}, nil
	}
	return nil, unsupported("the Dagger engine %q is none of unix://<path>, tcp://<host>:<port> and docker-container://<name>", engine)
}

func dialTo(network, address string) dialer {
	return func(ctx context.Context) (io.ReadWriteCloser, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTime)
		defer cancel()
		return new(net.Dialer).DialContext(ctx, network, address)
	}
}

// joined is a program's streams as one connection.
type joined struct {
	io.Reader
	in  io.WriteCloser
	cmd *exec.Cmd
}

func startJoined(cmd *exec.Cmd) (*joined, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &joined{out, in, cmd}, nil
}

func (j *joined) Write(p []byte) (int, error) { return j.in.Write(p) }
func (j *joined) CloseWrite() error           { return j.in.Close() }

func (j *joined) Close() error {
	_ = killGroup(j.cmd) // it may have ended
	_ = j.cmd.Wait()     // its status says nothing here
	return nil
}

// installScript puts one release of the Dagger CLI, as its publisher's list of checksums
// has it, into a directory. Its arguments are the directory, the release, where releases
// are.
const installScript = `set -eu
dir=$1 version=$2 base=$3/$2
case $(uname -m) in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) echo "no release for $(uname -m)" >&2; exit 1 ;; esac
file=dagger_v${version}_linux_$arch.tar.gz
mkdir -p "$dir" && cd "$dir"
curl -fsSL -o "$file" "$base/$file"
curl -fsSL -o checksums.txt "$base/checksums.txt"
grep " [*]\{0,1\}$file\$" checksums.txt | sha256sum -c - >&2
tar -xzf "$file" dagger && rm "$file" checksums.txt
./dagger version`

// installDagger installs the Dagger CLI while nothing of the turn runs yet. The place
// it comes from is allowed for as long as that takes.
func (s *start) installDagger(ctx context.Context) error {
	d := s.box.Dagger
	if d == nil {
		return nil
	}
	m := daggerVersion.FindStringSubmatch(d.Version)
	if m == nil {
		return unsupported("the Dagger release %q is not written v0.20.5 or 0.20.5", d.Version)
	}
	is := regexp.MustCompile(`\bv?` + regexp.QuoteMeta(m[1]) + `\b`)
	if said, err := s.client.run(ctx, askTime, "exec", s.identity.ID, "dagger", "version"); err == nil && is.MatchString(said) {
		return nil // the template has it
	}
	from := s.engine.DaggerURL
	if from == "" {
		from = daggerURL
	}
	u, err := url.Parse(from)
	if err != nil || u.Host == "" {
		return unsupported("Dagger's releases at %q", from)
	}
	if s.network.nothing {
		return unsupported("the Dagger CLI cannot be fetched into a sandbox without a network: name domains, or use a template that has it")
	}
	host := u.Host
	if u.Port() == "" {
		host += ":443"
	}
	name := s.identity.ID
	allowed := !s.network.open && !slices.Contains(s.network.hosts, host)
	if allowed {
		if _, err := s.client.run(ctx, askTime, "policy", "allow", "network", "--sandbox", name, host); err != nil {
			return err
		}
	}
	said, err := s.client.run(ctx, daggerTime, "exec", name, "sh", "-c", installScript, "sh", daggerDir, m[1], from)
	if allowed {
		if _, taken := s.client.run(ctx, askTime, "policy", "rm", "network", "--sandbox", name, "--resource", host); taken != nil {
			return taken
		}
		if err := s.expect(ctx, false, host); err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("install the Dagger CLI: %w", err)
	}
	if !is.MatchString(said) {
		return fmt.Errorf("install the Dagger CLI: %w: it says %q, not %s", agent.ErrUnready, oneLine(said), m[1])
	}
	return nil
}
