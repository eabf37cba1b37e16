package job

import (
	"cmp"
	"time"

	"turnpike/internal/work"
)

// APIVersion is the value of Request.APIVersion this release takes.
const APIVersion = "turnpike/v1"

// Sizes a request is held to.
const (
	MaxRequestBytes = 1 << 20
	MaxPromptBytes  = 512 << 10
	MaxDepth        = 64
)

// Times a request gets when it says nothing, and the most it may ask for unless
// its pool says otherwise.
const (
	DefaultTimeout = time.Hour
	MaxTimeout     = 24 * time.Hour
)

// Request is everything one turn needs, as a producer writes it. This is its
// only JSON form: snake_case, durations as "15m", money as decimal strings,
// times as RFC 3339. Decode reads it strictly.
type Request struct {
	APIVersion string `json:"api_version"`
	// Name identifies the job to people; it need not be unique.
	Name   string `json:"name,omitempty"`
	Prompt string `json:"prompt"`
	// Restricted makes it a read-only turn: an answer about the workspace, with grants
	// that are fixed. What such a turn does not take is refused.
	Restricted   bool    `json:"restricted,omitempty"`
	SystemPrompt string  `json:"system_prompt,omitempty"`
	Profile      Profile `json:"profile"`
	// Grants are the turn's complete capabilities. They are required, but for a
	// restricted turn.
	Grants *Grants `json:"grants"`
	// ValidOutcomes: absent or null accepts any status, [] accepts none.
	ValidOutcomes []string          `json:"valid_outcomes"`
	Workspace     Workspace         `json:"workspace"`
	Env           map[string]string `json:"env,omitempty"`
	ContainerEnv  map[string]string `json:"container_env,omitempty"`
	VCSEnv        map[string]string `json:"vcs_env,omitempty"`
	// VCSContainerEnv and VCSContainerPath apply inside a container or sandbox.
	VCSContainerEnv  map[string]string `json:"vcs_container_env,omitempty"`
	VCSContainerPath []string          `json:"vcs_container_path,omitempty"`
	// HostMCP names a server the worker's ceiling offers.
	HostMCP string `json:"host_mcp,omitempty"`
	// ResumeID is the agent's id of a conversation to continue.
	ResumeID string `json:"resume_id,omitempty"`
	// ResumeFrom continues the conversation that another job leaves, as that left it. It
	// waits for the job, and names it as After does.
	ResumeFrom string `json:"resume_from,omitempty"`
	CostCapUSD USD    `json:"cost_cap_usd,omitempty"`
	// Account names a provider credential of the worker's configuration.
	Account string   `json:"account,omitempty"`
	Work    work.Ref `json:"work,omitzero"`

	// How the queue treats it.

	Pool     string `json:"pool,omitempty"`
	Tenant   string `json:"tenant,omitempty"`
	Priority int    `json:"priority,omitempty"` // -100 to 100; more is sooner
	// RunAt is the earliest time to run; zero is now.
	RunAt time.Time `json:"run_at,omitzero"`
	// Deadline is when starting it is of no use any more.
	Deadline time.Time `json:"deadline,omitzero"`
	// After are the jobs that must be finished before this one runs.
	After *After `json:"after,omitempty"`
	// DedupKey: while an unfinished job of the tenant has it, enqueueing again
	// returns that job.
	DedupKey string `json:"dedup_key,omitempty"`
	// ConcurrencyKey: at most one job of the tenant with it runs at a time.
	ConcurrencyKey string `json:"concurrency_key,omitempty"`
	Retry          Retry  `json:"retry,omitzero"`
	Limits         Limits `json:"limits,omitzero"`
}

// MaxAfter is how many jobs a request may come after.
const MaxAfter = 32

// After is what a job waits for.
type After struct {
	// Jobs are ids of jobs of the tenant, or places of earlier requests of the same
	// batch: "#0" is its first.
	Jobs []string `json:"jobs,omitempty"`
	// OnFailure says what follows when one of them did not succeed.
	OnFailure AfterPolicy `json:"on_failure,omitempty"` // default fail
}

// AfterPolicy says what becomes of a job when one that it waited for did not succeed.
type AfterPolicy string

// The policies.
const (
	AfterFail AfterPolicy = "fail" // it fails too, without having run
	AfterRun  AfterPolicy = "run"  // it runs all the same
)

// AfterPolicies lists every policy.
func AfterPolicies() []AfterPolicy { return []AfterPolicy{AfterFail, AfterRun} }

// Retry says what follows an attempt that failed for no fault of the request.
type Retry struct {
	Policy   RetryPolicy `json:"policy,omitempty"`    // default if_not_started
	MaxTries int         `json:"max_tries,omitempty"` // default 3, at most 20
	Backoff  Duration    `json:"backoff,omitempty"`   // before the second try, doubling with jitter; default 30s
}

// Limits are the watchdogs of one attempt.
type Limits struct {
	Start Duration `json:"start,omitempty"` // until the agent first says something; default 2m
	Idle  Duration `json:"idle,omitempty"`  // between two events; default 30m
}

// Profile is how the turn is run; see agent.Profile for what each field means.
type Profile struct {
	Name                    string              `json:"name,omitempty"`
	Agent                   string              `json:"agent,omitempty"`
	Model                   string              `json:"model,omitempty"`
	Account                 string              `json:"account,omitempty"` // instead of the request's
	Fallback                *Profile            `json:"fallback,omitempty"`
	Effort                  string              `json:"effort,omitempty"`
	MaxTurns                int                 `json:"max_turns,omitempty"`
	Timeout                 Duration            `json:"timeout,omitempty"`
	AllowedTools            []string            `json:"allowed_tools,omitempty"`
	DisallowedTools         []string            `json:"disallowed_tools,omitempty"`
	MCP                     map[string]MCPEntry `json:"mcp,omitempty"`
	Sandbox                 string              `json:"sandbox,omitempty"`
	Confine                 bool                `json:"confine,omitempty"`
	SandboxImage            string              `json:"sandbox_image,omitempty"`
	Dagger                  *Dagger             `json:"dagger,omitempty"`
	SandboxDomains          []string            `json:"sandbox_domains"` // null: the pool's network; []: nothing
	ContainerUseEnvironment string              `json:"container_use_environment,omitempty"`
	VCSAccess               bool                `json:"vcs_access,omitempty"`
	Shell                   string              `json:"shell,omitempty"`
	Env                     map[string]string   `json:"env,omitempty"`
	Skills                  []string            `json:"skills,omitempty"`
	PiPackages              []string            `json:"pi_packages,omitempty"`
}

// Placement is the lane's placement the profile asks for.
func (p *Profile) Placement() string {
	s := p.Sandbox
	if s == "" {
		s = "none"
	}
	if p.Confine {
		s += "-confined"
	}
	return s
}

// AccountOf names the credential of a profile of r; empty is the worker's own for the
// profile's agent.
func (r *Request) AccountOf(p *Profile) string { return cmp.Or(p.Account, r.Account) }

// Place is where one profile of a request runs.
type Place struct {
	Profile int // index along the fallback chain
	Name    string
	Lane    Lane
	Agent   string
	Account string
}

// Places are the profiles that may run r, in order: its own, and the fallbacks it is run
// on when one has no capacity. A conversation goes on with the agent that has it, in the
// place where it was.
func (r *Request) Places() []Place {
	var out []Place
	i := 0
	for p := &r.Profile; p != nil; p = p.Fallback {
		at := Place{Profile: i, Name: p.Name, Lane: Lane{Placement: p.Placement(), Pool: r.Pool}, Agent: p.Agent, Account: r.AccountOf(p)}
		if i == 0 || r.ResumeID == "" && r.ResumeFrom == "" || at.Agent == out[0].Agent && at.Lane == out[0].Lane {
			out = append(out, at)
		}
		i++
	}
	return out
}

// MCPEntry is one MCP server, started over stdio or reached over HTTP.
type MCPEntry struct {
	Type           string            `json:"type,omitempty"`
	Command        string            `json:"command,omitempty"`
	Args           []string          `json:"args,omitempty"`
	Env            map[string]string `json:"env,omitempty"`
	URL            string            `json:"url,omitempty"`
	Headers        map[string]string `json:"headers,omitempty"`
	EnvVars        []string          `json:"env_vars,omitempty"`
	BearerTokenEnv string            `json:"bearer_token_env,omitempty"`
}

// Dagger is an engine on the host and the CLI release that goes with it.
type Dagger struct {
	Engine  string `json:"engine"`
	Version string `json:"version"`
}

// Grants are everything the turn may have; see agent.Grants.
type Grants struct {
	Env          []string     `json:"env,omitempty"`
	Tools        []string     `json:"tools,omitempty"`
	Mounts       []Mount      `json:"mounts,omitempty"`
	Within       string       `json:"within,omitempty"`
	VCS          bool         `json:"vcs,omitempty"`
	DaggerEngine string       `json:"dagger_engine,omitempty"`
	HostServers  []HostServer `json:"host_servers,omitempty"`
}

// Mount is an absolute path, or "workspace:" with an optional path beneath the
// workspace, and what may be done with it: "ro" or "rw".
type Mount struct {
	Path   string `json:"path"`
	Access string `json:"access"`
}

// HostServer is a server its caller already runs on the host's loopback.
type HostServer struct {
	Name string `json:"name"`
	Port int    `json:"port"`
}

// Workspace is where the turn works: exactly one of its fields is set.
type Workspace struct {
	Dir     string `json:"dir,omitempty"`     // an absolute directory of the worker's host
	Scratch bool   `json:"scratch,omitempty"` // an empty directory of its own
	Git     *Git   `json:"git,omitempty"`
}

// Git is a repository at a ref.
type Git struct {
	URL         string   `json:"url"`
	Ref         string   `json:"ref,omitempty"`
	Credentials []string `json:"credentials,omitempty"` // names of the worker's credentials
}

// Duration is a time.Duration whose JSON form is Go's own, "1h30m".
type Duration time.Duration

// Std is d as the standard library has it.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String is d in Go's form.
func (d Duration) String() string { return time.Duration(d).String() }
