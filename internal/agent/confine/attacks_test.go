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
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// probeName is argv[0] of the probe.
const probeName = "turnpike-probe"

// verdict is what became of an attempt.
type verdict string

const (
	works   verdict = "works"   // a need that was met
	fails   verdict = "fails"   // a need that was not
	refused verdict = "refused" // an attack that was
	// open is an attack that succeeded: documented, not claimed.
	open verdict = "open"
	// untried is what has no meaning in a placement, or would reach what no test made.
	untried verdict = "-"
)

// What holds an attempt, where it is held.
const (
	granted     = "granted"
	mounts      = "mount namespace, Landlock; container: mounts"
	system      = "system paths one by one; container: its image"
	readOnly    = "read-only mounts, Landlock"
	metadata    = "read-only mounts over the metadata"
	masks       = "masks by inode; Landlock: no rule"
	undumpable  = "a root that is not dumpable"
	pids        = "PID namespace, Landlock"
	scopes      = "namespaces, Landlock scopes"
	syscalls    = "seccomp"
	noCaps      = "no capabilities"
	nnp         = "no_new_privs"
	devs        = "a /dev of its own, Landlock"
	kernelFiles = "read-only /proc, Landlock"
	rlimits     = "rlimits"
	cloexec     = "close_range"
	environment = "the environment as granted"
	netns       = "network namespace; Landlock only: seccomp"
)

// attack is one thing an agent may try, or needs. What becomes of it under each
// placement is in testdata/verdicts.
type attack struct {
	name, by string
	needed   bool
	when     func(r *room) bool // nil is always
	try      func(r *room) error
}

func attempt(name, by string, try func(r *room) error) attack {
	return attack{name: name, by: by, try: try}
}

func need(name, by string, try func(r *room) error) attack {
	return attack{name: name, by: by, needed: true, try: try}
}

// inside limits a row to placements with a root of their own.
func (a attack) inside() attack {
	a.when = func(r *room) bool { return r.Inside }
	return a
}

// metadata limits a row to placements that can keep metadata inside what is writable.
func (a attack) metadata() attack {
	a.when = func(r *room) bool { return r.Metadata != "" }
	return a
}

// verdict judges what the row met.
func (a attack) verdict(met string, tried bool) verdict {
	switch {
	case !tried:
		return untried
	case a.needed && met == "":
		return works
	case a.needed:
		return fails
	case met == "":
		return open
	}
	return refused
}

// overNetwork are attacks that a turn with the open network is granted to make; those
// that would leave the machine are made only where they cannot.
var overNetwork = map[string]bool{
	"connect to the host's loopback": true,
	"connect out":                    true,
	"send a datagram out":            true,
	"look a name up":                 true,
}

// toHost are attacks that would meet what no test made, or harm the test itself, where
// nothing holds them.
var toHost = map[string]bool{
	"attach to the worker":                      true,
	"connect out":                               true,
	"send a datagram out":                       true,
	"look a name up":                            true,
	"connect to the container engine":           true,
	"connect to the container engine elsewhere": true,
	"connect to Postgres":                       true,
}

// ofImage are attacks on what is the image's own in a container.
var ofImage = map[string]bool{
	"read the shadow file": true, "read the root user's home": true, "list /run": true, "list /var": true,
}

// attacks is the table. A new row is all that a new attack needs.
var attacks = []attack{
	// Files that are not granted.
	attempt("read a file outside", mounts, func(r *room) error { return read(r.Outside + "/secret") }),
	attempt("list a directory outside", mounts, func(r *room) error { _, err := os.ReadDir(r.Outside); return err }),
	attempt("create a file outside", mounts, func(r *room) error { return create(r.Outside + "/new") }),
	attempt("stat a file outside", mounts, func(r *room) error { _, err := os.Stat(r.Outside + "/secret"); return err }),
	attempt("read outside through a link made inside", mounts, func(r *room) error {
		ln := r.Work + "/link"
		if err := os.Symlink(r.Outside+"/secret", ln); err != nil {
			return nil
		}
		defer os.Remove(ln)
		return read(ln)
	}),
	attempt("read outside through dots", mounts, func(r *room) error {
		return read(r.WorkDir + "/../../../../../../.." + r.Outside + "/secret")
	}),
	attempt("read outside through /proc/self/root", mounts, func(r *room) error {
		return read("/proc/self/root" + r.Outside + "/secret")
	}),
	attempt("read the shadow file", system, func(*room) error { return read("/etc/shadow") }),
	attempt("read the root user's home", system, func(*room) error { _, err := os.ReadDir("/root"); return err }),
	attempt("list /run", system, func(*room) error { _, err := os.ReadDir("/run"); return err }),
	attempt("list /var", system, func(*room) error { _, err := os.ReadDir("/var"); return err }),
	attempt("hard link a file outside into the workspace", mounts, func(r *room) error {
		return os.Link(r.Outside+"/secret", r.Work+"/hard")
	}),

	// What is granted for reading only.
	need("read a read-only file", granted, func(r *room) error { return read(r.ReadOnly + "/file") }),
	attempt("write a read-only file", readOnly, func(r *room) error { return overwrite(r.ReadOnly + "/file") }),
	attempt("truncate a read-only file", readOnly, func(r *room) error { return os.Truncate(r.ReadOnly+"/file", 0) }),
	attempt("create in a read-only directory", readOnly, func(r *room) error { return create(r.ReadOnly + "/new") }),
	attempt("rename in a read-only directory", readOnly, func(r *room) error {
		return os.Rename(r.ReadOnly+"/file", r.ReadOnly+"/renamed")
	}),
	attempt("move out of a read-only directory", readOnly, func(r *room) error {
		return os.Rename(r.ReadOnly+"/file", r.Work+"/moved")
	}),
	attempt("exchange with a read-only file", readOnly, func(r *room) error {
		return unix.Renameat2(unix.AT_FDCWD, r.ReadOnly+"/file", unix.AT_FDCWD, r.Work+"/file", unix.RENAME_EXCHANGE)
	}),
	attempt("remove a read-only file", readOnly, func(r *room) error { return os.Remove(r.ReadOnly + "/file") }),
	attempt("hard link a read-only file into the workspace", readOnly, func(r *room) error {
		if err := os.Link(r.ReadOnly+"/file", r.Work+"/hard"); err != nil {
			return err
		}
		defer os.Remove(r.Work + "/hard")
		return overwrite(r.Work + "/hard")
	}),
	attempt("chmod a read-only file", readOnly, func(r *room) error { return os.Chmod(r.ReadOnly+"/file", 0o600) }),
	attempt("change the times of a read-only file", readOnly, func(r *room) error {
		return os.Chtimes(r.ReadOnly+"/file", time.Unix(1, 0), time.Unix(1, 0))
	}),
	attempt("chown a read-only file", readOnly, func(r *room) error { return os.Chown(r.ReadOnly+"/file", os.Getuid(), os.Getgid()) }),
	attempt("set an attribute of a read-only file", readOnly, func(r *room) error {
		err := unix.Setxattr(r.ReadOnly+"/file", "user.test", []byte("1"), 0)
		if errors.Is(err, unix.ENOTSUP) {
			return nil
		}
		return err
	}),
	attempt("write a system file", readOnly, func(*room) error { return overwrite("/etc/passwd") }),
	attempt("create in /usr", readOnly, func(*room) error { return create("/usr/new") }),
	attempt("create in /", readOnly, func(*room) error { return create("/new") }),

	// What is granted for writing, and the metadata in it.
	need("create at the top of the workspace", granted, func(r *room) error { return create(r.WorkDir + "/new") }),
	need("write a file of the workspace", granted, func(r *room) error { return overwrite(r.WorkDir + "/file") }),
	need("create under the workspace's own path", granted, func(r *room) error { return create(r.Work + "/new2") }),
	need("rename between directories of the workspace", granted, func(r *room) error {
		return errors.Join(os.MkdirAll(r.WorkDir+"/a", 0o755), os.WriteFile(r.WorkDir+"/x", nil, 0o644),
			os.Rename(r.WorkDir+"/x", r.WorkDir+"/a/x"))
	}),
	need("chmod in the workspace", granted, func(r *room) error { return os.Chmod(r.WorkDir+"/file", 0o640) }),
	need("read metadata", granted, func(r *room) error { return read(r.WorkDir + "/.git/config") }).metadata(),
	attempt("write metadata", metadata, func(r *room) error { return overwrite(r.WorkDir + "/.git/config") }).metadata(),
	attempt("write metadata under its own path", metadata, func(r *room) error { return overwrite(r.Metadata + "/config") }).metadata(),
	attempt("create in metadata", metadata, func(r *room) error { return create(r.WorkDir + "/.git/hooks/pre-commit") }).metadata(),
	attempt("chmod metadata", metadata, func(r *room) error { return os.Chmod(r.WorkDir+"/.git/hooks/sample", 0o755) }).metadata(),
	attempt("rename metadata away", metadata, func(r *room) error { return os.Rename(r.WorkDir+"/.git", r.WorkDir+"/old") }).metadata(),
	attempt("rename metadata away under its own path", metadata, func(r *room) error { return os.Rename(r.Metadata, r.Work+"/old") }).metadata(),
	attempt("remove metadata", metadata, func(r *room) error { return os.RemoveAll(r.WorkDir + "/.git") }).metadata(),
	attempt("exchange metadata", metadata, func(r *room) error {
		if err := os.MkdirAll(r.WorkDir+"/fake", 0o755); err != nil {
			return nil
		}
		return unix.Renameat2(unix.AT_FDCWD, r.WorkDir+"/fake", unix.AT_FDCWD, r.WorkDir+"/.git", unix.RENAME_EXCHANGE)
	}).metadata(),
	attempt("rename the workspace away", metadata, func(r *room) error {
		if err := os.Rename(r.WorkDir, "/tmp/away"); err != nil {
			return err
		}
		return os.Rename("/tmp/away", r.WorkDir)
	}).metadata(),

	// Denied executables.
	attempt("run a denied executable", masks, func(r *room) error { return execute(r.Denied) }),
	attempt("run a denied executable through a symbolic link", masks, func(r *room) error { return execute(r.Bin + "/symlink") }),
	attempt("run a denied executable through a hard link", masks, func(r *room) error { return execute(r.Bin + "/hardlink") }),
	attempt("run a denied executable through /proc/self/root", masks, func(r *room) error { return execute("/proc/self/root" + r.Denied) }),
	attempt("copy a denied executable", masks, func(r *room) error {
		text, err := os.ReadFile(r.Denied)
		if err == nil && !strings.Contains(string(text), "denied ran") {
			err = errors.New("a stand-in's text") // which an engine's image may be able to read
		}
		return err
	}),
	attempt("have an interpreter read a denied executable", masks, func(r *room) error { return execute("/bin/sh", r.Denied) }),
	need("have a stand-in say so", granted, func(r *room) error {
		out, err := exec.Command(r.Denied).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 126 || !strings.Contains(string(out), "to this turn") {
			return errors.Join(errors.New("ran, or was stopped by something else: "+string(out)), err)
		}
		return nil
	}).inside(),
	attempt("write a denied executable", masks, func(r *room) error { return overwrite(r.Denied) }),
	attempt("chmod a denied executable readable", masks, func(r *room) error {
		if err := os.Chmod(r.Denied, 0o755); err != nil {
			return err
		}
		return read(r.Denied)
	}),
	attempt("run a denied executable through the dynamic linker", masks, func(r *room) error {
		return execute("/lib64/ld-linux-x86-64.so.2", r.Denied)
	}),
	attempt("rename a denied executable's directory away", masks, func(r *room) error {
		if err := os.Rename(r.Bin, r.Bin+".old"); err != nil {
			return err
		}
		return os.Rename(r.Bin+".old", r.Bin)
	}),
	attempt("unmask a denied executable", masks, func(r *room) error {
		return errors.Join(unix.Unmount(r.Denied, unix.MNT_DETACH), read(r.Denied))
	}),

	// Other processes.
	attempt("read the root's memory", undumpable, func(*room) error { return opens(fmt.Sprintf("/proc/%d/mem", os.Getppid())) }),
	attempt("read the root's environment", undumpable, func(*room) error { return read(fmt.Sprintf("/proc/%d/environ", os.Getppid())) }),
	attempt("follow the root's descriptors", undumpable, func(*room) error {
		_, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/3", os.Getppid()))
		return err
	}),
	attempt("reach the host through the root's root", undumpable, func(r *room) error {
		return read(fmt.Sprintf("/proc/%d/root%s/secret", os.Getppid(), r.Outside))
	}),
	attempt("open the launcher through the root", undumpable, func(*room) error { return read(fmt.Sprintf("/proc/%d/exe", os.Getppid())) }),
	attempt("read the worker's memory", pids, func(r *room) error { return readWorker(r, "mem") }),
	attempt("read the worker's environment", pids, func(r *room) error { return readWorker(r, "environ") }),
	attempt("read the worker's command line", pids, func(r *room) error { return readWorker(r, "cmdline") }),
	attempt("find a privilege on any thread of the root", noCaps, func(*room) error {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/status", os.Getppid()))
		if err != nil || len(tasks) == 0 {
			return nil
		}
		for _, path := range tasks {
			status, err := os.ReadFile(path)
			if err != nil {
				return nil
			}
			for line := range strings.Lines(string(status)) {
				f := strings.Fields(line)
				if len(f) == 2 && (slices.Contains([]string{"CapInh:", "CapPrm:", "CapEff:", "CapAmb:"}, f[0]) && f[1] != "0000000000000000" ||
					f[0] == "NoNewPrivs:" && f[1] != "1") {
					return nil
				}
			}
		}
		return errors.New("none")
	}),
	attempt("attach to the root", syscalls, func(*room) error { return attach(os.Getppid()) }),
	attempt("attach to the worker", syscalls, func(r *room) error { return attach(r.WorkerPID) }),
	attempt("signal the root", scopes, func(*room) error { return unix.Kill(os.Getppid(), unix.SIGURG) }),
	attempt("signal the worker", scopes, func(r *room) error { return unix.Kill(r.workerPID(), unix.SIGURG) }),
	attempt("read the memory of another process by system call", syscalls, func(*room) error {
		var b [8]byte
		local := unix.Iovec{Base: &b[0], Len: 8}
		_, err := unix.ProcessVMReadv(os.Getppid(), []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&b)), Len: 8}}, 0)
		return err
	}),
	attempt("take a descriptor of the root", syscalls, func(*room) error {
		fd, err := unix.PidfdOpen(os.Getppid(), 0)
		if err != nil {
			return err
		}
		_, err = unix.PidfdGetfd(fd, 3, 0)
		return err
	}),

	// The kernel.
	attempt("unshare a user namespace", syscalls, func(*room) error { return call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER) }),
	attempt("clone a user namespace", syscalls, func(*room) error { return call(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD)) }),
	attempt("clone3", syscalls, func(*room) error { return call(unix.SYS_CLONE3, 0, 88) }),
	attempt("setns", syscalls, func(*room) error { return call(unix.SYS_SETNS, 0, 0) }),
	attempt("mount", syscalls, func(r *room) error { return unix.Mount("tmpfs", r.Work, "tmpfs", 0, "") }),
	attempt("bind mount", syscalls, func(r *room) error { return unix.Mount("/", r.Work, "", unix.MS_BIND, "") }),
	attempt("remount the root writable", syscalls, func(*room) error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") }),
	attempt("open_tree", syscalls, func(*room) error { return call(unix.SYS_OPEN_TREE, ^uintptr(99), 0, unix.OPEN_TREE_CLONE) }),
	attempt("fsopen", syscalls, func(*room) error { _, err := unix.Fsopen("tmpfs", 0); return err }),
	attempt("chroot", syscalls, func(r *room) error { return unix.Chroot(r.Work) }),
	attempt("io_uring", syscalls, func(*room) error { return calledEPERM(unix.SYS_IO_URING_SETUP, 1, 0) }),
	attempt("bpf", syscalls, func(*room) error { return calledEPERM(unix.SYS_BPF, 0, 0, 0) }),
	attempt("perf_event_open", syscalls, func(*room) error { return calledEPERM(unix.SYS_PERF_EVENT_OPEN, 0, 0) }),
	attempt("userfaultfd", syscalls, func(*room) error { return calledEPERM(unix.SYS_USERFAULTFD, 1) }),
	attempt("keyctl", syscalls, func(*room) error { return calledEPERM(unix.SYS_KEYCTL, 0, 0, 0) }),
	attempt("fanotify", syscalls, func(*room) error { return calledEPERM(unix.SYS_FANOTIFY_INIT, 0, 0) }),
	attempt("open by handle", syscalls, func(*room) error { return calledEPERM(unix.SYS_OPEN_BY_HANDLE_AT, 0, 0, 0) }),
	attempt("kcmp", syscalls, func(*room) error { return calledEPERM(unix.SYS_KCMP, 0, 0, 0) }),
	attempt("read the kernel log", syscalls, func(*room) error { return calledEPERM(unix.SYS_SYSLOG, 10, 0, 0) }),
	attempt("type into a terminal", syscalls, func(*room) error {
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, 0, unix.TIOCSTI|1<<40, 0); e != unix.EPERM {
			return nil
		}
		return unix.EPERM
	}),
	attempt("make a device", noCaps, func(r *room) error { return unix.Mknod(r.Work+"/null", unix.S_IFCHR|0o666, 1<<8|3) }),
	attempt("open memory", devs, func(*room) error { return read("/dev/mem") }),
	attempt("open the kernel log", devs, func(*room) error { return read("/dev/kmsg") }),
	attempt("change a kernel setting", kernelFiles, func(*room) error { return overwriteWith("/proc/sys/kernel/core_pattern", "core") }),
	attempt("pull a kernel trigger", kernelFiles, func(*room) error { return overwriteWith("/proc/sysrq-trigger", "") }),
	attempt("have a capability", noCaps, func(*room) error {
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
	attempt("gain from an executable", nnp, func(*room) error {
		n, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
		if err != nil || n != 1 {
			return nil
		}
		return errors.New("no_new_privs")
	}),
	attempt("dump core", rlimits, func(*room) error {
		var l unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_CORE, &l) != nil || l.Max != 0 {
			return nil
		}
		return errors.New("limit 0")
	}),
	attempt("inherit a descriptor", cloexec, func(*room) error {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return nil
		}
		for _, e := range entries {
			n, err := strconv.Atoi(e.Name())
			to, _ := os.Readlink("/proc/self/fd/" + e.Name())
			// What a Go runtime opens for itself is not inherited.
			own := strings.Contains(to, "anon_inode") || strings.HasPrefix(to, "/proc/") || strings.HasPrefix(to, "/sys/fs/cgroup/") || to == ""
			if err == nil && n > 2 && !own {
				return nil
			}
		}
		return errors.New("none")
	}),
	attempt("find the environment of the worker", environment, func(*room) error {
		if env := os.Environ(); len(env) != 1 || !strings.HasPrefix(env[0], "PATH=") {
			return nil
		}
		return errors.New("PATH only")
	}),
	attempt("see the host's processes", pids, func(r *room) error {
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
	}),

	// The network, of which there is none.
	attempt("connect to the host's loopback", netns, func(r *room) error { return dial("tcp", r.Loopback) }),
	attempt("connect out", netns, func(*room) error { return dial("tcp", "192.0.2.1:443") }),
	attempt("send a datagram out", netns, func(*room) error {
		c, err := net.Dial("udp", "192.0.2.1:53")
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("x"))
		return err
	}),
	attempt("look a name up", netns, func(*room) error {
		_, err := net.LookupHost("exfiltrated.invalid")
		var failed *net.DNSError
		if errors.As(err, &failed) && failed.IsNotFound {
			return nil // somebody was asked
		}
		return err
	}),
	attempt("connect to a unix socket outside", mounts, func(r *room) error { return dial("unix", r.Socket) }),
	attempt("connect to an abstract socket of the host", scopes, func(r *room) error { return dial("unix", r.Abstract) }),
	attempt("connect to the container engine", mounts, func(*room) error { return dial("unix", "/var/run/docker.sock") }),
	attempt("connect to the container engine elsewhere", mounts, func(*room) error { return dial("unix", "/run/docker.sock") }),
	attempt("connect to Postgres", mounts, func(*room) error { return dial("unix", "/var/run/postgresql/.s.PGSQL.5432") }),
	attempt("open a raw socket", syscalls, func(*room) error { return socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) }),
	attempt("open a packet socket", syscalls, func(*room) error { return socket(unix.AF_PACKET, unix.SOCK_RAW, 0) }),
	attempt("open a vsock", syscalls, func(*room) error { return socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0) }),
	attempt("open a kernel crypto socket", syscalls, func(*room) error { return socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0) }),
	attempt("open a multipath socket", syscalls, func(*room) error { return socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP) }),
	attempt("open an SCTP socket", syscalls, func(*room) error { return socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP) }),
	attempt("connect by sending", syscalls, func(r *room) error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, &unix.SockaddrInet4{Port: 443, Addr: [4]byte{127, 0, 0, 1}})
	}),
	need("talk to itself over loopback", granted, func(*room) error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close()
		return dial("tcp", l.Addr().String())
	}),
	need("talk to itself over a unix socket", granted, func(r *room) error {
		l, err := net.Listen("unix", "@turnpike-own")
		if err != nil {
			return err
		}
		defer l.Close()
		return dial("unix", "@turnpike-own")
	}),

	// What every program needs.
	need("write to /dev/null", granted, func(*room) error { return overwriteWith("/dev/null", "x") }),
	need("read randomness", granted, func(*room) error { return read("/dev/urandom") }),
	need("use a socket pair", granted, func(*room) error { _, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0); return err }),
	need("use a pipe by its path", granted, func(*room) error {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		defer r.Close()
		return overwriteWith(fmt.Sprintf("/proc/self/fd/%d", w.Fd()), "x")
	}),
	need("use /tmp", granted, func(*room) error { return create("/tmp/new") }),
	need("use /dev/shm", granted, func(*room) error { return create("/dev/shm/new") }),
	need("open a pseudo terminal", granted, func(*room) error {
		fd, err := unix.Open("/dev/ptmx", unix.O_RDWR, 0)
		if err != nil {
			return err
		}
		_, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		return err
	}),
	need("list the workspace", granted, func(r *room) error { return list(r.WorkDir) }),
	need("be in the workspace", granted, func(r *room) error {
		dir, err := os.Getwd()
		if err == nil && dir != r.WorkDir {
			err = errors.New(dir)
		}
		return err
	}),
	need("run a shell", granted, func(*room) error {
		return execute("/bin/sh", "-c", "ls / >/dev/null; cat /etc/hosts | wc -l >/dev/null")
	}),
	need("find certificates", granted, func(*room) error { return list("/etc/ssl/certs") }),
	need("read the user table", granted, func(*room) error { return read("/etc/passwd") }),
	need("read its own process", granted, func(*room) error { return read("/proc/self/status") }),
	need("count processors", granted, func(*room) error { return read("/sys/devices/system/cpu/online") }),
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
		if r.Open && overNetwork[a.name] || r.Bare && toHost[a.name] || r.Image && ofImage[a.name] || a.when != nil && !a.when(&r) {
			continue
		}
		if r.Bare {
			// Nothing keeps what an attempt does from the next one's way.
			if err := r.furnish(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(2)
			}
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
	if file == "mem" {
		return opens(fmt.Sprintf("/proc/%d/mem", r.WorkerPID)) // nothing is at its first byte
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

func opens(path string) error {
	f, err := os.Open(path)
	if err == nil {
		f.Close()
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
