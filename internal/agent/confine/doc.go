// Package confine has the operating system hold a process to an
// agent.Confinement, or refuses to start it. It decides nothing about what a turn
// may have; that is the boundary's. The processes themselves are package procs'.
//
// # Linux
//
// A mount namespace of the turn's own is the primary means: what is not granted is
// not there. Landlock, seccomp and the absence of every capability are stacked on
// it, so that no single fault opens the host. Namespaces for processes, IPC, host
// name and control groups are always new; one for the network is new when the turn
// has no network. As root this needs no more; as an ordinary user it takes a user
// namespace in which every id is itself, so that what a turn creates belongs to the
// worker's user. A turn of root stays uid 0 without a single capability.
//
// The steps, in order (package procs has the processes they happen in):
//
//	worker   resolve and pin every path; arrange the mounts; seal the policy in a
//	         memory file; clone into the namespaces
//	root     a tmpfs root; /dev, /dev/shm, /tmp and /proc of its own; system paths
//	stage    and grants, the outermost first, each opened in the new namespace
//	         without following a link and compared with its pin; metadata again,
//	         read-only; denied paths masked; the loopback interface; the host's root
//	         let go; capabilities, bounding set and securebits given up; no_new_privs
//	root     pid 1, without a capability on any thread
//	forked   its control groups; resource limits; working directory; Landlock with the
//	         same paths once more; descriptors closed; seccomp; execve
//
// A step that fails ends everything and comes back from Start, named, as
// ErrUnsupported, ErrPolicyChanged or ErrUnready. Nothing continues with less. No
// file is ever created on the host to mount over.
//
// A start is one execution of the launcher, which is most of what it costs. Build it
// with CGO_ENABLED=0: the runtime then knows all its threads, and the root stage gives
// up the privileges of each and becomes the root as it is. Otherwise it executes itself
// once more, to be rid of the others, and the system paths must hold its libraries.
// What the forked process does is a list of system calls that the root prepared.
//
// # Limits
//
// Open files and file size are rlimits, and so is the number of processes where a user
// namespace counts them for the turn alone. The rest is held by control groups, of
// version 1 or 2, where the worker may make some; elsewhere it is refused. The agent
// joins its groups, the root does not: a fork bomb must not keep it from ending one.
// The root removes them. What a root that was killed left is known by a lock that
// nobody holds any more, and goes with the next start of a turn that has limits.
//
// # The network
//
// Open is the host's network as it is. Neither Open nor Proxied is none: a network
// namespace with nothing but its own loopback. Proxied is the same namespace with doors
// in that loopback, opened in the root stage where the interface is brought up, and
// passed out to whoever serves them (Confinement.Egress, package egress). Nothing of
// ours that the agent could reach runs inside.
//
// # Landlock only
//
// Inside most containers there are no namespaces to be had. Landlock of ABI 6 then
// holds a turn alone, with package procs' subreaper as its root, outside the
// turn's domain. Landlock only adds, so these are refused: anything read-only, or
// denied, inside what may be written; metadata to keep; a working directory that is
// not the workspace; a limit of processes without control groups. No network means that seccomp refuses
// internet sockets. Unix sockets are refused too, below ABI 9, because Landlock does
// not hold them to paths; the worker's owner may allow them (Options.UnixSockets).
// There is no /tmp of the turn's own: temporary files go where something was granted.
//
// # What stays open
//
// In both modes: hard links that already lie inside a grant; an agent's own copy of
// a denied program, so that denying one is a tripwire; a new repository inside a
// writable grant; below ABI 9, unix sockets that appear inside a grant after Start;
// whatever the host's network answers, when it is open.
//
// In LandlockOnly also: names, sizes and times of files everywhere; chmod, chown,
// utimes and setxattr on the worker's own files, granted or not; the host's process
// list with command lines.
//
// # macOS
//
// A Seatbelt profile that denies by default (seatbelt.go writes it, settle.go finds the
// paths) is applied by /usr/bin/sandbox-exec to a copy of the launcher, which tries to
// read a file it was not granted, holds itself to the resource limits and executes the
// agent. The profile is followed by everything that descends from the agent, for life.
//
// The last rule that matches decides: grants come outer before inner, and what is kept
// out of reach inside them comes last. The kernel compares the path an access ends at,
// so paths are given with their links resolved and spelled as on disk; a directory on
// the way to such a path cannot be moved, nor a second name be given to a file. Unix
// sockets are the network's: they answer inside writable grants and where the worker
// itself put them.
//
// There are no namespaces: refused are domains, limits other than open files and file
// size, and a workspace at another path; no network means no loopback either. Processes
// are held together by package procs' account of them. There are no pseudo-terminals,
// because those of the user's other windows have the same kind of name.
//
// The text of profiles is tested everywhere. docs/security.md has what to try on a Mac.
//
// # Elsewhere
//
// Everything is refused.
package confine
