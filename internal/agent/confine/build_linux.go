//go:build amd64 || arm64

package confine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
	"turnpike/internal/agent/procs"
)

// Where the host's root and the files of the masks are while the turn's own root
// is put together. Nothing of either is left afterwards.
const (
	hostDir = "/.host"
	maskDir = "/.masks"
)

const (
	readOnly  = unix.MOUNT_ATTR_RDONLY | readWrite
	readWrite = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	// device files must stay devices.
	deviceFile = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC
)

// hidden are files of /proc that tell of the machine more than a turn needs. They
// matter only where the kernel shows them to a user without capabilities.
var hidden = []string{
	"/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/timer_list", "/proc/sched_debug",
	"/proc/latency_stats", "/proc/sysrq-trigger", "/proc/kallsyms", "/proc/kpagecount", "/proc/kpageflags",
}

// builder puts a root together in a mount namespace of its own.
type builder struct {
	root, host int // O_PATH descriptors of the turn's root and the host's
	// ours are the file systems made here: only in them is anything created.
	ours map[uint64]bool
}

// build makes the root of a turn and enters it. Each failure says its step.
func build(l layout, tmpBytes int64) (err error) {
	b := &builder{ours: make(map[uint64]bool)}
	steps := []struct {
		name string
		do   func() error
	}{
		{"make a root of its own", b.begin},
		{"make /dev", b.devices},
		{"make /tmp", func() error { return b.tmpfs("/tmp", 0o1777, tmpBytes, 0) }},
		{"make /proc", b.proc},
		{"show the processors", b.processors},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return procs.NewFailure(s.name, err, agent.ErrUnsupported)
		}
	}
	for i, s := range l.Steps {
		if err := b.mount(s, i); err != nil {
			return procs.NewFailure("mount "+s.Target, err, agent.ErrUnsupported)
		}
	}
	for _, ln := range l.Links {
		if err := b.symlink(ln); err != nil {
			return procs.NewFailure("link "+ln.Path, err, agent.ErrUnsupported)
		}
	}
	if err := b.finish(); err != nil {
		return procs.NewFailure("leave the host's root", err, agent.ErrUnsupported)
	}
	return nil
}

// begin makes an empty root and moves the host's beneath it.
func (b *builder) begin() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private: %w", err)
	}
	// Any directory there is will do to mount the root on for a moment.
	const at = "/proc"
	if err := unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=16m"); err != nil {
		return fmt.Errorf("tmpfs: %w", err)
	}
	if err := os.Mkdir(at+hostDir, 0o700); err != nil {
		return err
	}
	if err := unix.PivotRoot(at, at+hostDir); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	var err error
	if b.root, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	if b.host, err = unix.Open(hostDir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	if err := b.own("/"); err != nil {
		return err
	}
	// Executable, and with a directory for each mask: masks are many, the root small.
	return b.tmpfs(maskDir, 0o700, 0, 0)
}

// own counts the file system at path among those made here.
func (b *builder) own(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	b.ours[st.Dev] = true
	return nil
}

func (b *builder) tmpfs(path string, mode uint32, bytes int64, flags uintptr) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	data := fmt.Sprintf("mode=%o", mode)
	if bytes > 0 {
		data += fmt.Sprintf(",size=%d", bytes)
	}
	if err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|flags, data); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return b.own(path)
}

func (b *builder) devices() error {
	if err := b.tmpfs("/dev", 0o755, 1<<20, unix.MS_NOEXEC); err != nil {
		return err
	}
	for _, d := range devices {
		src, err := unix.Openat2(b.host, "dev/"+d, inRoot)
		if errors.Is(err, unix.ENOENT) && d == "tty" {
			continue
		}
		if err != nil {
			return fmt.Errorf("/dev/%s: %w", d, err)
		}
		var st unix.Stat_t
		if err = unix.Fstat(src, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFCHR {
			err = errors.New("is no device")
		}
		if err == nil {
			err = b.attach(src, "/dev/"+d, agent.Pin{}, false, deviceFile)
		}
		unix.Close(src)
		if err != nil {
			return fmt.Errorf("/dev/%s: %w", d, err)
		}
	}
	if err := b.tmpfs("/dev/shm", 0o1777, 256<<20, unix.MS_NOEXEC); err != nil {
		return err
	}
	if err := os.Mkdir("/dev/pts", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620"); err != nil {
		return fmt.Errorf("/dev/pts: %w", err)
	}
	for _, ln := range []link{
		{"/dev/ptmx", "pts/ptmx"}, {"/dev/fd", "/proc/self/fd"}, {"/dev/stdin", "/proc/self/fd/0"},
		{"/dev/stdout", "/proc/self/fd/1"}, {"/dev/stderr", "/proc/self/fd/2"},
	} {
		if err := os.Symlink(ln.Target, ln.Path); err != nil {
			return err
		}
	}
	return seal("/dev")
}

// proc shows the processes of this namespace only. It is read-only as a whole:
// uid 0 needs no capability to write what root owns in /proc/sys.
func (b *builder) proc() error {
	if err := os.Mkdir("/proc", 0o555); err != nil {
		return err
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RDONLY
	if err := unix.Mount("proc", "/proc", "proc", flags, ""); err != nil {
		return err
	}
	null, err := unix.Open("/dev/null", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(null)
	for _, path := range hidden {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := b.attach(null, path, agent.Pin{}, false, deviceFile|unix.MOUNT_ATTR_RDONLY); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// processors shows how many processors there are; runtimes size themselves by it.
func (b *builder) processors() error {
	const path = "sys/devices/system/cpu"
	src, err := unix.Openat2(b.host, path, inRoot)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(src)
	return b.attach(src, "/"+path, agent.Pin{}, true, readOnly|unix.MOUNT_ATTR_NOEXEC)
}

// inRoot opens what a path names without following any link on the way.
var inRoot = &unix.OpenHow{
	Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
}

// mount puts one step in place.
func (b *builder) mount(s step, n int) error {
	if s.Source == "" {
		return b.made(s, n)
	}
	src, err := unix.Openat2(b.host, strings.TrimPrefix(s.Source, "/"), inRoot)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", agent.ErrPolicyChanged, s.Source, err)
	}
	defer unix.Close(src)
	if err := verify(src, s); err != nil {
		return err
	}
	attr := uint64(readOnly)
	if s.Write {
		attr = readWrite
	}
	return b.attach(src, s.Target, s.Pin, s.Dir, attr)
}

// verify says whether fd is open on the file that was pinned.
func verify(fd int, s step) error {
	now, dir, err := pinned(fd, s.Target)
	if err != nil {
		return err
	}
	if now.Device != s.Pin.Device || now.Inode != s.Pin.Inode || dir != s.Dir {
		return fmt.Errorf("%w: %s is not what was verified", agent.ErrPolicyChanged, s.Target)
	}
	return nil
}

// made puts in place what is none of the host's: a file with a text of its own, or a
// mask, which covers a denied file with a program that says so, a denied directory
// with an empty one. Neither mask can be read.
func (b *builder) made(s step, n int) error {
	path := filepath.Join(maskDir, fmt.Sprint(n))
	var err error
	switch {
	case s.Text != "":
		err = os.WriteFile(path, []byte(s.Text), 0o444)
	case s.Dir:
		err = os.Mkdir(path, 0)
	default:
		err = os.WriteFile(path, standIn("turnpike: "+s.Target+" is denied to this turn\n"), 0o111)
	}
	if err != nil {
		return err
	}
	src, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(src)
	return b.attach(src, s.Target, s.Pin, s.Dir, readOnly)
}

// attach shows the file that src is open on at target. A target on a file system of the
// host must be the pinned file already, because the paths inside are the host's.
func (b *builder) attach(src int, target string, pin agent.Pin, dir bool, attr uint64) error {
	at, err := b.mountPoint(target, pin, dir)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	tree, err := unix.OpenTree(src, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer unix.Close(tree)
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attr}); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	if err := unix.MoveMount(tree, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// mountPoint opens target in the turn's root, creating what is missing where that
// is ours. Nothing is ever created on the host.
func (b *builder) mountPoint(target string, pin agent.Pin, dir bool) (int, error) {
	at, err := unix.Openat2(b.root, strings.TrimPrefix(target, "/"), inRoot)
	if errors.Is(err, unix.ENOENT) {
		at, err = b.createPath(target, dir)
	}
	if err != nil {
		return -1, fmt.Errorf("%w: %s: %w", agent.ErrPolicyChanged, target, err)
	}
	var st unix.Stat_t
	err = unix.Fstat(at, &st)
	if err == nil && pin.Inode != 0 && !b.ours[st.Dev] && (st.Dev != pin.Device || st.Ino != pin.Inode) {
		err = fmt.Errorf("%w: %s is not what was verified", agent.ErrPolicyChanged, target)
	}
	if err != nil {
		unix.Close(at)
		return -1, err
	}
	return at, nil
}

// createPath opens target name by name and creates what is missing.
func (b *builder) createPath(target string, dir bool) (int, error) {
	names := strings.FieldsFunc(target, func(c rune) bool { return c == '/' })
	at, err := unix.Openat2(b.root, ".", inRoot)
	if err != nil {
		return -1, err
	}
	for i, name := range names {
		next, err := unix.Openat2(at, name, inRoot)
		if errors.Is(err, unix.ENOENT) {
			next, err = b.create(at, name, dir || i < len(names)-1)
		}
		unix.Close(at)
		if err != nil {
			return -1, err
		}
		at = next
	}
	return at, nil
}

func (b *builder) create(at int, name string, dir bool) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return -1, err
	}
	if !b.ours[st.Dev] {
		return -1, unix.ENOENT
	}
	var err error
	if dir {
		err = unix.Mkdirat(at, name, 0o755)
	} else {
		err = unix.Mknodat(at, name, unix.S_IFREG|0o444, 0)
	}
	if err != nil {
		return -1, err
	}
	return unix.Openat2(at, name, inRoot)
}

func (b *builder) symlink(ln link) error {
	at, err := b.mountPoint(filepath.Dir(ln.Path), agent.Pin{}, true)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return err
	}
	if !b.ours[st.Dev] {
		return fmt.Errorf("%w: its directory is the host's", agent.ErrPolicyChanged)
	}
	if err := unix.Symlinkat(ln.Target, at, filepath.Base(ln.Path)); err != nil && err != unix.EEXIST {
		return err
	}
	return nil
}

// finish lets go of the host's root.
func (b *builder) finish() error {
	unix.Close(b.host)
	unix.Close(b.root)
	for _, dir := range []string{maskDir, hostDir} {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		if err := os.Remove(dir); err != nil {
			return err
		}
	}
	return seal("/")
}

// seal makes the mount at path, and none beneath it, read-only.
func seal(path string) error {
	if err := unix.MountSetattr(unix.AT_FDCWD, path, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
