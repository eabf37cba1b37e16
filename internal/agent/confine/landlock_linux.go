//go:build amd64 || arm64

package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"turnpike/internal/agent"
)

// scopesABI is the first version of Landlock that keeps signals and abstract
// sockets inside; socketsABI the first that holds unix sockets to paths.
const (
	scopesABI  = 6
	socketsABI = 9
)

// What a rule allows beneath its path.
const (
	rightsList = unix.LANDLOCK_ACCESS_FS_READ_DIR
	rightsRead = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | rightsList |
		unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
	rightsShow  = rightsRead &^ unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
	rightsWrite = rightsRead | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER
	rightsDevice = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV | rightsList
	// rightsOfFile are those a rule on anything but a directory may have.
	rightsOfFile = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE |
		unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV |
		unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
)

// rule allows Rights beneath Path. With a pin, Path must be that file.
type rule struct {
	Path   string
	Rights uint64
	Pin    agent.Pin
	// Optional lets Path be absent.
	Optional bool
}

// landlockABI is the version of Landlock the kernel has; zero is none.
func landlockABI() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// handled are all the rights that this program and a kernel of version abi both
// know. What is handled and not allowed by a rule is refused. tcp leaves TCP alone.
func handled(abi int, tcp bool) unix.LandlockRulesetAttr {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1}
	for _, more := range []struct {
		abi    int
		rights uint64
	}{
		{2, unix.LANDLOCK_ACCESS_FS_REFER},
		{3, unix.LANDLOCK_ACCESS_FS_TRUNCATE},
		{5, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV},
		{socketsABI, unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX},
	} {
		if abi >= more.abi {
			attr.Handled_access_fs |= more.rights
		}
	}
	if abi >= 4 && !tcp {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if abi >= scopesABI {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	return attr
}

// restrictor is a ruleset that is not enforced yet. Whoever enforces it needs
// no_new_privs.
type restrictor struct{ fd int }

// newRestrictor opens what the rules name, so that it can be enforced after the
// means to open it were given up.
func newRestrictor(rules []rule, tcp bool) (restrictor, error) {
	attr := handled(landlockABI(), tcp)
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return restrictor{}, fmt.Errorf("ruleset: %w", errno)
	}
	r := restrictor{int(fd)}
	for _, rl := range rules {
		if err := r.allow(rl, attr.Handled_access_fs); err != nil {
			return r, err
		}
	}
	return r, nil
}

func (r restrictor) allow(rl rule, handled uint64) error {
	fd, err := unix.Openat2(unix.AT_FDCWD, rl.Path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err == unix.ENOENT && rl.Optional {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", agent.ErrPolicyChanged, rl.Path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("%s: %w", rl.Path, err)
	}
	if rl.Pin.Path != "" && (rl.Pin.Device != st.Dev || rl.Pin.Inode != st.Ino) {
		return fmt.Errorf("%w: %s is not what was verified", agent.ErrPolicyChanged, rl.Path)
	}
	rights := rl.Rights & handled
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= rightsOfFile
	}
	if rights == 0 {
		return nil
	}
	attr := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(r.fd), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("rule for %s: %w", rl.Path, errno)
	}
	return nil
}

// devices are the device files of a turn.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// rulesInside are the rules of a turn with a root of its own: the same paths its
// mounts show, once more.
func rulesInside(l layout) []rule {
	rules := []rule{
		{Path: "/", Rights: rightsList},
		{Path: "/proc", Rights: rightsShow},
		{Path: "/sys", Rights: rightsShow, Optional: true},
		{Path: "/dev", Rights: rightsDevice},
		{Path: "/dev/shm", Rights: rightsWrite},
		{Path: "/tmp", Rights: rightsWrite},
	}
	for _, s := range l.Steps {
		// A mask is inside another mount and hides by itself. What is mounted over
		// by an inner step is another file than its pin, so no pin is compared.
		if !s.mask() {
			rules = append(rules, rule{Path: s.Target, Rights: stepRights(s)})
		}
	}
	return rules
}

func stepRights(s step) uint64 {
	if s.Write {
		return rightsWrite
	}
	return rightsRead
}

// rulesOutside are the rules of a turn that sees the host's own root. Rules only
// add, so whatever would have to be taken away again is refused.
func rulesOutside(l layout) ([]rule, error) {
	rules := []rule{
		{Path: "/proc", Rights: rightsShow},
		{Path: "/sys/devices/system/cpu", Rights: rightsShow, Optional: true},
	}
	for _, d := range devices {
		rules = append(rules, rule{Path: "/dev/" + d, Rights: rightsDevice, Optional: true})
	}
	var masks []string
	files := map[agent.Pin]string{} // what is masked, by device and inode
	for _, s := range l.Steps {
		if s.mask() {
			masks = append(masks, s.Target)
			files[identityOf(s.Pin)] = s.Target
		}
	}
	for _, s := range l.Steps {
		if s.mask() {
			continue
		}
		for _, o := range l.Steps {
			inside := o.Target != s.Target && agent.Inside(o.Target, s.Target) || o.mask() && o.Target == s.Target
			if s.Write && inside && !o.Write {
				return nil, unsupported("without namespaces %s cannot be kept from a turn that may write %s", o.Target, s.Target)
			}
		}
		if denied, ok := files[identityOf(s.Pin)]; ok && denied != s.Target {
			return nil, unsupported("without namespaces %s cannot be told from %s, which is denied: they are one file", s.Target, denied)
		}
		if !slices.ContainsFunc(masks, func(m string) bool { return agent.Inside(m, s.Target) }) {
			rules = append(rules, rule{Path: s.Target, Rights: stepRights(s), Pin: s.Pin})
			continue
		}
		around, err := goAround(s.Target, masks, files)
		if err != nil {
			return nil, err
		}
		rules = append(rules, around...)
	}
	return rules, nil
}

// identityOf is the file of a pin, whatever names it.
func identityOf(p agent.Pin) agent.Pin { return agent.Pin{Device: p.Device, Inode: p.Inode} }

// goAround allows reading dir entry by entry, but for what is masked in it. The
// directories on the way can be listed. A rule for a file is one for its every name, so
// another name of a masked file, wherever it lies, gets none either.
func goAround(dir string, masks []string, files map[agent.Pin]string) ([]rule, error) {
	if slices.Contains(masks, dir) {
		return nil, nil
	}
	if !slices.ContainsFunc(masks, func(m string) bool { return agent.Inside(m, dir) }) {
		return []rule{{Path: dir, Rights: rightsRead, Optional: true}}, nil
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, unsupported("read %s to leave out what is denied: %v", dir, err)
	}
	rules := []rule{{Path: dir, Rights: rightsList}}
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink != 0 {
			continue // what it leads to decides
		}
		info, err := e.Info()
		if err != nil {
			continue // gone meanwhile
		}
		if _, denied := files[identity(info)]; denied {
			continue
		}
		inner, err := goAround(filepath.Join(dir, e.Name()), masks, files)
		if err != nil {
			return nil, err
		}
		rules = append(rules, inner...)
	}
	return rules, nil
}
