package worker

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"turnpike/internal/agent"
	"turnpike/internal/job"
)

// Ceiling is the most any request of a pool may ask for, written by the worker's
// owner. It denies by default: what it does not name is refused. It holds names
// of secrets, never secrets.
type Ceiling struct {
	Placements []string `yaml:"placements" json:"placements,omitempty"`
	Agents     []string `yaml:"agents" json:"agents,omitempty"`
	// Tools are the built-in tools grants may name; "*" is all of them. MCP
	// servers are held by MCP, not by this list.
	Tools []string `yaml:"tools" json:"tools,omitempty"`
	// Restricted offers read-only turns, whose grants are fixed. Everything else in
	// here holds them too, but for the lists of tools and variables.
	Restricted bool `yaml:"restricted" json:"restricted,omitempty"`
	// Workspaces are the places a turn may work in.
	Workspaces WorkspaceRules `yaml:"workspaces" json:"workspaces,omitzero"`
	// Mounts are roots a grant may reach beneath, beyond its workspace. Where one
	// lies inside another the inner one decides; access "none" carves it out.
	Mounts []Root `yaml:"mounts" json:"mounts,omitempty"`
	// Images are what container and sbx turns may run, each in full.
	Images []string `yaml:"images" json:"images,omitempty"`
	VCS    bool     `yaml:"vcs" json:"vcs,omitempty"`
	// Network is what a turn reaches: "open", "proxied" or "none". Empty is "proxied".
	Network string `yaml:"network" json:"network,omitempty"`
	// Domains, when set, are the only hosts a proxied turn may reach, each a host
	// name or "*." and one. Unset leaves any public host.
	Domains []string `yaml:"domains" json:"domains,omitempty"`
	// Hosts lead "name:port" to the address that is dialled for it where a turn is
	// limited to domains, public or not. Domains decide about these names, too.
	Hosts map[string]string `yaml:"hosts" json:"hosts,omitempty"`
	Env   EnvRules          `yaml:"env" json:"env,omitzero"`
	// Accounts are credentials by name. A request that names none gets the one
	// called "default", if there is one.
	Accounts map[string]Account `yaml:"accounts" json:"accounts,omitempty"`
	// Providers are those of agents that have many: by agent, then by the name that
	// models of the provider begin with.
	Providers map[string]map[string]Provider `yaml:"providers" json:"providers,omitempty"`
	MCP       MCPRules                       `yaml:"mcp" json:"mcp,omitzero"`

	// By name only, whatever would run or be read on the host.

	HostMCP      map[string]HostMCPServer `yaml:"host_mcp" json:"host_mcp,omitempty"`
	HostServers  map[string]int           `yaml:"host_servers" json:"host_servers,omitempty"` // name: loopback port
	Skills       []string                 `yaml:"skills" json:"skills,omitempty"`
	PiPackages   map[string]string        `yaml:"pi_packages" json:"pi_packages,omitempty"` // name: source
	Shells       map[string]string        `yaml:"shells" json:"shells,omitempty"`           // name: absolute path
	ContainerUse []string                 `yaml:"container_use" json:"container_use,omitempty"`
	PathDirs     []string                 `yaml:"path_dirs" json:"path_dirs,omitempty"`
	Dagger       []string                 `yaml:"dagger_engines" json:"dagger_engines,omitempty"`

	Limits     LimitRules   `yaml:"limits" json:"limits,omitzero"`
	MaxTimeout job.Duration `yaml:"max_timeout" json:"max_timeout,omitempty"` // zero is job.MaxTimeout
	// MaxCostUSD bounds the cost cap, and is the cap of a request without one.
	MaxCostUSD job.USD `yaml:"max_cost_usd" json:"max_cost_usd,omitempty"`
}

// WorkspaceRules are the workspaces a request may ask for.
type WorkspaceRules struct {
	Scratch bool   `yaml:"scratch" json:"scratch,omitempty"`
	Dirs    []Root `yaml:"dirs" json:"dirs,omitempty"`
	// Git are URL prefixes, whole path segments: "https://github.com/acme".
	Git []string `yaml:"git" json:"git,omitempty"`
}

// Root is a directory of the host and the most access beneath it.
type Root struct {
	Path   string `yaml:"path" json:"path"`
	Access string `yaml:"access" json:"access"` // "ro", "rw" or "none"
}

// EnvRules split what a turn inherits from what a request may set. A trailing
// "*" is a prefix.
type EnvRules struct {
	Inherit []string `yaml:"inherit" json:"inherit,omitempty"`
	Set     []string `yaml:"set" json:"set,omitempty"`
}

// Account is a credential and where it may go.
type Account struct {
	// Env maps a variable of the turn to the worker's variable it is taken from.
	Env map[string]string `yaml:"env" json:"env,omitempty"`
	// Values are variables of the turn whose value is no secret and stands here: the
	// address of a provider.
	Values map[string]string `yaml:"values" json:"values,omitempty"`
	// Agents, MCPURLs and GitHosts are what the credential is bound to.
	Agents   []string `yaml:"agents" json:"agents,omitempty"`
	MCPURLs  []string `yaml:"mcp_urls" json:"mcp_urls,omitempty"`
	GitHosts []string `yaml:"git_hosts" json:"git_hosts,omitempty"`
}

// MCPRules are the MCP servers a profile may name.
type MCPRules struct {
	// URLs are prefixes, whole path segments.
	URLs []string `yaml:"urls" json:"urls,omitempty"`
	// Commands are stdio servers by name: the command of a request outside a
	// container is one of these names.
	Commands map[string]MCPCommand `yaml:"commands" json:"commands,omitempty"`
}

// MCPCommand is a stdio server of the worker's owner.
type MCPCommand struct {
	Path string   `yaml:"path" json:"path"`
	Args []string `yaml:"args" json:"args,omitempty"`
	// MoreArgs lets a request add arguments of its own.
	MoreArgs bool `yaml:"more_args" json:"more_args,omitempty"`
}

// HostMCPServer is an agent.HostMCP as the owner writes it. Env maps the server's
// variable to the worker's.
type HostMCPServer struct {
	Command         string            `yaml:"command" json:"command"`
	Args            []string          `yaml:"args" json:"args,omitempty"`
	Env             map[string]string `yaml:"env" json:"env,omitempty"`
	ListenArgs      []string          `yaml:"listen_args" json:"listen_args,omitempty"`
	TokenEnv        string            `yaml:"token_env" json:"token_env,omitempty"`
	ListeningPrefix string            `yaml:"listening_prefix" json:"listening_prefix,omitempty"`
	Path            string            `yaml:"path" json:"path,omitempty"`
}

// LimitRules are agent.Limits as the owner writes them.
type LimitRules struct {
	Memory    Bytes   `yaml:"memory" json:"memory,omitempty"`
	Processes int     `yaml:"processes" json:"processes,omitempty"`
	OpenFiles int     `yaml:"open_files" json:"open_files,omitempty"`
	FileSize  Bytes   `yaml:"file_size" json:"file_size,omitempty"`
	CPUs      float64 `yaml:"cpus" json:"cpus,omitempty"`
}

// Bytes is a size, written as a number with an optional KiB, MiB, GiB or TiB.
type Bytes int64

// UnmarshalText reads a size.
func (b *Bytes) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	unit := int64(1)
	for i, suffix := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if rest, ok := strings.CutSuffix(s, suffix); ok {
			s, unit = strings.TrimSpace(rest), int64(1)<<(10*(i+1))
			break
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > (1<<62)/unit {
		return fmt.Errorf("%q is not a size; want such as 512MiB or 4GiB", text)
	}
	*b = Bytes(n * unit)
	return nil
}

// The networks of a pool.
const (
	networkOpen    = "open"
	networkProxied = "proxied"
	networkNone    = "none"
)

const accessNone = "none"

// DefaultAccount is the account of a request that names none.
const DefaultAccount = "default"

// ParseCeiling reads a ceiling file strictly: an unknown key, a key given twice
// or a value of no use is refused with its line or name.
func ParseCeiling(text []byte) (*Ceiling, error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	var c Ceiling
	if err := dec.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("ceiling: %s", yamlProblem(err))
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("ceiling: want one YAML document")
	}
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("ceiling: %w", err)
	}
	return &c, nil
}

var unknownKey = regexp.MustCompile(`field (\S+) not found in type \S+`)

// yamlProblem says what the decoder found in an owner's terms.
func yamlProblem(err error) string {
	s := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:\n")
	lines := strings.Split(strings.TrimSpace(s), "\n")
	for i, l := range lines {
		lines[i] = unknownKey.ReplaceAllString(strings.TrimSpace(l), "unknown key $1")
	}
	return strings.Join(lines, "; ")
}

// validate holds what the file's form does not.
func (c *Ceiling) validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
	}
	among := func(field string, got, want []string) {
		for _, g := range got {
			if !slices.Contains(want, g) {
				bad(field, "%q: want one of %s", g, strings.Join(want, ", "))
			}
		}
	}
	among("placements", c.Placements, job.Placements())
	among("agents", c.Agents, agent.Agents())
	if c.Network != "" {
		among("network", []string{c.Network}, []string{networkOpen, networkProxied, networkNone})
	}
	if c.Domains != nil && c.reaches() != networkProxied {
		bad("domains", "go with network: proxied only")
	}
	for _, from := range slices.Sorted(maps.Keys(c.Hosts)) {
		if !hostPort(from) || !hostPort(c.Hosts[from]) {
			bad("hosts", "%q: %q: want a name and a port, and the host and the port to dial", from, c.Hosts[from])
		}
	}
	for _, d := range c.Domains {
		if !domainForm.MatchString(d) {
			bad("domains", "%q: want a lower-case host name, or \"*.\" and one", d)
		}
	}
	roots := func(field string, rs []Root) {
		for _, r := range rs {
			among(field+".access", []string{r.Access}, []string{string(agent.ReadOnly), string(agent.ReadWrite), accessNone})
			if !cleanAbs(r.Path) {
				bad(field+".path", "%q: want an absolute, clean path", r.Path)
			}
		}
	}
	roots("mounts", c.Mounts)
	roots("workspaces.dirs", c.Workspaces.Dirs)
	urls := func(field string, us []string, schemes ...string) {
		for _, s := range us {
			u, err := url.Parse(s)
			if err != nil || !slices.Contains(schemes, u.Scheme) || (u.Host == "" && u.Scheme != "file") || u.RawQuery != "" || u.Fragment != "" {
				bad(field, "%q: want a URL with scheme %s, without query", s, strings.Join(schemes, ", "))
			}
		}
	}
	urls("workspaces.git", c.Workspaces.Git, "https", "ssh", "file")
	urls("mcp.urls", c.MCP.URLs, "http", "https")
	for _, p := range slices.Concat(c.Env.Inherit, c.Env.Set) {
		if !envPattern.MatchString(p) {
			bad("env", "%q: want a variable's name, with a trailing * for a prefix", p)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Accounts)) {
		a, at := c.Accounts[name], "accounts."+name
		among(at+".agents", a.Agents, agent.Agents())
		urls(at+".mcp_urls", a.MCPURLs, "http", "https")
		names(a.Env, func(n string) {
			bad(at+".env", "%q is not the name of a variable: a ceiling names secrets, it never holds them", n)
		})
		for _, n := range slices.Sorted(maps.Keys(a.Values)) {
			if _, twice := a.Env[n]; twice || !envForm.MatchString(n) {
				bad(at+".values", "%q is not the name of a variable, or is in env, too", n)
			}
			if what, ok := job.LooksSecret(a.Values[n]); ok {
				bad(at+".values."+n, "looks like %s: a ceiling names secrets in env, it never holds them", what)
			}
		}
	}
	c.validateProviders(among, bad)
	paths := func(field string, ps []string) {
		for _, p := range ps {
			if !cleanAbs(p) {
				bad(field, "%q: want an absolute, clean path", p)
			}
		}
	}
	paths("path_dirs", c.PathDirs)
	paths("shells", slices.Sorted(maps.Values(c.Shells)))
	for _, name := range slices.Sorted(maps.Keys(c.MCP.Commands)) {
		paths("mcp.commands."+name+".path", []string{c.MCP.Commands[name].Path})
	}
	for _, name := range slices.Sorted(maps.Keys(c.HostMCP)) {
		s, at := c.HostMCP[name], "host_mcp."+name
		paths(at+".command", []string{s.Command})
		names(s.Env, func(n string) { bad(at+".env", "%q is not the name of a variable", n) })
	}
	for name, port := range c.HostServers {
		if port < 1 || port > 65535 {
			bad("host_servers."+name, "%d is not a port", port)
		}
	}
	l := c.Limits
	if l.Processes < 0 || l.OpenFiles < 0 || !(l.CPUs >= 0) || l.CPUs > 1<<20 {
		bad("limits", "want numbers that are not negative")
	}
	if c.MaxTimeout < 0 {
		bad("max_timeout", "is negative")
	}
	if c.MaxCostUSD < 0 {
		bad("max_cost_usd", "is negative")
	}
	return errors.Join(errs...)
}

var (
	envForm    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	envPattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*\*?$`)
	domainForm = regexp.MustCompile(`^(\*\.)?([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
)

// hostPort says whether s is a host, or an address, with a port.
func hostPort(s string) bool {
	host, text, err := net.SplitHostPort(s)
	port, bad := strconv.ParseUint(text, 10, 16)
	return err == nil && bad == nil && port > 0 && (domainForm.MatchString(host) || net.ParseIP(host) != nil)
}

func names(env map[string]string, bad func(string)) {
	for _, k := range slices.Sorted(maps.Keys(env)) {
		for _, n := range []string{k, env[k]} {
			if !envForm.MatchString(n) {
				bad(n)
			}
		}
	}
}

func cleanAbs(p string) bool { return filepath.IsAbs(p) && filepath.Clean(p) == p }

// Hash identifies what c allows; the workers of a pool have one. Neither the
// order of lists nor comments nor layout of the file changes it.
func (c *Ceiling) Hash() string {
	n := *c
	n.Network = c.reaches()
	for _, l := range []*[]string{&n.Placements, &n.Agents, &n.Tools, &n.Workspaces.Git, &n.Images, &n.Env.Inherit, &n.Env.Set,
		&n.MCP.URLs, &n.Skills, &n.ContainerUse, &n.PathDirs, &n.Dagger} {
		*l = sorted(*l)
	}
	if n.Domains != nil { // an empty list differs from none
		n.Domains = sorted(n.Domains)
	}
	byPath := func(a, b Root) int { return strings.Compare(a.Path+"\x00"+a.Access, b.Path+"\x00"+b.Access) }
	n.Mounts = slices.SortedFunc(slices.Values(n.Mounts), byPath)
	n.Workspaces.Dirs = slices.SortedFunc(slices.Values(n.Workspaces.Dirs), byPath)
	n.Accounts = maps.Clone(n.Accounts)
	for name, a := range n.Accounts {
		a.Agents, a.MCPURLs, a.GitHosts = sorted(a.Agents), sorted(a.MCPURLs), sorted(a.GitHosts)
		n.Accounts[name] = a
	}
	// omitempty would drop an empty Domains.
	text, err := json.Marshal(struct {
		Ceiling
		NoDomains bool `json:"no_domains"`
	}{n, n.Domains == nil})
	if err != nil {
		panic("ceiling is not JSON: " + err.Error()) // every field is plain data; CPUs is finite by validate
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

func sorted(l []string) []string {
	s := slices.Clone(l)
	slices.Sort(s)
	return slices.Compact(s)
}

// AgentLimits are the limits of every turn.
func (c *Ceiling) AgentLimits() agent.Limits {
	return agent.Limits{
		MemoryBytes: int64(c.Limits.Memory), Processes: c.Limits.Processes, OpenFiles: c.Limits.OpenFiles,
		FileBytes: int64(c.Limits.FileSize), CPUs: c.Limits.CPUs,
	}
}

// reaches is what a turn reaches whose request says nothing of it.
func (c *Ceiling) reaches() string { return cmp.Or(c.Network, networkProxied) }

// network is what a turn of profile p reaches.
func (c *Ceiling) network(p job.Profile) agent.Network {
	switch {
	case p.SandboxDomains != nil:
		// A list narrows, whatever the pool's network is.
		return agent.Network{Proxied: true, Domains: p.SandboxDomains, Hosts: c.Hosts}
	case c.reaches() == networkOpen:
		return agent.Network{Open: true}
	case c.reaches() == networkProxied:
		return agent.Network{Proxied: true, Domains: c.Domains, Hosts: c.Hosts}
	}
	return agent.Network{}
}

func (c *Ceiling) maxTimeout() time.Duration {
	if c.MaxTimeout == 0 {
		return job.MaxTimeout
	}
	return c.MaxTimeout.Std()
}

// account is the credential of a request that names this account, for this agent.
// One that names none gets the default account where that is meant for the agent.
func (c *Ceiling) account(name, agentKind string) (Account, error) {
	a, ok := c.Accounts[cmp.Or(name, DefaultAccount)]
	bound := ok && slices.Contains(a.Agents, agentName(agentKind))
	switch {
	case bound:
		return a, nil
	case name == "":
		return Account{}, nil
	case !ok:
		return Account{}, notGranted("account", fmt.Sprintf("%q is not offered here", name), list("accounts", slices.Collect(maps.Keys(c.Accounts))))
	}
	return Account{}, notGranted("account", "its credential is not for agent "+agentName(agentKind), list("agents for it", a.Agents))
}

func agentName(s string) string { return cmp.Or(s, agent.AgentClaude) }

// environ is the part of the worker's environment that a turn with this account
// may inherit; its grants choose from it.
func (c *Ceiling) environ(worker []string, a Account) []string {
	value := make(map[string]string, len(worker))
	for _, kv := range worker {
		if name, v, ok := strings.Cut(kv, "="); ok {
			value[name] = v
		}
	}
	var env []string
	for _, name := range slices.Sorted(maps.Keys(value)) {
		if !a.gives(name) && covered(c.Env.Inherit, name) && !c.reserved(name) {
			env = append(env, name+"="+value[name])
		}
	}
	for _, name := range a.names() {
		if v, ok := a.Values[name]; ok {
			env = append(env, name+"="+v)
		} else if v, ok := value[a.Env[name]]; ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// gives says whether a turn with this account can be granted the variable by it.
func (a Account) gives(name string) bool {
	_, secret := a.Env[name]
	_, plain := a.Values[name]
	return secret || plain
}

// names lists the variables the account gives.
func (a Account) names() []string {
	return slices.Sorted(func(yield func(string) bool) {
		for _, m := range []map[string]string{a.Env, a.Values} {
			for n := range m {
				if !yield(n) {
					return
				}
			}
		}
	})
}

// reserved says whether a worker's variable holds an account's credential: such
// a variable reaches a turn through its account alone, whatever Inherit's
// patterns match.
func (c *Ceiling) reserved(name string) bool {
	for _, a := range c.Accounts {
		for _, source := range a.Env {
			if source == name {
				return true
			}
		}
	}
	return false
}

// covered says whether a pattern of the list covers name, itself a name or a
// prefix with "*".
func covered(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		if prefix, ok := strings.CutSuffix(p, "*"); ok {
			return strings.HasPrefix(strings.TrimSuffix(name, "*"), prefix)
		}
		return p == name
	})
}
