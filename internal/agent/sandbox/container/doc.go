// Package container runs turns in containers of the host's engine, through the engine's
// own program (docker, or one that takes its arguments). It decides nothing about
// grants: package boundary says what a container is shown, and this package sees that it
// is shown that and no more. The engine keeps the containers; whatever it says it did is
// looked at again from the inside before the agent runs.
//
// # A turn's start
//
//	worker      sources of binds compared with their pins; rec.Creating
//	engine      create: everything dropped that can be dropped, the image by its digest,
//	            no way to the engine's network unless granted, binds as they were asked
//	worker      what the engine says it made, compared with what was asked; rec.Live
//	engine      start
//	stage       the worker's own program, bound into the container, as its command: it
//	            dials the line, is handed streams and plan, and looks around: ids,
//	            capabilities, no_new_privs, seccomp, resource limits, control groups,
//	            masked and read-only parts of /proc and /sys, every mount with its access,
//	            device and inode, interfaces, devices. What is not as planned ends it.
//	worker      the ways out, where the network is limited, are taken over (package door)
//	agent       executed with exactly the planned arguments and environment
//
// A step that fails removes the container, and Start returns an error. Nothing goes on
// with less.
//
// # The line
//
// A unix socket in a directory that is bound into the container joins stage and worker.
// The stage is the first to dial it, and then nobody can any more. The agent's streams,
// its arguments and its environment go through it as descriptors: the engine, its records
// and its logs hold none of them, and its client need not live for the turn to. So the
// engine must share this machine's kernel, which the line proves.
//
//	worker to stage   {"do":"terminate"}, "freeze", "thaw", {"do":"until","at":…}; end of file: end everything
//	stage to worker   {"failed":…} or {"running":true}, then {"did":…} of each order, {"exit":…} last
//
// The stage keeps the agent's term (procs.Term), for a worker that is alive and stands
// still: at the time of until, unless a later one was given, it stops everything but
// itself and the engine's init, and what it cannot stop ends with the container. The first
// such time is in the plan, and nothing is executed after it, or when nobody waits any
// more. To freeze, the stage stops everything and then the engine pauses the container; to
// thaw, the engine lets it go on and then the stage, unless the term is over by then. A
// stage that is paused hears of what was said meanwhile before it hears of the thaw.
//
// A worker that dies closes the line, the stage ends with it, and the kernel ends a
// container with its first process. One that stands still (paused) stays, and so does one
// that was created and not started: those the next worker ends, by id and label.
//
// # Absence
//
// The engine's word that a container is not listed is what counts, never that a client
// returned. Wait, Kill and End do not return before, or say that it is there yet.
//
// # What is looked at once
//
// Look runs this package's own program in a container of the image, under all of the
// above, and finds the agents' executables and those of version control anywhere in the
// image. The answer is kept by the image's digest. So an engine, a runtime or a kernel
// that holds less than it is asked to is found out before a turn is begun.
//
// # What stays open
//
// The stage is of the agent's user, who can stop or kill it. With a killed one the container
// ends; what a stopped one should hold still is paused by the worker alone.
//
// The kernel is shared. Image and engine are trusted: who can talk to the engine owns the
// machine, and no container is ever shown its socket or its data. A denied executable is
// a tripwire, as on the host: an agent can bring its own.
package container
