package archtest

// Module is what the rules are about.
const Module = "turnpike"

// Map is the import map. The two contracts, job and agent, know nothing of what is
// built on them; a technology points at its contract; the loops know contracts only;
// cmd introduces everybody. An arrow that is added here says in a comment what it buys.
var Map = []Rule{
	// Leaves and contracts.
	{Package: "internal/work"},
	{Package: "internal/vcs"},
	{Package: "migrations"},
	{Package: "internal/job", May: []string{"internal/work"}},
	{Package: "internal/agent", May: []string{"internal/work", "internal/vcs"}},

	// The queue's side.
	{Package: "internal/queue", May: []string{"internal/job", "internal/work"}},
	{Package: "internal/dispatcher", May: []string{"internal/job", "internal/work"}},
	{Package: "internal/api", May: []string{"internal/job", "internal/work"}},
	{Package: "internal/web", May: []string{"internal/job", "internal/work"}},
	{Package: "internal/store", May: []string{"internal/job", "internal/work", "migrations"}},
	// A read-only turn is a form of request: what it is granted is said in one place.
	{Package: "internal/worker", May: []string{"internal/job", "internal/agent", "internal/agent/restricted", "internal/work", "internal/vcs"}},

	// The turn's side.
	// What drivers would otherwise each have again: reading lines nobody may trust, and
	// checking the servers they write down.
	{Package: "internal/agent/driver/*", May: []string{
		"internal/agent", "internal/agent/driver/stream", "internal/agent/driver/servers",
	}},
	{Package: "internal/agent/session", May: []string{"internal/agent"}},
	{Package: "internal/agent/restricted", May: []string{"internal/agent"}},
	// A nil launcher selects this platform's own, which is confine.
	{Package: "internal/agent/boundary", May: []string{"internal/agent", "internal/agent/confine"}},
	{Package: "internal/agent/procs", May: []string{"internal/agent", "internal/agent/session"}},
	{Package: "internal/agent/egress"},
	// The doors alone: a launcher that linked their proxy would start turns more slowly.
	{Package: "internal/agent/confine", May: []string{"internal/agent", "internal/agent/procs", "internal/agent/egress/door"}},
	{Package: "internal/agent/mcphost", May: []string{"internal/agent", "internal/agent/procs"}},
	// Beside the worker's half of a turn's ways out, what opens them inside.
	{Package: "internal/agent/sandbox/*", May: []string{"internal/agent", "internal/agent/procs", "internal/agent/egress", "internal/agent/egress/door"}},
	{Package: "internal/agent/runner", May: []string{
		"internal/agent", "internal/agent/session", "internal/agent/mcphost",
		"internal/agent/procs", "internal/agent/boundary", "internal/agent/confine",
		"internal/agent/egress", // a turn's way out lives as long as its Result takes
	}},
	{Package: "internal/workspace", May: []string{"internal/vcs", "internal/agent"}},

	// The second seed's controller.
	{Package: "internal/fleet"},
	{Package: "internal/fleet/*", May: []string{"internal/fleet"}},

	// Programs, and what only they show.
	{Package: "cmd/*", May: []string{"..."}},
	{Package: "internal/buildinfo"},
	{Package: "internal/devpg"}, // the private Postgres of `dispatcher dev`

	// Tests only: none of these is ever linked into a program.
	{Package: "internal/testenv", May: []string{"..."}, Tests: true},
	{Package: "internal/archtest", May: []string{"..."}, Tests: true},
	{Package: "internal/e2e", May: []string{"..."}, Tests: true},
	{Package: "internal/chaos", May: []string{"..."}, Tests: true},
	{Package: "internal/chaos/standin", May: []string{"..."}, Tests: true},
	{Package: "internal/agent/confine/benchstart", May: []string{"..."}, Tests: true},
	{Package: "internal/agent/agenttest", May: []string{"..."}, Tests: true},
	{Package: "internal/agent/killtest", May: []string{"..."}, Tests: true},
	{Package: "internal/agent/driver/drivertest", May: []string{"..."}, Tests: true},
	{Package: "internal/worker/deliverytest", May: []string{"..."}, Tests: true},
}
