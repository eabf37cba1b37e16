package agent

import (
	"context"
	"net/netip"
	"os/exec"
	"time"
)

// What a runner calls the engines' programs where it says nothing.
const (
	ContainerEngine = "docker"
	SandboxCLI      = "sbx"
)

// Engine runs agents in boxes: containers, or virtual machines, which another program
// of the host keeps. A box outlives the program that asked for it, so an engine is
// asked, and believed, about what is there. An Engine is used from many goroutines.
type Engine interface {
	// Look says what a turn of profile p would find in its box, and what the engine
	// brings along. It fetches no image and starts no agent, but it may have to look
	// into a box of its own; what it learns of an image it keeps. bin is the engine's
	// program, empty the engine's own choice. Its error wraps ErrUnready where the
	// engine or the image is missing, and ErrUnsupported where the engine cannot hold
	// a turn.
	Look(ctx context.Context, bin string, p Profile) (Premises, error)
	// Start makes the box and starts cmd in it, never with less than box asks. It
	// returns once the program runs. cmd's path, arguments, environment and directory
	// are those inside, and its streams are files. Before anything is made,
	// rec.Creating has the label; before the program runs, rec.Live has the identity.
	// When Start fails, what was made is gone again and rec.Gone told, or the error
	// says that it is not. A nil rec records nothing.
	Start(ctx context.Context, cmd *exec.Cmd, box Box, rec Recorder) (Process, error)
	// Find says whether the box who names is there, running or not.
	Find(ctx context.Context, who Identity) (bool, error)
	// End ends the box who names, by its id and whatever bears its label, and returns
	// once their absence is verified; false says that there was nothing to end.
	End(ctx context.Context, who Identity) (bool, error)
	// Sweep ends every box whose label begins with prefix, and returns how many.
	Sweep(ctx context.Context, prefix string) (int, error)
}

// Premises are what an engine brings to the turns of one profile, whatever they are
// granted.
type Premises struct {
	// Image is what Box.Image must be: what the profile's image is now, by its
	// digest, whatever its name means later.
	Image string
	// Env is the image's own environment, as NAME=value pairs.
	Env []string
	// Bin is the agent's executable inside.
	Bin string
	// WorkDir is where the workspace is shown inside; empty is at its own path.
	WorkDir string
	// Masks are stand-ins that the engine lays over the version control executables
	// the image has, for a turn without version control.
	Masks []Bind
	// MaskFile and MaskDir are the stand-ins themselves, on the host, to lay over what
	// a mount would show; empty where the engine cannot.
	MaskFile, MaskDir string
	// Private are the engine's own paths on the host, its data and its sockets, which
	// no mount may reach.
	Private []string
	// Host is the address by which a box with the open network reaches the host, and
	// at which a server for it listens; invalid where there is none.
	Host netip.Addr
	// HostName is the name by which the engine's own network leads a box to the host's
	// loopback, one allowed port at a time; empty where the worker serves the way out.
	HostName string
	// SocketDir is where the engine carries unix sockets of the host to, which do not
	// answer through its mounts; empty where they do.
	SocketDir string
	// Injects says that the engine itself puts the credential into what the agent sends
	// to its provider, so that the turn is given none.
	Injects bool
	// Root says whether the agent sees itself as uid 0.
	Root bool
	// Version is the engine's, and Weaknesses what is known to be wrong with it.
	Version    string
	Weaknesses []string
}

// Box is what an engine holds a turn to.
type Box struct {
	// Bin is the engine's program; empty is the engine's own choice.
	Bin string
	// Name is what people see the box as, and Label what it is swept by.
	Name, Label string
	// Dir is a directory of the host that belongs to this box alone, for what the
	// engine itself needs. The box is shown no more of it than that.
	Dir string
	// Image is a digest (Premises.Image). Agent is the agent an sbx box is made for.
	Image, Agent string
	// Binds are all the box is shown of the host; where one lies inside another the
	// inner one decides.
	Binds []Bind
	// Pins are what the sources of Binds were when they were verified. Start refuses
	// with ErrPolicyChanged what is something else by then; a source without a pin it
	// takes as it finds it.
	Pins []Pin
	// Workspace is the working directory on the host, and WorkDir the path it has
	// inside, fixed so that a conversation continues on any worker.
	Workspace, WorkDir string
	// Home is the agent's home inside; empty is at its own path.
	Home    string
	Network Network
	Limits  Limits
	// Until is asked last of all before the agent is executed, until when it may run: as by
	// Bounded.RunUntil, and what would be executed after it is ErrUnready. Nil, or the zero
	// time, is no end.
	Until func() time.Time `json:"-"`
	// VCS says that version control is granted, as far as the engine itself brings it.
	VCS bool
	// Sockets are unix sockets of the worker's own in Binds, and the paths inside to
	// which an engine with a Premises.SocketDir carries them.
	Sockets []Bind
	// Servers are where servers of this turn listen on the host. A box with the open
	// network reaches them there, any other at the same ports of its own loopback.
	Servers []netip.AddrPort
	// Egress serves the way out of a box whose network is limited, and to Servers of one
	// that has none. An engine refuses a box that needs it and has none, or whose way out
	// it cannot give.
	Egress Egress
	// Dagger is the engine and CLI the turn is given; nil for none. HostServers are
	// the caller's servers it reaches.
	Dagger      *Dagger
	HostServers []HostServer
}
