// Package egress holds a turn to the hosts it may reach. The turn lives in a network
// namespace that has a loopback interface and no route; this package gives that
// loopback doors, and judges everything that comes through them. Making the namespace
// is the launcher's work (package confine, or a container engine's), and so is
// deciding what the turn may reach.
//
// # Doors
//
// A socket belongs to the network namespace it was made in, whoever holds it. So the
// doors are opened inside, before the agent starts, and their descriptors are passed
// out to the worker, which accepts from them:
//
//	turn's namespace                       worker
//	127.0.0.1:53   names                   Proxy answers out of its own table
//	0.0.0.0:443    TLS                     Proxy reads the greeting, dials, copies
//	0.0.0.0:80     HTTP                    Proxy reads each request, dials, forwards
//
// Nothing of ours runs inside, there is no protocol between two halves, and there is
// nothing the agent could trace, kill or imitate. It makes no difference whether a
// program knows of proxies: every way out is one of the doors.
//
// # Names
//
// No name is ever resolved for the agent. A name that the rules may allow is given an
// address of its own out of 127.64.0.0/10, all of which is local on loopback; any
// other does not exist. Which name a connection means is told by the address it came
// to. Queries therefore carry nothing out, and an agent that invents addresses reaches
// names that it could have asked for, or nothing. Literal addresses have no route.
//
// # What is judged
//
//   - The name: whole labels, lower-case, of the characters host names have.
//   - On 443 the connection must open with a TLS greeting that names the same host, in
//     the clear. One that hides another greeting (ECH) is refused.
//   - On 80 every request must name the same host. Only WebSocket may be upgraded to.
//   - The address: the worker resolves and dials by itself, and what is dialled must be
//     public at that moment. Private, loopback, link-local, shared, multicast and
//     reserved addresses are refused, IPv4 inside IPv6 likewise, and whatever addresses
//     the machine itself has.
//
// Hosts of the owner's choice (Rules.Hosts) lead to a fixed address, public or not,
// on any port; beyond 443 and 80 nothing but the name is judged.
//
// What stays open: inside TLS nobody sees which of the tenants of a shared front end a
// request is for, and what a turn tells a host that it may reach.
//
// # How a launcher uses it
//
//	p, err := egress.New(egress.Limited(network.Domains, network.Hosts), log)
//	defer p.Close()                        // ends every connection and waits
//
// The launcher has a process inside the namespace, joined to the worker by a pair of unix
// sockets, or by one that was bound into a container and is accepted from once. That
// process calls door.Give before it becomes the agent, the worker meanwhile p.Attach, and
// both return once the doors are served or both say why not. Before the agent starts,
// door.Files are put in place.
//
// The namespace needs a loopback interface that is up, as confine makes it and as a
// container of the engine's network "none" has it, and the process the right to open
// ports below 1024 (CAP_NET_BIND_SERVICE, or net.ipv4.ip_unprivileged_port_start, which
// engines set to 0). It must be of this kernel: a descriptor goes into no virtual machine.
//
// Once the turn is gone, Refusals says which hosts it was refused, for its Result.
package egress
