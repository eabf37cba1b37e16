package boundary

import (
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"turnpike/internal/agent"
)

// kernelDirs are no files of anybody: what they show changes, controls the
// machine, or answers on sockets.
var kernelDirs = []string{"/proc", "/sys", "/dev", "/run"}

// mounts resolves the granted mounts and refuses those that no turn may have.
func (h HostBoundary) mounts(g agent.Grants, vcs bool) ([]agent.Mount, error) {
	within := ""
	if g.Within != "" {
		actual, err := resolve(g.Within)
		if err != nil {
			return nil, notGranted("mounts are held within %q, which cannot be resolved: %v", g.Within, err)
		}
		within = actual
	}
	off, err := h.offLimits()
	if err != nil {
		return nil, err
	}
	access := map[string]agent.Access{}
	var mounts []agent.Mount
	for _, m := range g.Mounts {
		if m.Access != agent.ReadOnly && m.Access != agent.ReadWrite {
			return nil, notGranted("mount %q has access %q; it is %q or %q", m.Path, m.Access, agent.ReadOnly, agent.ReadWrite)
		}
		actual, err := resolve(m.Path)
		if err != nil {
			return nil, notGranted("mount %q cannot be resolved: %v", m.Path, err)
		}
		if within != "" && !agent.Inside(actual, within) {
			return nil, notGranted("mount %q is %q, outside %q", m.Path, actual, within)
		}
		if err := off.refuse(m.Path, actual); err != nil {
			return nil, err
		}
		if err := refuseKind(m.Path, actual); err != nil {
			return nil, err
		}
		if m.Access == agent.ReadWrite && !vcs && insideMetadata(actual) {
			return nil, notGranted("mount %q would let version control metadata be written", m.Path)
		}
		before, twice := access[actual]
		if twice && before != m.Access {
			return nil, notGranted("mount %q is granted both %q and %q", m.Path, before, m.Access)
		}
		access[actual] = m.Access
		if !twice {
			mounts = append(mounts, agent.Mount{Path: actual, Access: m.Access})
		}
	}
	// Outer before inner, whatever the order they were granted in.
	slices.SortFunc(mounts, func(a, b agent.Mount) int { return strings.Compare(a.Path, b.Path) })
	return mounts, nil
}

// resolve follows every link of an absolute path, as the kernel does: a ".."
// after a link is the parent of what the link names.
func resolve(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", &fs.PathError{Op: "resolve", Path: path, Err: errNotAbsolute}
	}
	if strings.ContainsRune(path, 0) {
		return "", &fs.PathError{Op: "resolve", Path: path, Err: fs.ErrInvalid}
	}
	return filepath.EvalSymlinks(path)
}

// offLimits are paths of the host that no mount may be, hold, or lie in.
type offLimits struct {
	private []string // not to be, hold or lie in
	homes   []string // not to be or hold
	sockets []string // not to be or hold
}

func (h HostBoundary) offLimits() (offLimits, error) {
	off := offLimits{private: slices.Clone(kernelDirs)}
	for _, dir := range append(slices.Clone(h.Private), h.SessionsDir) {
		if dir == "" {
			continue
		}
		actual, err := resolveExisting(dir)
		if err != nil {
			return off, notGranted("the worker's directory %q cannot be resolved: %v", dir, err)
		}
		off.private = append(off.private, actual)
	}
	homes := []string{}
	for _, pair := range h.environ() {
		name, value, _ := strings.Cut(pair, "=")
		switch name {
		case "HOME":
			homes = append(homes, value)
		case "DOCKER_HOST", "CONTAINER_HOST", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS":
			path := value[strings.LastIndexAny(value, ":=")+1:]
			if actual, err := resolve("/" + strings.TrimLeft(path, "/")); err == nil {
				off.sockets = append(off.sockets, actual)
			}
		}
	}
	if u, err := user.Current(); err == nil {
		homes = append(homes, u.HomeDir)
	}
	for _, home := range homes {
		// A home that is the root of everything says nothing about mounts.
		if actual, err := resolve(home); err == nil && actual != "/" {
			off.homes = append(off.homes, actual)
		}
	}
	return off, nil
}

func (off offLimits) refuse(path, actual string) error {
	if actual == "/" {
		return notGranted("mount %q is the root of the host", path)
	}
	for _, dir := range off.private {
		if agent.Inside(actual, dir) || agent.Inside(dir, actual) {
			return notGranted("mount %q reaches %q, which no turn may", path, dir)
		}
	}
	for _, dir := range off.homes {
		if agent.Inside(dir, actual) {
			return notGranted("mount %q holds the home directory %q; grant what is needed inside it", path, dir)
		}
	}
	for _, sock := range off.sockets {
		if agent.Inside(sock, actual) {
			return notGranted("mount %q holds the socket %q", path, sock)
		}
	}
	return nil
}

// refuseKind refuses whatever is neither a directory nor a regular file, and a
// directory of sockets: a service that listens in it would answer the turn, and
// would do so again after it made its socket anew.
func refuseKind(path, actual string) error {
	info, err := os.Lstat(actual)
	if err != nil {
		return notGranted("mount %q cannot be read: %v", path, err)
	}
	if info.Mode().IsRegular() {
		return nil
	}
	if !info.IsDir() {
		return notGranted("mount %q is neither a directory nor a regular file", path)
	}
	entries, err := os.ReadDir(actual)
	if err != nil {
		return notGranted("mount %q cannot be read: %v", path, err)
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSocket != 0 {
			return notGranted("mount %q holds the socket %q", path, e.Name())
		}
	}
	return nil
}

// resolveExisting resolves as much of path as there is, so that a directory that
// is yet to be made is known by the name it will have.
func resolveExisting(path string) (string, error) {
	if !filepath.IsAbs(path) {
		abs, err := filepath.Abs(path)
		if err != nil {
			return "", err
		}
		path = abs
	}
	path = filepath.Clean(path)
	rest := ""
	for {
		actual, err := filepath.EvalSymlinks(path)
		if err == nil {
			return filepath.Join(actual, rest), nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) || path == "/" {
			return "", err
		}
		rest = filepath.Join(filepath.Base(path), rest)
		path = filepath.Dir(path)
	}
}

// workingDir is where the turn works, which must lie inside a mount.
func workingDir(req agent.Request, turn agent.Turn) (string, error) {
	dir := req.Workspace.Dir
	actual, err := resolve(dir)
	if err != nil {
		return "", notGranted("working directory %q cannot be resolved: %v", dir, err)
	}
	if info, err := os.Stat(actual); err != nil || !info.IsDir() {
		return "", notGranted("working directory %q is no directory", dir)
	}
	if _, ok := agent.Deciding(turn.Mounts, actual); !ok {
		return "", notGranted("working directory %q lies in no granted mount", dir)
	}
	if !turn.VCS {
		return actual, nil
	}
	for _, m := range req.Workspace.Metadata {
		meta, err := resolve(m)
		if err != nil {
			return "", notGranted("version control metadata %q cannot be resolved: %v", m, err)
		}
		if d, ok := agent.Deciding(turn.Mounts, meta); !ok || d.Access != agent.ReadWrite {
			return "", notGranted("version control is granted, but its metadata %q lies in no mount that may be written", m)
		}
	}
	return actual, nil
}

// writeDirs are the writable directories beyond dir that the agent is told about.
func (h HostBoundary) writeDirs(turn agent.Turn, dir string) ([]string, error) {
	var dirs []string
	add := func(path string) {
		if !agent.Inside(path, dir) && !slices.Contains(dirs, path) {
			dirs = append(dirs, path)
		}
	}
	for _, m := range turn.Mounts {
		if info, err := os.Stat(m.Path); m.Access == agent.ReadWrite && err == nil && info.IsDir() {
			add(m.Path)
		}
	}
	for _, path := range h.AddDirs {
		actual, err := resolve(path)
		if err != nil {
			return nil, notGranted("directory %q to write cannot be resolved: %v", path, err)
		}
		if d, ok := agent.Deciding(turn.Mounts, actual); !ok || d.Access != agent.ReadWrite {
			return nil, notGranted("directory %q to write is not granted read-write", path)
		}
		add(actual)
	}
	return dirs, nil
}
