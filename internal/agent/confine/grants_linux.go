//go:build amd64 || arm64

package confine

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
)

// forbidden is a path that a grant must not be or contain and, where inside is
// set, not lie in either.
type forbidden struct {
	path   string
	inside bool
	why    string
}

// forbiddenPaths is the whole deny list. The boundary has its own reasons to refuse
// a grant; these are what confinement could not survive.
func forbiddenPaths(private []string) []forbidden {
	const engine = "it answers to whoever controls a container engine"
	list := []forbidden{
		{"/", false, "it is everything"},
		{"/proc", true, "it shows and controls other processes"},
		{"/sys", true, "it controls the machine"},
		{"/dev", true, "it holds devices"},
		{"/run", false, "it holds the sockets of services"},
		{"/run/user", true, "it holds the sockets of a user's services"},
		{"/run/docker", true, engine},
		{"/run/containerd", true, engine},
		{"/run/podman", true, engine},
		{"/var/lib/docker", true, engine},
		{"/var/lib/containerd", true, engine},
		{"/var/lib/containers", true, engine},
	}
	if u, err := user.Current(); err == nil && u.HomeDir != "" && u.HomeDir != "/" {
		list = append(list, forbidden{u.HomeDir, false, "it is a home directory, with its credentials"})
		for _, dir := range []string{".docker/run", ".docker/desktop", ".colima", ".rd", ".orbstack", ".lima"} {
			list = append(list, forbidden{filepath.Join(u.HomeDir, dir), true, engine})
		}
	}
	for _, p := range private {
		list = append(list, forbidden{p, false, "it is the worker's own"})
	}
	for _, f := range slices.Clone(list) {
		if real, err := filepath.EvalSymlinks(f.path); err == nil && real != f.path {
			list = append(list, forbidden{real, f.inside, f.why})
		}
	}
	return list
}

// kernelFilesystems are types of file system whose files are no files.
var kernelFilesystems = []string{
	"proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "securityfs", "debugfs", "tracefs",
	"configfs", "bpf", "efivarfs", "pstore", "binfmt_misc", "fusectl", "nsfs", "selinuxfs", "rpc_pipefs",
}

// surroundings are what a grant is checked against.
type surroundings struct {
	forbidden []forbidden
	kernel    []mounted
	sockets   []string
}

// mounted is a mount point of the host.
type mounted struct{ path, kind string }

func look(private []string) (surroundings, error) {
	s := surroundings{forbidden: forbiddenPaths(private)}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return s, fmt.Errorf("%w: which mounts there are: %w", agent.ErrUnsupported, err)
	}
	s.kernel = parseMounts(text)
	// No such file: no unix sockets in this kernel.
	text, err = os.ReadFile("/proc/net/unix")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("%w: which unix sockets there are: %w", agent.ErrUnsupported, err)
	}
	s.sockets = parseSockets(text)
	return s, nil
}

// parseMounts reads mountinfo and keeps the mount points of every type of file system.
func parseMounts(text []byte) []mounted {
	var out []mounted
	for line := range bytes.Lines(text) {
		before, after, ok := strings.Cut(string(line), " - ")
		f := strings.Fields(before)
		kind, _, _ := strings.Cut(after, " ")
		if ok && len(f) >= 5 {
			out = append(out, mounted{unescape(f[4]), kind})
		}
	}
	return out
}

// unescape turns the octal escapes of mountinfo back.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// parseSockets gives the paths that /proc/net/unix says sockets are bound to.
func parseSockets(text []byte) []string {
	var out []string
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		rest := lines.Text()
		for range 7 {
			_, rest, _ = strings.Cut(strings.TrimLeft(rest, " "), " ")
		}
		if strings.HasPrefix(rest, "/") {
			out = append(out, filepath.Clean(rest))
		}
	}
	return out
}

// admit refuses a grant that no turn may have.
func (s surroundings) admit(path string, denied []string) error {
	for _, f := range s.forbidden {
		if agent.Inside(f.path, path) || f.inside && agent.Inside(path, f.path) {
			return unsupported("mount %s reaches %s: %s", path, f.path, f.why)
		}
	}
	holder := mounted{path: "/"}
	for _, m := range s.kernel {
		if agent.Inside(path, m.path) && len(m.path) >= len(holder.path) {
			holder = m
		}
		if agent.Inside(m.path, path) && slices.Contains(kernelFilesystems, m.kind) {
			return unsupported("mount %s contains the file system %s (%s)", path, m.path, m.kind)
		}
	}
	if slices.Contains(kernelFilesystems, holder.kind) {
		return unsupported("mount %s lies in the file system %s (%s)", path, holder.path, holder.kind)
	}
	for _, sock := range s.sockets {
		if !agent.Inside(sock, path) || slices.ContainsFunc(denied, func(d string) bool { return agent.Inside(sock, d) }) {
			continue
		}
		if info, err := os.Lstat(sock); err == nil && info.Mode()&fs.ModeSocket != 0 {
			return unsupported("mount %s contains the unix socket %s, whose owner would answer the turn", path, sock)
		}
	}
	return nil
}

func checkPath(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || strings.ContainsRune(path, 0) {
		return unsupported("%q is no clean absolute path", path)
	}
	return nil
}

// pin gives the file path names. It must be a directory or a regular file, reached
// without a symbolic link.
func pin(path string) (agent.Pin, bool, error) {
	if err := checkPath(path); err != nil {
		return agent.Pin{}, false, err
	}
	// The host's view; the same is asked again where it is mounted.
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return agent.Pin{}, false, fmt.Errorf("%w: %s: %w", agent.ErrPolicyChanged, path, err)
	}
	defer unix.Close(fd)
	return pinned(fd, path)
}

// pinned gives the file that fd is open on.
func pinned(fd int, path string) (agent.Pin, bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return agent.Pin{}, false, fmt.Errorf("%w: %s: %w", agent.ErrPolicyChanged, path, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR, unix.S_IFREG:
		return agent.Pin{Path: path, Device: st.Dev, Inode: st.Ino}, st.Mode&unix.S_IFMT == unix.S_IFDIR, nil
	case unix.S_IFLNK:
		return agent.Pin{}, false, fmt.Errorf("%w: %s is a symbolic link", agent.ErrPolicyChanged, path)
	}
	return agent.Pin{}, false, unsupported("%s is neither a directory nor a regular file", path)
}

// Pins says what the mounts and metadata of c are now. Whoever verifies a
// confinement puts them into it.
func Pins(c agent.Confinement) ([]agent.Pin, error) {
	var pins []agent.Pin
	for _, path := range append(paths(c.Mounts), c.ReadOnlyMetadata...) {
		p, _, err := pin(path)
		if err != nil {
			return nil, err
		}
		pins = append(pins, p)
	}
	return pins, nil
}

func paths(mounts []agent.Mount) []string {
	var out []string
	for _, m := range mounts {
		out = append(out, m.Path)
	}
	return out
}
