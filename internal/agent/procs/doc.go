// Package procs starts a program as a tree of processes that can be stopped as
// one, stops it, and finds what a dead worker left. It confines nothing: what
// holds a process to its grants is package confine, whose launcher starts its
// trees through the same root.
//
// # The root
//
// Between the worker and the program stands a root, a re-executed copy of the
// running program recognised by its argv[0] (Entry is the first line of main).
// It starts the program in a session of its own, reaps, and owns every process
// that descends from it:
//
//   - as pid 1 of a PID namespace, because the kernel ends a namespace with its
//     first process;
//   - elsewhere as a child subreaper: a process whose parent died is its child,
//     so that a daemon that forked twice, left the session and emptied its
//     environment is still found, and "no child is left" means that none is.
//
// The program's own end is the end of its tree: the root kills what is left and
// then exits with the program's status (128+n for signal n).
//
// # The line
//
// One socket joins root and worker. The worker's end is held by the Tree alone
// and closes on exec; the root's end is descriptor 3 of the root and goes no
// further. Start puts it first in ExtraFiles; whatever starts a root keeps it there.
//
//	worker to root   {"do":"freeze"} {"do":"thaw"} {"do":"until","at":…}, end of file: end everything
//	root to worker   {"did":"freeze"} with an error if it failed, {"exit":{…}} last
//
// A worker that is killed closes the line as surely as one that calls Kill, so
// nothing outlives its worker and nobody has to notice its death. A socket is
// used rather than a pipe because the far end of a pipe can be opened again
// through /proc by anyone of the same user, and then never reports its end.
//
// Until is for a worker that is alive and stands still: at that time, unless a later one
// was given, the root freezes the tree by itself. It is the first word of every
// line, said before there is a root, which executes nothing when that time is over or
// nobody waits for it any more: a worker may stand still while it starts a tree, too.
// Term keeps that time, and FreezeOthers and Freeze hold still, for what launchers put
// beside a program elsewhere, too.
//
// Terminate is SIGTERM to the root, which passes it (and SIGINT and SIGHUP) to the
// program. Kill closes the line, waits, and if the root does not end by itself
// within a bound kills its descendants and it from here. A pidfd, never a bare
// pid, is what is signalled.
//
// # Setting up
//
// Descriptor 4 is a pipe that says "ready" and closes when the program was executed,
// and carries a Failure when it was not; descriptor 5 is a sealed memory file with what to
// execute, so that neither the arguments nor the environment of the root tell.
//
// A program that must be held before it is executed is prepared: whoever calls EntryFor
// gives the root the system calls that the forked process makes (fork_linux.go).
//
// # macOS
//
// There are no process namespaces, no subreapers and no handles on processes, so the
// root keeps account (family.go): a process belongs that is the child of one that
// does, is in a group of theirs, was seen to belong before, or lost its parent and
// bears the marker. A daemon that changes parent, group and environment within the
// 25 ms between two looks is not found. It stays what it was confined to be, for
// Seatbelt follows a process for life; a turn that nothing confines can leave one
// behind. The sealed file is one without a name, and a launcher cannot be held.
// Elsewhere no tree is started.
//
// # Orphans
//
// A root that outlived its worker is identified by pid, start time and boot id,
// all three. The last resort is the marker, a variable in the program's
// environment that names the state directory and session; a daemon that emptied its
// environment does not bear it, which is why it is only the last resort.
package procs
