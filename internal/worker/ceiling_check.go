package worker

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"turnpike/internal/agent"
	"turnpike/internal/job"
)

// notGranted refuses one field of a request. allowed says what would be taken.
func notGranted(field, what, allowed string) error {
	return fmt.Errorf("%s: %s; %s: %w", field, what, allowed, agent.ErrNotGranted)
}

// list names what a ceiling allows, for a refusal.
func list(what string, l []string) string {
	if len(l) == 0 {
		return "this pool allows no " + what
	}
	return "this pool allows the " + what + " " + strings.Join(sorted(l), ", ")
}

// Check refuses a request that exceeds the ceiling with an error that wraps
// agent.ErrNotGranted and names the field. Every profile of the fallback chain
// must be inside. Paths are judged by what they resolve to now; the boundary
// judges the turn's own mounts again, when they are about to be pinned.
func (c *Ceiling) Check(r job.Request) error {
	switch {
	case r.Restricted && !c.Restricted:
		return notGranted("restricted", "read-only turns are not offered here", "the ceiling of a pool that has them says restricted: true")
	case !r.Restricted && r.Grants == nil:
		return notGranted("grants", "are missing", "a turn gets exactly what they list")
	}
	credentials := make(map[string]string)
	at := "profile"
	for p := &r.Profile; p != nil; p = p.Fallback {
		acct, err := c.account(r.AccountOf(p), p.Agent)
		if err != nil {
			return err
		}
		maps.Copy(credentials, acct.Env)
		maps.Copy(credentials, acct.Values)
		if err := c.checkProfile(at, *p, r, acct); err != nil {
			return err
		}
		at += ".fallback"
	}
	if err := c.checkWorkspace(r.Workspace); err != nil {
		return err
	}
	if !r.Restricted {
		if err := c.checkGrants(*r.Grants, r.Workspace, credentials); err != nil {
			return err
		}
	}
	for _, env := range []struct {
		field string
		set   map[string]string
	}{{"env", r.Env}, {"container_env", r.ContainerEnv}, {"vcs_env", r.VCSEnv}, {"vcs_container_env", r.VCSContainerEnv}} {
		if err := c.checkSet(env.field, env.set); err != nil {
			return err
		}
	}
	for i, dir := range r.VCSContainerPath {
		if !slices.Contains(c.PathDirs, dir) {
			return notGranted(fmt.Sprintf("vcs_container_path[%d]", i), fmt.Sprintf("%q is not offered here", dir), list("path_dirs", c.PathDirs))
		}
	}
	if _, ok := c.HostMCP[r.HostMCP]; r.HostMCP != "" && !ok {
		return notGranted("host_mcp", fmt.Sprintf("%q is not offered here", r.HostMCP), list("host_mcp servers", slices.Collect(maps.Keys(c.HostMCP))))
	}
	if c.MaxCostUSD > 0 && r.CostCapUSD > c.MaxCostUSD {
		return notGranted("cost_cap_usd", "is "+r.CostCapUSD.String(), "this pool allows at most "+c.MaxCostUSD.String())
	}
	return nil
}

func (c *Ceiling) checkProfile(at string, p job.Profile, r job.Request, acct Account) error {
	placement, err := agent.ParsePlacement(p.Placement())
	if err != nil {
		return notGranted(at+".sandbox", err.Error(), list("placements", c.Placements))
	}
	if !slices.Contains(c.Placements, placement.String()) {
		return notGranted(at+".sandbox", fmt.Sprintf("placement %s is not offered here", placement), list("placements", c.Placements))
	}
	name := agentName(p.Agent)
	if !slices.Contains(c.Agents, name) {
		return notGranted(at+".agent", fmt.Sprintf("%q is not offered here", name), list("agents", c.Agents))
	}
	if p.SandboxImage != "" && !slices.Contains(c.Images, p.SandboxImage) {
		return notGranted(at+".sandbox_image", fmt.Sprintf("%q is not offered here", p.SandboxImage), list("images", c.Images))
	}
	if p.SandboxImage == "" && placement.Sandbox == agent.SandboxContainer {
		return notGranted(at+".sandbox_image", "is missing", list("images", c.Images))
	}
	if p.VCSAccess && !c.VCS {
		return notGranted(at+".vcs_access", "version control is not offered here", "leave it out")
	}
	if len(p.SandboxDomains) > 0 {
		if c.reaches() == networkNone {
			return notGranted(at+".sandbox_domains", "the pool has no network", "want [] or nothing")
		}
		for i, d := range p.SandboxDomains {
			if c.Domains != nil && !domainCovered(c.Domains, d) {
				return notGranted(fmt.Sprintf("%s.sandbox_domains[%d]", at, i), fmt.Sprintf("%q is not offered here", d), list("domains", c.Domains))
			}
		}
	}
	if p.Timeout.Std() > c.maxTimeout() {
		return notGranted(at+".timeout", "is "+p.Timeout.String(), "this pool allows at most "+c.maxTimeout().String())
	}
	for _, tool := range p.AllowedTools {
		if err := c.checkTool(at+".allowed_tools", tool); err != nil {
			return err
		}
	}
	if err := c.checkSet(at+".env", p.Env); err != nil {
		return err
	}
	for i, s := range p.Skills {
		if !slices.Contains(c.Skills, s) {
			return notGranted(fmt.Sprintf("%s.skills[%d]", at, i), fmt.Sprintf("%q is not offered here", s), list("skills", c.Skills))
		}
	}
	for i, s := range p.PiPackages {
		if _, ok := c.PiPackages[s]; !ok {
			return notGranted(fmt.Sprintf("%s.pi_packages[%d]", at, i), fmt.Sprintf("%q is not offered here", s), list("pi_packages, by name,", slices.Collect(maps.Keys(c.PiPackages))))
		}
	}
	if _, ok := c.Shells[p.Shell]; p.Shell != "" && !ok {
		return notGranted(at+".shell", fmt.Sprintf("%q is not offered here", p.Shell), list("shells, by name,", slices.Collect(maps.Keys(c.Shells))))
	}
	if p.ContainerUseEnvironment != "" && !slices.Contains(c.ContainerUse, p.ContainerUseEnvironment) {
		return notGranted(at+".container_use_environment", fmt.Sprintf("%q is not offered here", p.ContainerUseEnvironment), list("container_use environments", c.ContainerUse))
	}
	if p.Dagger != nil && !slices.Contains(c.Dagger, p.Dagger.Engine) {
		return notGranted(at+".dagger.engine", fmt.Sprintf("%q is not offered here", p.Dagger.Engine), list("dagger_engines", c.Dagger))
	}
	for _, server := range slices.Sorted(maps.Keys(p.MCP)) {
		if err := c.checkMCP(at+".mcp."+server, server, p.MCP[server], placement, r, acct); err != nil {
			return err
		}
	}
	return nil
}

func (c *Ceiling) checkMCP(at, server string, e job.MCPEntry, placement agent.Placement, r job.Request, acct Account) error {
	if err := c.checkSet(at+".env", e.Env); err != nil {
		return err
	}
	for _, v := range slices.Sorted(maps.Values(e.Headers)) {
		if what, ok := job.LooksSecret(v); ok {
			return notGranted(at+".headers", "holds what looks like "+what, "name the worker's variable in bearer_token_env")
		}
	}
	inherited := e.EnvVars
	if e.BearerTokenEnv != "" {
		inherited = append(slices.Clone(inherited), e.BearerTokenEnv)
	}
	for _, name := range inherited {
		bound := acct.gives(name)
		if !bound && !covered(c.Env.Inherit, name) && !covered(c.Env.Set, name) {
			return notGranted(at, fmt.Sprintf("variable %s is not offered here", name), list("env.inherit", c.Env.Inherit))
		}
		if bound && (e.URL == "" || !urlCovered(acct.MCPURLs, e.URL)) {
			return notGranted(at, fmt.Sprintf("variable %s is a credential that is not for this server", name), list("servers for it, by URL,", acct.MCPURLs))
		}
	}
	if e.URL != "" {
		granted := slices.ContainsFunc(r.Grants.HostServers, func(s job.HostServer) bool { return s.Name == server })
		if !granted && !urlCovered(c.MCP.URLs, e.URL) {
			return notGranted(at+".url", "this server is not offered here", list("mcp.urls", c.MCP.URLs))
		}
		return nil
	}
	if !placement.Host() {
		return nil // it runs inside the container, where the agent could start it itself
	}
	cmd, ok := c.MCP.Commands[e.Command]
	if !ok {
		return notGranted(at+".command", fmt.Sprintf("%q is not offered here", e.Command), list("mcp.commands, by name,", slices.Collect(maps.Keys(c.MCP.Commands))))
	}
	if len(e.Args) > 0 && !cmd.MoreArgs {
		return notGranted(at+".args", "this command takes no arguments from a request", "leave them out")
	}
	return nil
}

func (c *Ceiling) checkTool(field, tool string) error {
	if strings.HasPrefix(tool, agent.MCPToolPrefix) {
		return nil // its server is held by mcp
	}
	base, _, _ := strings.Cut(tool, "(") // a narrowed tool is less than the tool
	if slices.Contains(c.Tools, agent.ToolsAll) || slices.Contains(c.Tools, tool) || slices.Contains(c.Tools, base) {
		return nil
	}
	return notGranted(field, fmt.Sprintf("tool %q is not offered here", tool), list("tools", c.Tools))
}

func (c *Ceiling) checkGrants(g job.Grants, w job.Workspace, credentials map[string]string) error {
	for _, tool := range g.Tools {
		if err := c.checkTool("grants.tools", tool); err != nil {
			return err
		}
	}
	if g.VCS && !c.VCS {
		return notGranted("grants.vcs", "version control is not offered here", "leave it out")
	}
	for i, name := range g.Env {
		if _, ok := credentials[name]; !ok && !covered(c.Env.Inherit, name) && !covered(c.Env.Set, name) {
			allowed := slices.Concat(c.Env.Inherit, c.Env.Set, slices.Collect(maps.Keys(credentials)))
			return notGranted(fmt.Sprintf("grants.env[%d]", i), fmt.Sprintf("%q is not offered here", name), list("variables", allowed))
		}
	}
	for i, m := range g.Mounts {
		field := fmt.Sprintf("grants.mounts[%d]", i)
		if _, ok := strings.CutPrefix(m.Path, workspacePrefix); ok {
			if w.Dir == "" {
				continue // a scratch directory or a checkout is the attempt's own
			}
			if err := within(field, w.Dir, m.Access, c.Workspaces.Dirs, "workspaces.dirs"); err != nil {
				return err
			}
			continue
		}
		if err := within(field+".path", m.Path, m.Access, c.Mounts, "mounts"); err != nil {
			return err
		}
	}
	if g.DaggerEngine != "" && !slices.Contains(c.Dagger, g.DaggerEngine) {
		return notGranted("grants.dagger_engine", fmt.Sprintf("%q is not offered here", g.DaggerEngine), list("dagger_engines", c.Dagger))
	}
	for i, s := range g.HostServers {
		if port, ok := c.HostServers[s.Name]; !ok || port != s.Port {
			return notGranted(fmt.Sprintf("grants.host_servers[%d]", i), fmt.Sprintf("%s on port %d is not offered here", s.Name, s.Port), list("host_servers", slices.Collect(maps.Keys(c.HostServers))))
		}
	}
	return nil
}

func (c *Ceiling) checkWorkspace(w job.Workspace) error {
	switch {
	case w.Git != nil:
		if !urlCovered(c.Workspaces.Git, w.Git.URL) {
			return notGranted("workspace.git.url", "this repository is not offered here", list("workspaces.git", c.Workspaces.Git))
		}
		u, err := url.Parse(w.Git.URL)
		if err != nil {
			return notGranted("workspace.git.url", "is not a URL", list("workspaces.git", c.Workspaces.Git))
		}
		for i, name := range w.Git.Credentials {
			if a, ok := c.Accounts[name]; !ok || !slices.Contains(a.GitHosts, u.Host) {
				return notGranted(fmt.Sprintf("workspace.git.credentials[%d]", i), fmt.Sprintf("%q is no credential for this host", name), list("hosts for it", a.GitHosts))
			}
		}
		return nil
	case w.Dir != "":
		return within("workspace.dir", w.Dir, string(agent.ReadOnly), c.Workspaces.Dirs, "workspaces.dirs")
	case w.Scratch && c.Workspaces.Scratch:
		return nil
	}
	return notGranted("workspace", "is not offered here", "see workspaces in this pool's ceiling: scratch, dirs, git")
}

// checkSet holds what a request sets itself.
func (c *Ceiling) checkSet(field string, env map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		allowed := covered(c.Env.Set, name)
		if steering(name) {
			// A pattern was not written with such a name in mind: the owner must name it.
			allowed = slices.Contains(c.Env.Set, name)
		}
		if !allowed {
			return notGranted(field+"."+name, "a request may not set it here", list("variables of env.set", c.Env.Set))
		}
		if what, ok := job.LooksSecret(env[name]); ok {
			return notGranted(field+"."+name, "looks like "+what, "keep it in the worker's environment and name its account")
		}
	}
	return nil
}

// steeringPrefixes, steeringSuffixes and steeringNames are variables that choose
// what a program loads, which servers it trusts with what, or how version control
// and the agent's CLI behave. All are compared in upper case: some programs read
// either.
var (
	steeringPrefixes = []string{
		"LD_", "DYLD_", "GCONV_", "GIT_", "GH_", "GITHUB_", "GITLAB_", "GLAB_", "SSH_", "HG", "JJ_", "SVN_",
		"ANTHROPIC_", "CLAUDE", "OPENAI_", "CODEX_", "OPENCODE", "PI_", "AZURE_", "AWS_", "GOOGLE_", "GEMINI_", "VERTEX_", "BEDROCK_",
		"NODE_", "NPM_", "YARN_", "PYTHON", "PIP_", "PERL", "RUBY", "BUNDLE_", "GEM_", "JAVA_", "JDK_", "_JAVA_", "MAVEN_", "GRADLE_", "CARGO_", "RUSTC", "RUSTUP_",
		"BASH_FUNC_", "DOCKER_", "CONTAINER_HOST", "KUBE", "XDG_", "TURNPIKE_", "SSL_CERT_", "CURL_", "OTEL_",
	}
	steeringSuffixes = []string{"_PROXY", "_BASE_URL", "_API_KEY", "_AUTH_TOKEN", "_ENDPOINT", "_CA_BUNDLE"}
	steeringNames    = []string{
		"PATH", "HOME", "SHELL", "ENV", "BASH_ENV", "BASHOPTS", "SHELLOPTS", "PS4", "IFS", "CDPATH", "PROMPT_COMMAND", "ZDOTDIR", "TMPDIR",
		"EDITOR", "VISUAL", "PAGER", "MANPAGER", "LESSOPEN", "LESSCLOSE", "BROWSER", "HOSTALIASES", "LOCALDOMAIN", "RES_OPTIONS", "NLSPATH", "TERMINFO",
		"GOFLAGS", "GOPROXY", "GOENV", "GOTOOLCHAIN", "GONOSUMDB", "GOINSECURE", "CC", "CXX", "MAKEFLAGS", "BASE_URL", "CLASSPATH",
	}
)

func steering(name string) bool {
	n := strings.ToUpper(name)
	has := func(test func(string, string) bool, l []string) bool {
		return slices.ContainsFunc(l, func(s string) bool { return test(n, s) })
	}
	return has(strings.HasPrefix, steeringPrefixes) || has(strings.HasSuffix, steeringSuffixes) || slices.Contains(steeringNames, n)
}

// within holds a path to the innermost root that contains what it resolves to.
// Resolved paths are compared, whole names at a time: a prefix of the text, or a
// link, proves nothing (CVE-2025-53109).
func within(field, p, access string, roots []Root, section string) error {
	real, err := filepath.EvalSymlinks(p)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return notGranted(field, p+" does not exist here", offered(section, roots))
	case err != nil:
		return notGranted(field, p+" cannot be resolved here", offered(section, roots))
	}
	if problem := judge(real, access, roots); problem != "" {
		return notGranted(field, p+" "+problem, offered(section, roots))
	}
	return nil
}

func offered(section string, roots []Root) string {
	var allowed []string
	for _, r := range roots {
		if r.Access != accessNone {
			allowed = append(allowed, r.Path+" ("+r.Access+")")
		}
	}
	return list(section, allowed)
}

// judge says what keeps a resolved path from this access; nothing does when it is
// empty.
func judge(real, access string, roots []Root) (problem string) {
	best := Root{Access: accessNone}
	for _, r := range roots {
		// A root that cannot be resolved offers nothing, but one that denies still
		// does so by its name.
		at := r.Path
		if resolved, err := filepath.EvalSymlinks(r.Path); err == nil {
			at = resolved
		} else if r.Access != accessNone {
			continue
		}
		switch {
		case contains(at, real):
			if len(at) > len(best.Path) || len(at) == len(best.Path) && rank(r.Access) < rank(best.Access) {
				best = Root{Path: at, Access: r.Access}
			}
		case contains(real, at) && rank(r.Access) < rank(access):
			return fmt.Sprintf("contains %s, which the pool gives %s", r.Path, r.Access)
		}
	}
	switch {
	case rank(best.Access) == 0:
		return "is not inside what this pool offers"
	case rank(access) > rank(best.Access):
		return "is offered read-only"
	}
	return ""
}

// Hold has b's verdict judged once more by what it resolved: between Check and
// Verify another turn may have turned a directory into a link. From Verify on the
// launcher holds the paths themselves. own is the attempt's own workspace, which
// its request may use as it likes; empty for a directory of the host.
func (c *Ceiling) Hold(b agent.Boundary, own string) agent.Boundary { return held{b, c, own} }

type held struct {
	agent.Boundary
	ceiling *Ceiling
	own     string
}

func (h held) Verify(req agent.Request) (*agent.Turn, error) {
	t, err := h.Boundary.Verify(req)
	if err != nil {
		return nil, err
	}
	roots := slices.Concat(h.ceiling.Mounts, h.ceiling.Workspaces.Dirs)
	for _, m := range t.Mounts {
		if h.own != "" && contains(h.own, m.Path) || req.SessionDir != "" && contains(req.SessionDir, m.Path) {
			continue
		}
		if problem := judge(m.Path, string(m.Access), roots); problem != "" {
			return nil, notGranted("grants.mounts", m.Path+" "+problem, offered("mounts", roots))
		}
	}
	return t, nil
}

func rank(access string) int {
	switch agent.Access(access) {
	case agent.ReadOnly:
		return 1
	case agent.ReadWrite:
		return 2
	}
	return 0
}

// contains says whether the clean absolute path p is dir or lies beneath it.
func contains(dir, p string) bool {
	rel, err := filepath.Rel(dir, p)
	return err == nil && filepath.IsLocal(rel)
}

// urlCovered says whether one of the prefixes contains s: same scheme and host,
// and the path beneath the prefix's, whole segments at a time.
func urlCovered(prefixes []string, s string) bool {
	u, err := url.Parse(s)
	if err != nil || u.Opaque != "" {
		return false
	}
	clean := path.Clean("/" + u.Path)
	if strings.Contains(u.EscapedPath(), "%") || clean != "/"+strings.Trim(u.Path, "/") {
		return false // dots and escapes are read differently by different servers
	}
	return slices.ContainsFunc(prefixes, func(prefix string) bool {
		p, err := url.Parse(prefix)
		if err != nil || p.Scheme != u.Scheme || !strings.EqualFold(p.Host, u.Host) {
			return false
		}
		if p.User != nil && (u.User == nil || u.User.String() != p.User.String()) {
			return false
		}
		at := path.Clean("/" + p.Path)
		return at == "/" || clean == at || strings.HasPrefix(clean, at+"/")
	})
}

// domainCovered says whether one of the list's hosts, or "*." suffixes, covers d.
func domainCovered(domains []string, d string) bool {
	return slices.ContainsFunc(domains, func(a string) bool {
		if suffix, ok := strings.CutPrefix(a, "*"); ok {
			return strings.HasSuffix(d, suffix) && d != suffix
		}
		return a == d
	})
}
