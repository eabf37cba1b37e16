//go:build linux && (amd64 || arm64)

package confine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// probeName is argv[0] of the probe.
const probeName = "turnpike-probe"

// verdict is what must become of an attempt.
type verdict string

const (
	works   verdict = "works"
	refused verdict = "refused"
	// open is an attempt that succeeds although it should not: documented, not claimed.
	open verdict = "open"
	// absent is an attempt that has no meaning in a mode.
	absent verdict = "absent"
)

// attack is one thing an agent may try. Its verdict is what it meets with namespaces
// (full) and with Landlock alone, in a turn without network.
type attack struct {
	name           string
	full, landlock verdict
	try            func(r *room) error
}

func everywhere(v verdict, name string, try func(r *room) error) attack {
	return attack{name, v, v, try}
}

// overNetwork are attacks that a turn with the open network is granted to make; those
// that would leave the machine are made only where they cannot.
var overNetwork = map[string]bool{
	"connect to the host's loopback": true,
	"connect out":                    true,
	"send a datagram out":            true,
}

// attacks is the table. A new row is all that a new attack needs.
var attacks = []attack{
	// Files that are not granted.
	everywhere(refused, "read a file outside", func(r *room) error { return read(r.Outside + "/secret") }),
	everywhere(refused, "list a directory outside", func(r *room) error { _, err := os.ReadDir(r.Outside); return err }),
	everywhere(refused, "create a file outside", func(r *room) error { return create(r.Outside + "/new") }),
	{"stat a file outside", refused, open, func(r *room) error { _, err := os.Stat(r.Outside + "/secret"); return err }},
	everywhere(refused, "read outside through a link made inside", func(r *room) error {
		ln := r.Work + "/link"
		if err := os.Symlink(r.Outside+"/secret", ln); err != nil {
			return nil
		}
		defer os.Remove(ln)
		return read(ln)
	}),
	everywhere(refused, "read outside through dots", func(r *room) error {
		return read(r.WorkDir + "/../../../../../../.." + r.Outside + "/secret")
	}),
	everywhere(refused, "read outside through /proc/self/root", func(r *room) error {
		return read("/proc/self/root" + r.Outside + "/secret")
	}),
	everywhere(refused, "read the shadow file", func(*room) error { return read("/etc/shadow") }),
	everywhere(refused, "read the root user's home", func(*room) error { _, err := os.ReadDir("/root"); return err }),
	everywhere(refused, "list /run", func(*room) error { _, err := os.ReadDir("/run"); return err }),
	everywhere(refused, "list /var", func(*room) error { _, err := os.ReadDir("/var"); return err }),
	everywhere(refused, "hard link a file outside into the workspace", func(r *room) error {
		return os.Link(r.Outside+"/secret", r.Work+"/hard")
	}),

	// What is granted for reading only.
	everywhere(works, "read a read-only file", func(r *room) error { return read(r.ReadOnly + "/file") }),
	everywhere(refused, "write a read-only file", func(r *room) error { return overwrite(r.ReadOnly + "/file") }),
	everywhere(refused, "truncate a read-only file", func(r *room) error { return os.Truncate(r.ReadOnly+"/file", 0) }),
	everywhere(refused, "create in a read-only directory", func(r *room) error { return create(r.ReadOnly + "/new") }),
	everywhere(refused, "rename in a read-only directory", func(r *room) error {
		return os.Rename(r.ReadOnly+"/file", r.ReadOnly+"/renamed")
	}),
	everywhere(refused, "move out of a read-only directory", func(r *room) error {
		return os.Rename(r.ReadOnly+"/file", r.Work+"/moved")
	}),
	everywhere(refused, "exchange with a read-only file", func(r *room) error {
		return unix.Renameat2(unix.AT_FDCWD, r.ReadOnly+"/file", unix.AT_FDCWD, r.Work+"/file", unix.RENAME_EXCHANGE)
	}),
	everywhere(refused, "remove a read-only file", func(r *room) error { return os.Remove(r.ReadOnly + "/file") }),
	everywhere(refused, "hard link a read-only file into the workspace", func(r *room) error {
		if err := os.Link(r.ReadOnly+"/file", r.Work+"/hard"); err != nil {
			return err
		}
		defer os.Remove(r.Work + "/hard")
		return overwrite(r.Work + "/hard")
	}),
	{"chmod a read-only file", refused, open, func(r *room) error { return os.Chmod(r.ReadOnly+"/file", 0o600) }},
	{"change the times of a read-only file", refused, open, func(r *room) error {
		return os.Chtimes(r.ReadOnly+"/file", time.Unix(1, 0), time.Unix(1, 0))
	}},
	{"chown a read-only file", refused, open, func(r *room) error { return os.Chown(r.ReadOnly+"/file", os.Getuid(), os.Getgid()) }},
	{"set an attribute of a read-only file", refused, open, func(r *room) error {
		err := unix.Setxattr(r.ReadOnly+"/file", "user.test", []byte("1"), 0)
		if errors.Is(err, unix.ENOTSUP) {
			return nil
		}
		return err
	}},
	everywhere(refused, "write a system file", func(*room) error { return overwrite("/etc/passwd") }),
	everywhere(refused, "create in /usr", func(*room) error { return create("/usr/new") }),
	everywhere(refused, "create in /", func(*room) error { return create("/new") }),

	// What is granted for writing, and the metadata in it.
	everywhere(works, "create at the top of the workspace", func(r *room) error { return create(r.WorkDir + "/new") }),
	everywhere(works, "write a file of the workspace", func(r *room) error { return overwrite(r.WorkDir + "/file") }),
	everywhere(works, "create under the workspace's own path", func(r *room) error { return create(r.Work + "/new2") }),
	everywhere(works, "rename between directories of the workspace", func(r *room) error {
		return errors.Join(os.MkdirAll(r.WorkDir+"/a", 0o755), os.WriteFile(r.WorkDir+"/x", nil, 0o644),
			os.Rename(r.WorkDir+"/x", r.WorkDir+"/a/x"))
	}),
	everywhere(works, "chmod in the workspace", func(r *room) error { return os.Chmod(r.WorkDir+"/file", 0o640) }),
	{"read metadata", works, absent, func(r *room) error { return read(r.WorkDir + "/.git/config") }},
	{"write metadata", refused, absent, func(r *room) error { return overwrite(r.WorkDir + "/.git/config") }},
	{"write metadata under its own path", refused, absent, func(r *room) error { return overwrite(r.Metadata + "/config") }},
	{"create in metadata", refused, absent, func(r *room) error { return create(r.WorkDir + "/.git/hooks/pre-commit") }},
	{"chmod metadata", refused, absent, func(r *room) error { return os.Chmod(r.WorkDir+"/.git/hooks/sample", 0o755) }},
	{"rename metadata away", refused, absent, func(r *room) error { return os.Rename(r.WorkDir+"/.git", r.WorkDir+"/old") }},
	{"rename metadata away under its own path", refused, absent, func(r *room) error { return os.Rename(r.Metadata, r.Work+"/old") }},
	{"remove metadata", refused, absent, func(r *room) error { return os.RemoveAll(r.WorkDir + "/.git") }},
	{"exchange metadata", refused, absent, func(r *room) error {
		if err := os.MkdirAll(r.WorkDir+"/fake", 0o755); err != nil {
			return nil
		}
		return unix.Renameat2(unix.AT_FDCWD, r.WorkDir+"/fake", unix.AT_FDCWD, r.WorkDir+"/.git", unix.RENAME_EXCHANGE)
	}},
	{"rename the workspace away", refused, absent, func(r *room) error { return os.Rename(r.WorkDir, "/tmp/away") }},

	// Denied executables.
	everywhere(refused, "run a denied executable", func(r *room) error { return execute(r.Denied) }),
	everywhere(refused, "run a denied executable through a symbolic link", func(r *room) error { return execute(r.Bin + "/symlink") }),
	everywhere(refused, "run a denied executable through a hard link", func(r *room) error { return execute(r.Bin + "/hardlink") }),
	everywhere(refused, "run a denied executable through /proc/self/root", func(r *room) error { return execute("/proc/self/root" + r.Denied) }),
	everywhere(refused, "copy a denied executable", func(r *room) error { return read(r.Denied) }),
	everywhere(refused, "have an interpreter read a denied executable", func(r *room) error { return execute("/bin/sh", r.Denied) }),
	{"have a stand-in say so", works, absent, func(r *room) error {
		out, err := exec.Command(r.Denied).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 126 || !strings.Contains(string(out), "denied to this turn") {
			return errors.Join(errors.New("ran, or was stopped by something else: "+string(out)), err)
		}
		return nil
	}},
	everywhere(refused, "write a denied executable", func(r *room) error { return overwrite(r.Denied) }),
	everywhere(refused, "chmod a denied executable readable", func(r *room) error {
		if err := os.Chmod(r.Denied, 0o755); err != nil {
			return err
		}
		return read(r.Denied)
	}),
	everywhere(refused, "unmask a denied executable", func(r *room) error {
		return errors.Join(unix.Unmount(r.Denied, unix.MNT_DETACH), read(r.Denied))
	}),

	// Other processes.
	everywhere(refused, "read the root's memory", func(*room) error { return read(fmt.Sprintf("/proc/%d/mem", os.Getppid())) }),
	everywhere(refused, "read the root's environment", func(*room) error { return read(fmt.Sprintf("/proc/%d/environ", os.Getppid())) }),
	everywhere(refused, "follow the root's descriptors", func(*room) error {
		_, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/3", os.Getppid()))
		return err
	}),
	everywhere(refused, "reach the host through the root's root", func(r *room) error {
		return read(fmt.Sprintf("/proc/%d/root%s/secret", os.Getppid(), r.Outside))
	}),
	everywhere(refused, "open the launcher through the root", func(*room) error { return read(fmt.Sprintf("/proc/%d/exe", os.Getppid())) }),
	everywhere(refused, "read the worker's memory", func(r *room) error { return readWorker(r, "mem") }),
	everywhere(refused, "read the worker's environment", func(r *room) error { return readWorker(r, "environ") }),
	{"read the worker's command line", refused, open, func(r *room) error { return readWorker(r, "cmdline") }},
	everywhere(refused, "attach to the root", func(*room) error { return attach(os.Getppid()) }),
	everywhere(refused, "attach to the worker", func(r *room) error { return attach(r.WorkerPID) }),
	everywhere(refused, "signal the root", func(*room) error { return unix.Kill(os.Getppid(), unix.SIGURG) }),
	everywhere(refused, "signal the worker", func(r *room) error { return unix.Kill(r.workerPID(), unix.SIGURG) }),
	everywhere(refused, "read the memory of another process by system call", func(*room) error {
		var b [8]byte
		local := unix.Iovec{Base: &b[0], Len: 8}
		_, err := unix.ProcessVMReadv(os.Getppid(), []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&b)), Len: 8}}, 0)
		return err
	}),
	everywhere(refused, "take a descriptor of the root", func(*room) error {
		fd, err := unix.PidfdOpen(os.Getppid(), 0)
		if err != nil {
			return err
		}
		_, err = unix.PidfdGetfd(fd, 3, 0)
		return err
	}),

	// The kernel.
	everywhere(refused, "unshare a user namespace", func(*room) error { return call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER) }),
	everywhere(refused, "clone a user namespace", func(*room) error { return call(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD)) }),
	everywhere(refused, "clone3", func(*room) error { return call(unix.SYS_CLONE3, 0, 88) }),
	everywhere(refused, "setns", func(*room) error { return call(unix.SYS_SETNS, 0, 0) }),
	everywhere(refused, "mount", func(r *room) error { return unix.Mount("tmpfs", r.Work, "tmpfs", 0, "") }),
	everywhere(refused, "bind mount", func(r *room) error { return unix.Mount("/", r.Work, "", unix.MS_BIND, "") }),
	everywhere(refused, "remount the root writable", func(*room) error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") }),
	everywhere(refused, "open_tree", func(*room) error { return call(unix.SYS_OPEN_TREE, ^uintptr(99), 0, unix.OPEN_TREE_CLONE) }),
	everywhere(refused, "fsopen", func(*room) error { _, err := unix.Fsopen("tmpfs", 0); return err }),
	everywhere(refused, "chroot", func(r *room) error { return unix.Chroot(r.Work) }),
	everywhere(refused, "io_uring", func(*room) error { return calledEPERM(unix.SYS_IO_URING_SETUP, 1, 0) }),
	everywhere(refused, "bpf", func(*room) error { return calledEPERM(unix.SYS_BPF, 0, 0, 0) }),
	everywhere(refused, "perf_event_open", func(*room) error { return calledEPERM(unix.SYS_PERF_EVENT_OPEN, 0, 0) }),
	everywhere(refused, "userfaultfd", func(*room) error { return calledEPERM(unix.SYS_USERFAULTFD, 1) }),
	everywhere(refused, "keyctl", func(*room) error { return calledEPERM(unix.SYS_KEYCTL, 0, 0, 0) }),
	everywhere(refused, "fanotify", func(*room) error { return calledEPERM(unix.SYS_FANOTIFY_INIT, 0, 0) }),
	everywhere(refused, "open by handle", func(*room) error { return calledEPERM(unix.SYS_OPEN_BY_HANDLE_AT, 0, 0, 0) }),
	everywhere(refused, "kcmp", func(*room) error { return calledEPERM(unix.SYS_KCMP, 0, 0, 0) }),
	everywhere(refused, "read the kernel log", func(*room) error { return calledEPERM(unix.SYS_SYSLOG, 10, 0, 0) }),
	everywhere(refused, "type into a terminal", func(*room) error {
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, 0, unix.TIOCSTI|1<<40, 0); e != unix.EPERM {
			return nil
		}
		return unix.EPERM
	}),
	everywhere(refused, "make a device", func(r *room) error { return unix.Mknod(r.Work+"/null", unix.S_IFCHR|0o666, 1<<8|3) }),
	everywhere(refused, "open memory", func(*room) error { return read("/dev/mem") }),
	everywhere(refused, "open the kernel log", func(*room) error { return read("/dev/kmsg") }),
	everywhere(refused, "change a kernel setting", func(*room) error { return overwriteWith("/proc/sys/kernel/core_pattern", "core") }),
	everywhere(refused, "pull a kernel trigger", func(*room) error { return overwriteWith("/proc/sysrq-trigger", "") }),
	everywhere(refused, "have a capability", func(*room) error {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return nil
		}
		for line := range strings.Lines(string(status)) {
			f := strings.Fields(line)
			if strings.HasPrefix(line, "Cap") && f[1] != "0000000000000000" && (f[0] != "CapBnd:" || os.Getuid() == 0) {
				return nil
			}
		}
		return errors.New("none")
	}),
	everywhere(refused, "gain from an executable", func(*room) error {
		n, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
		if err != nil || n != 1 {
			return nil
		}
		return errors.New("no_new_privs")
	}),
	everywhere(refused, "dump core", func(*room) error {
		var l unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_CORE, &l) != nil || l.Max != 0 {
			return nil
		}
		return errors.New("limit 0")
	}),
	everywhere(refused, "inherit a descriptor", func(*room) error {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return nil
		}
		for _, e := range entries {
			n, err := strconv.Atoi(e.Name())
			to, _ := os.Readlink("/proc/self/fd/" + e.Name())
			if err == nil && n > 2 && !strings.Contains(to, "anon_inode") && !strings.HasPrefix(to, "/proc/") && to != "" {
				return nil
			}
		}
		return errors.New("none")
	}),
	everywhere(refused, "find the environment of the worker", func(*room) error {
		if env := os.Environ(); len(env) != 1 || !strings.HasPrefix(env[0], "PATH=") {
			return nil
		}
		return errors.New("PATH only")
	}),
	{"see the host's processes", refused, open, func(r *room) error {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return err
		}
		for _, e := range entries {
			if n, _ := strconv.Atoi(e.Name()); n > 100 {
				return nil
			}
		}
		return fs.ErrNotExist
	}},

	// The network, of which there is none.
	everywhere(refused, "connect to the host's loopback", func(r *room) error { return dial("tcp", r.Loopback) }),
	everywhere(refused, "connect out", func(*room) error { return dial("tcp", "192.0.2.1:443") }),
	everywhere(refused, "send a datagram out", func(*room) error {
		c, err := net.Dial("udp", "192.0.2.1:53")
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("x"))
		return err
	}),
	everywhere(refused, "connect to a unix socket outside", func(r *room) error { return dial("unix", r.Socket) }),
	everywhere(refused, "connect to an abstract socket of the host", func(r *room) error { return dial("unix", r.Abstract) }),
	everywhere(refused, "connect to the container engine", func(*room) error { return dial("unix", "/var/run/docker.sock") }),
	everywhere(refused, "connect to the container engine elsewhere", func(*room) error { return dial("unix", "/run/docker.sock") }),
	everywhere(refused, "connect to Postgres", func(*room) error { return dial("unix", "/var/run/postgresql/.s.PGSQL.5432") }),
	everywhere(refused, "open a raw socket", func(*room) error { return socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) }),
	everywhere(refused, "open a packet socket", func(*room) error { return socket(unix.AF_PACKET, unix.SOCK_RAW, 0) }),
	everywhere(refused, "open a vsock", func(*room) error { return socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0) }),
	everywhere(refused, "open a kernel crypto socket", func(*room) error { return socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0) }),
	everywhere(refused, "open a multipath socket", func(*room) error { return socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP) }),
	everywhere(refused, "open an SCTP socket", func(*room) error { return socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP) }),
	everywhere(refused, "connect by sending", func(r *room) error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, &unix.SockaddrInet4{Port: 443, Addr: [4]byte{127, 0, 0, 1}})
	}),
	{"talk to itself over loopback", works, refused, func(*room) error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close()
		return dial("tcp", l.Addr().String())
	}},
	{"talk to itself over a unix socket", works, refused, func(r *room) error {
		l, err := net.Listen("unix", "@turnpike-own")
		if err != nil {
			return err
		}
		defer l.Close()
		return dial("unix", "@turnpike-own")
	}},

	// What every program needs.
	everywhere(works, "write to /dev/null", func(*room) error { return overwriteWith("/dev/null", "x") }),
	everywhere(works, "read randomness", func(*room) error { return read("/dev/urandom") }),
	everywhere(works, "use a socket pair", func(*room) error { _, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0); return err }),
	everywhere(works, "use a pipe by its path", func(*room) error {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		defer r.Close()
		return overwriteWith(fmt.Sprintf("/proc/self/fd/%d", w.Fd()), "x")
	}),
	{"use /tmp", works, refused, func(*room) error { return create("/tmp/new") }},
	{"use /dev/shm", works, refused, func(*room) error { return create("/dev/shm/new") }},
	{"open a pseudo terminal", works, refused, func(*room) error {
		fd, err := unix.Open("/dev/ptmx", unix.O_RDWR, 0)
		if err != nil {
			return err
		}
		_, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		return err
	}},
	everywhere(works, "list the workspace", func(r *room) error { return list(r.WorkDir) }),
	everywhere(works, "be in the workspace", func(r *room) error {
		dir, err := os.Getwd()
		if err == nil && dir != r.WorkDir {
			err = errors.New(dir)
		}
		return err
	}),
	everywhere(works, "run a shell", func(*room) error {
		return execute("/bin/sh", "-c", "ls / >/dev/null; cat /etc/hosts | wc -l >/dev/null")
	}),
	everywhere(works, "find certificates", func(*room) error { return list("/etc/ssl/certs") }),
	everywhere(works, "read the user table", func(*room) error { return read("/etc/passwd") }),
	everywhere(works, "read its own process", func(*room) error { return read("/proc/self/status") }),
	everywhere(works, "count processors", func(*room) error { return read("/sys/devices/system/cpu/online") }),
}

// probe plays the agent: it tries the whole table and says what each attempt met.
func probe() {
	var r room
	if err := json.NewDecoder(os.Stdin).Decode(&r); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	runtime.LockOSThread() // attempts that change the thread
	out := json.NewEncoder(os.Stdout)
	for _, a := range attacks {
		if r.Open && overNetwork[a.name] {
			continue
		}
		if !r.Inside && a.landlock == absent {
			continue
		}
		met := ""
		if err := a.try(&r); err != nil {
			met = err.Error()
		}
		_ = out.Encode(struct{ Name, Met string }{a.name, met})
	}
	os.Exit(0)
}

func (r *room) workerPID() int {
	if r.Inside {
		// Its number may be anybody's in here; none is the worker's.
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", r.WorkerPID)); err == nil {
			return 1
		}
	}
	return r.WorkerPID
}

func readWorker(r *room, file string) error {
	if r.Inside && r.workerPID() != r.WorkerPID {
		return fs.ErrNotExist
	}
	return read(fmt.Sprintf("/proc/%d/%s", r.WorkerPID, file))
}

// read reads a first byte: opening is not always where access is decided.
func read(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Read(make([]byte, 1))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return err
}

func list(dir string) error { _, err := os.ReadDir(dir); return err }

func create(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	f.Close()
	return os.Remove(path)
}

func overwrite(path string) error { return overwriteWith(path, "") }

func overwriteWith(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(text)
	return err
}

func execute(args ...string) error { return exec.Command(args[0], args[1:]...).Run() }

func attach(pid int) error { return unix.PtraceAttach(pid) }

func call(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	r, _, e := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	if e != 0 {
		return e
	}
	if nr == unix.SYS_CLONE && r == 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0) // never returns
	}
	return nil
}

// calledEPERM is refused only by the filter's own error: bad arguments would be too.
func calledEPERM(nr uintptr, args ...uintptr) error {
	if err := call(nr, args...); errors.Is(err, unix.EPERM) {
		return err
	}
	return nil
}

func dial(network, address string) error {
	c, err := net.DialTimeout(network, address, 2*time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}

func socket(family, kind, protocol int) error {
	fd, err := unix.Socket(family, kind, protocol)
	if err == nil {
		unix.Close(fd)
	}
	return err
}
