// Package sbx runs turns in virtual machines of Docker Sandboxes, through its own
// program (sbx). It decides nothing about grants: package boundary says what a sandbox
// is shown. It has been held to the documentation of sbx 0.43 (reference pages of the
// commands create, exec, ls, rm, policy, settings and version, and the pages on local
// network access and credentials) and to a stand-in that behaves as documented: there
// was no sbx to run where it was written.
//
// # A turn's start
//
//	worker   refuse what sbx cannot hold; sources compared with their pins; rec.Creating
//	sbx      create NAME from the template, the binds as workspaces at their own paths,
//	         ":ro" where they may not be written; no network with --deny-network "**"
//	worker   rec.Live; rules of the network for this sandbox alone, and a look whether
//	         they hold; the Dagger CLI where asked
//	line     exec -i of this program: looks whether every place has the access it was
//	         asked with, listens on the sockets that are carried, and waits for orders
//	agent    exec -i of this program: is told through its input what to execute,
//	         reports to the line and becomes the agent, whose streams are then its own
//
// No value of the environment and no argument of the agent is among sbx's own
// arguments or in its environment, of which it gets what it needs to find its daemon.
// The agent's environment is the sandbox's own, under what the turn sets.
//
// # Names
//
// sbx has no labels, so a sandbox's name is made from the turn's label and is its
// identity. Find, End and Sweep go by it; whether sbx lists it is what counts.
//
// # Credentials
//
// None is forwarded. sbx's proxy puts those of its own store (sbx secret) into requests
// to the provider, for every sandbox of the machine alike. Its forwarding of the host's
// ssh agent must be off, unless a turn has version control.
//
// # The network
//
// Everything leaves through sbx's proxy. Open is every host but the host's loopback.
// None is a denial of everything, which no rule overrides. A list of domains needs a
// machine whose own policy allows nothing (sbx policy init deny-all), for rules only
// add; what sbx's kit for the agent allows on top must be accepted by the worker's owner
// (Engine.KitNetwork). "Any public host" has no rule and is refused. Servers on the
// host's loopback are allowed one port each and reached as HostName.
//
// # Sockets
//
// A unix socket of the host does not answer inside a virtual machine. Those of the
// turn's own tools, and that of its Dagger engine, are listened for by the line, which
// carries each connection through its streams to this side.
//
// # The end of a lease
//
// The line keeps the agent's term (procs.Term), for a worker that is alive and stands
// still: at the time the worker gave last, it freezes the agent, or kills it if it cannot.
// It has such a time before the agent's exec, which executes nothing after it.
// A virtual machine has a clock of its own, so all that the line says bears the time there,
// and the worker tells a time by that clock. An order that was held up on its way, with the
// worker or with sbx, lets nothing run longer.
//
// # The end
//
// The sandbox is removed by force when the agent's exec ends, and Wait, Kill and End do
// not return before it is not listed. A worker that dies closes the line, which kills
// what it can reach inside; the sandbox itself is the next worker's to remove.
//
// # What stays open
//
// The agent is root inside where it likes (the templates have sudo): that a read-only
// workspace is held against it is sbx's word, which the line can only look at. There
// are no denied paths, version control commands are shadowed on the PATH alone, and a
// limit of open files, file size or processes is refused.
package sbx
