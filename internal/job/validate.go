package job

import (
	"fmt"
	"maps"
	"net/url"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// The values of Profile.Agent, Sandbox and Effort. agent has the same lists; a
// test in package worker holds them equal.
var (
	agents    = []string{"claude", "codex", "opencode", "pi"}
	sandboxes = []string{"none", "claude", "container", "sbx"}
	efforts   = []string{"minimal", "low", "medium", "high", "xhigh", "max"}
)

var (
	envForm    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	envPattern = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)?\*?$`)
	serverForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	domainForm = regexp.MustCompile(`^(\*\.)?([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	toolForm   = regexp.MustCompile(`^[A-Za-z0-9_.*:-]+(\([^\x00-\x1f]*\))?$`)
	// refForm is a job's id, or the place of an earlier request of the same batch.
	refForm     = regexp.MustCompile(`^(#[0-9]{1,3}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})$`)
	outcomeForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
)

// Sizes beyond those of the whole request.
const (
	maxFallbacks = 8
	maxList      = 256
	maxText      = 256
	maxValue     = 32 << 10
)

// problems gathers what is wrong with a request.
type problems Invalid

func (p *problems) add(field, format string, args ...any) {
	*p = append(*p, &FieldError{Field: field, Problem: fmt.Sprintf(format, args...)})
}

// validate checks everything about r that does not depend on a worker. It is
// total: it gathers every problem. Its error is an Invalid.
func (r *Request) validate() error {
	var p problems
	if r.APIVersion != APIVersion {
		p.add("api_version", "want %q", APIVersion)
	}
	p.text("name", r.Name, 128)
	switch {
	case strings.TrimSpace(r.Prompt) == "":
		p.add("prompt", "is required: it is the task the agent is given")
	case len(r.Prompt) > MaxPromptBytes:
		p.add("prompt", "is %d bytes; at most %d are taken: put large material into the workspace", len(r.Prompt), MaxPromptBytes)
	}
	if len(r.SystemPrompt) > MaxPromptBytes {
		p.add("system_prompt", "is %d bytes; at most %d are taken", len(r.SystemPrompt), MaxPromptBytes)
	}
	r.Profile.validate(&p, "profile", 0)
	p.distinct(&r.Profile)
	switch {
	case r.Restricted:
		r.validateRestricted(&p)
	case r.Grants == nil:
		p.add("grants", "are required: a turn gets exactly what they list, {} is nothing")
	default:
		r.Grants.validate(&p)
	}
	p.list("valid_outcomes", r.ValidOutcomes, outcomeForm, `a status of letters, digits, "_", "." and "-", at most 64`)
	r.Workspace.validate(&p)
	p.env("env", r.Env)
	p.env("container_env", r.ContainerEnv)
	p.env("vcs_env", r.VCSEnv)
	p.env("vcs_container_env", r.VCSContainerEnv)
	for i, dir := range r.VCSContainerPath {
		p.abs(indexed("vcs_container_path", i), dir)
	}
	p.name("host_mcp", r.HostMCP)
	p.text("resume_id", r.ResumeID, maxText)
	if strings.HasPrefix(r.ResumeID, "-") {
		p.add("resume_id", "begins with a dash; it is an agent's conversation id")
	}
	if r.ResumeFrom != "" {
		p.reference("resume_from", r.ResumeFrom)
		if r.ResumeID != "" {
			p.add("resume_from", "goes without resume_id: one of them names the conversation")
		}
	}
	if r.CostCapUSD < 0 {
		p.add("cost_cap_usd", "is negative; want more than zero, or leave it out for no cap")
	}
	p.name("account", r.Account)
	p.text("work.key", r.Work.Key, maxText)
	if len(r.Work.Tags) > 32 {
		p.add("work.tags", "has %d entries; at most 32", len(r.Work.Tags))
	}
	for i, t := range r.Work.Tags {
		p.text(indexed("work.tags", i), t, maxText)
	}
	r.validateQueueing(&p)
	if len(p) > 0 {
		return Invalid(p)
	}
	return nil
}

// What a read-only turn takes, and what the queue does with it. Any other field that is
// set is refused, one that is added later included.
var (
	restrictedFields = []string{
		"APIVersion", "Name", "Prompt", "Restricted", "SystemPrompt", "Profile", "Workspace", "ResumeID", "ResumeFrom", "CostCapUSD", "Account", "Work",
		"Pool", "Tenant", "Priority", "RunAt", "Deadline", "After", "DedupKey", "ConcurrencyKey", "Retry", "Limits",
	}
	restrictedProfile = []string{"Name", "Agent", "Model", "Account", "Fallback", "Effort", "MaxTurns", "Timeout", "Confine"}
)

func (r *Request) validateRestricted(p *problems) {
	if r.Grants != nil {
		p.add("grants", "are fixed for a restricted turn: leave them out")
	}
	p.unset("", reflect.ValueOf(*r), append([]string{"Grants"}, restrictedFields...))
	at := "profile."
	for one := &r.Profile; one != nil; one = one.Fallback {
		profile := *one
		if profile.Sandbox == sandboxes[0] { // the same as none, said aloud
			profile.Sandbox = ""
		}
		p.unset(at, reflect.ValueOf(profile), restrictedProfile)
		at += "fallback."
	}
}

// unset refuses the fields of a struct that are set and not listed. An empty list says
// something, an empty map does not.
func (p *problems) unset(prefix string, v reflect.Value, listed []string) {
	for i := range v.NumField() {
		field, value := v.Type().Field(i), v.Field(i)
		if value.IsZero() || value.Kind() == reflect.Map && value.Len() == 0 || slices.Contains(listed, field.Name) {
			continue
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		p.add(prefix+name, "is nothing a restricted turn has: leave it out")
	}
}

// distinct refuses a chain of fallbacks that comes back to a profile it has passed: it
// would have no end, and nobody means one that ends there.
func (p *problems) distinct(first *Profile) {
	type named struct {
		at string
		Profile
	}
	var passed []named
	at := "profile"
	for one := first; one != nil && len(passed) <= maxFallbacks; one = one.Fallback {
		own := named{at, *one}
		own.Fallback = nil
		for _, before := range passed {
			if reflect.DeepEqual(own.Profile, before.Profile) {
				p.add(at, "is the same as %s: fallbacks do not go in a circle", before.at)
				return
			}
		}
		passed = append(passed, own)
		at += ".fallback"
	}
}

func (r *Request) validateQueueing(p *problems) {
	if !poolForm.MatchString(r.Pool) {
		p.add("pool", "%q: want 1 to 32 of a-z, 0-9 and \"-\"", clip(r.Pool))
	}
	p.name("tenant", r.Tenant)
	if r.Priority < -100 || r.Priority > 100 {
		p.add("priority", "is %d; want -100 (last) to 100 (first)", r.Priority)
	}
	p.year("run_at", r.RunAt)
	p.year("deadline", r.Deadline)
	if !r.Deadline.IsZero() && r.Deadline.Before(r.RunAt) {
		p.add("deadline", "is before run_at: the job could never start")
	}
	r.validateAfter(p)
	p.text("dedup_key", r.DedupKey, maxText)
	p.text("concurrency_key", r.ConcurrencyKey, maxText)
	p.oneOf("retry.policy", string(r.Retry.Policy), toStrings(RetryPolicies()))
	if r.Retry.MaxTries < 1 || r.Retry.MaxTries > 20 {
		p.add("retry.max_tries", "is %d; want 1 to 20", r.Retry.MaxTries)
	}
	p.duration("retry.backoff", r.Retry.Backoff)
	p.duration("limits.start", r.Limits.Start)
	p.duration("limits.idle", r.Limits.Idle)
}

func (r *Request) validateAfter(p *problems) {
	if r.After == nil {
		return
	}
	if len(r.After.Jobs) == 0 && r.ResumeFrom == "" {
		p.add("after.jobs", "names no job to wait for")
	}
	if len(r.After.Jobs) > MaxAfter {
		p.add("after.jobs", "has %d entries; at most %d", len(r.After.Jobs), MaxAfter)
	}
	for i, ref := range r.After.Jobs {
		p.reference(indexed("after.jobs", i), ref)
	}
	p.oneOf("after.on_failure", string(r.After.OnFailure), toStrings(AfterPolicies()))
}

// At refuses what r names by a place in its batch that is not before its own. A request
// that comes alone is at 0. Its error is a *FieldError.
func (r *Request) At(place int) error {
	before := func(field, ref string) error {
		at, ok := strings.CutPrefix(ref, "#")
		if !ok {
			return nil
		}
		if n, err := strconv.Atoi(at); err != nil || n >= place {
			return &FieldError{field, fmt.Sprintf("%s is no request of this batch before this one; the first is #0", ref)}
		}
		return nil
	}
	if r.After != nil {
		for i, ref := range r.After.Jobs {
			if err := before(indexed("after.jobs", i), ref); err != nil {
				return err
			}
		}
	}
	return before("resume_from", r.ResumeFrom)
}

func (p *Profile) validate(bad *problems, at string, depth int) {
	if depth > maxFallbacks {
		bad.add(at, "more than %d fallbacks", maxFallbacks)
		return
	}
	var own problems // their fields are named in full only when there are any
	own.text(".name", p.Name, 128)
	own.oneOf(".agent", p.Agent, agents)
	own.oneOf(".sandbox", p.Sandbox, sandboxes)
	if p.Confine && p.Sandbox != "none" && p.Sandbox != "claude" {
		own.add(".confine", "goes with sandbox \"none\" or \"claude\" only; a %s turn is confined by its sandbox", p.Sandbox)
	}
	own.text(".model", p.Model, 128)
	own.name(".account", p.Account)
	if p.Effort != "" {
		own.oneOf(".effort", p.Effort, efforts)
	}
	if strings.HasPrefix(p.Model, "-") {
		own.add(".model", "begins with a dash")
	}
	if p.MaxTurns < 0 || p.MaxTurns > 10_000 {
		own.add(".max_turns", "is %d; want 1 to 10000, or 0 for no limit", p.MaxTurns)
	}
	own.duration(".timeout", p.Timeout)
	own.list(".allowed_tools", p.AllowedTools, toolForm, "a tool's name")
	own.list(".disallowed_tools", p.DisallowedTools, toolForm, "a tool's name")
	for _, name := range slices.Sorted(maps.Keys(p.MCP)) {
		if !serverForm.MatchString(name) {
			own.add(".mcp", "server name %q: want 1 to 64 letters, digits, \"_\" and \"-\"", clip(name))
			continue
		}
		e := p.MCP[name]
		e.validate(&own, ".mcp."+name)
	}
	if p.SandboxImage != "" {
		own.text(".sandbox_image", p.SandboxImage, maxText)
		if p.Sandbox != "container" && p.Sandbox != "sbx" {
			own.add(".sandbox_image", "goes with sandbox \"container\" or \"sbx\" only")
		}
		if strings.HasPrefix(p.SandboxImage, "-") {
			own.add(".sandbox_image", "begins with a dash")
		}
	}
	if p.Dagger != nil {
		if p.Sandbox != "sbx" {
			own.add(".dagger", "goes with sandbox \"sbx\" only")
		}
		own.required(".dagger.engine", p.Dagger.Engine)
		own.required(".dagger.version", p.Dagger.Version)
	}
	own.list(".sandbox_domains", p.SandboxDomains, domainForm, "a lower-case host name, or \"*.\" and one")
	own.text(".container_use_environment", p.ContainerUseEnvironment, maxText)
	own.name(".shell", p.Shell)
	own.env(".env", p.Env)
	for i, s := range p.Skills {
		own.name(indexed(".skills", i), s)
	}
	for i, s := range p.PiPackages {
		own.text(indexed(".pi_packages", i), s, maxText)
	}
	for _, one := range own {
		bad.add(at+one.Field, "%s", one.Problem)
	}
	if p.Fallback != nil {
		p.Fallback.validate(bad, at+".fallback", depth+1)
	}
}

func (e *MCPEntry) validate(p *problems, at string) {
	switch {
	case (e.Command == "") == (e.URL == ""):
		p.add(at, "want either command (a stdio server) or url (an HTTP server)")
	case e.Type != "" && e.Type != "stdio" && e.Type != "http":
		p.add(at+".type", "%q: want \"stdio\" or \"http\"", clip(e.Type))
	case e.Type == "stdio" && e.Command == "", e.Type == "http" && e.URL == "":
		p.add(at+".type", "%q does not fit the rest of the entry", e.Type)
	}
	if e.URL != "" {
		p.url(at+".url", e.URL, "http", "https")
	}
	if len(e.Args) > maxList {
		p.add(at+".args", "has %d entries; at most %d", len(e.Args), maxList)
	}
	for i, a := range e.Args {
		p.value(indexed(at+".args", i), a)
	}
	p.env(at+".env", e.Env)
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		if strings.ContainsAny(name, "\r\n: ") || strings.ContainsAny(e.Headers[name], "\r\n") {
			p.add(at+".headers", "%q: not a header", clip(name))
			continue
		}
		p.value(at+".headers."+name, e.Headers[name])
	}
	p.list(at+".env_vars", e.EnvVars, envForm, "a variable's name")
	if e.BearerTokenEnv != "" && !envForm.MatchString(e.BearerTokenEnv) {
		p.add(at+".bearer_token_env", "%q: want the name of a variable, never the token itself", clip(e.BearerTokenEnv))
	}
}

func (g *Grants) validate(p *problems) {
	p.list("grants.env", g.Env, envPattern, "a variable's name, with a trailing * for a prefix")
	for i, e := range g.Env {
		if e == "*" || e == "" {
			p.add(indexed("grants.env", i), "%q would grant every variable; name them", e)
		}
	}
	p.list("grants.tools", g.Tools, toolForm, "a tool's name, \"*\" or \"mcp__<server>\"")
	if len(g.Mounts) > maxList {
		p.add("grants.mounts", "has %d entries; at most %d", len(g.Mounts), maxList)
	}
	for i, m := range g.Mounts {
		at := indexed("grants.mounts", i)
		p.oneOf(at+".access", m.Access, []string{"ro", "rw"})
		if sub, ok := strings.CutPrefix(m.Path, "workspace:"); ok {
			if sub != "" && (path.IsAbs(sub) || path.Clean(sub) != sub || sub == ".." || strings.HasPrefix(sub, "../")) {
				p.add(at+".path", "%q: want \"workspace:\" and a clean path beneath it", clip(m.Path))
			}
			continue
		}
		p.abs(at+".path", m.Path)
	}
	if g.Within != "" {
		p.abs("grants.within", g.Within)
	}
	p.text("grants.dagger_engine", g.DaggerEngine, maxText)
	for i, s := range g.HostServers {
		at := indexed("grants.host_servers", i)
		if !serverForm.MatchString(s.Name) {
			p.add(at+".name", "%q: want the name of an entry of profile.mcp", clip(s.Name))
		}
		if s.Port < 1 || s.Port > 65535 {
			p.add(at+".port", "is %d; want 1 to 65535", s.Port)
		}
	}
}

func (w *Workspace) validate(p *problems) {
	n := 0
	for _, set := range []bool{w.Dir != "", w.Scratch, w.Git != nil} {
		if set {
			n++
		}
	}
	if n != 1 {
		p.add("workspace", "want exactly one of dir, scratch and git")
	}
	if w.Dir != "" {
		p.abs("workspace.dir", w.Dir)
	}
	if g := w.Git; g != nil {
		p.url("workspace.git.url", g.URL, "https", "ssh", "file")
		p.text("workspace.git.ref", g.Ref, maxText)
		if strings.HasPrefix(g.Ref, "-") {
			p.add("workspace.git.ref", "begins with a dash")
		}
		for i, c := range g.Credentials {
			p.name(indexed("workspace.git.credentials", i), c)
		}
	}
}

// text holds a line of free text: no control characters, bounded.
func (p *problems) text(field, s string, most int) {
	if len(s) > most {
		p.add(field, "is %d bytes; at most %d", len(s), most)
	}
	if strings.ContainsFunc(s, unicode.IsControl) {
		p.add(field, "contains a control character")
	}
}

// name holds an optional name that becomes part of paths, subjects and logs.
func (p *problems) name(field, s string) {
	if s != "" && !nameForm.MatchString(s) {
		p.add(field, "%q: want a name of letters, digits and . _ : @ / -, at most 128", clip(s))
	}
}

// reference holds what names another job. Whether there is one only the queue knows.
func (p *problems) reference(field, s string) {
	if !refForm.MatchString(s) {
		p.add(field, "%q: want the id of a job, or the place of an earlier request of the same batch, such as #0", clip(s))
	}
}

func (p *problems) required(field, s string) {
	if s == "" {
		p.add(field, "is required")
	}
	p.text(field, s, maxText)
}

func (p *problems) oneOf(field, s string, want []string) {
	if !slices.Contains(want, s) {
		p.add(field, "%q: want one of %s", clip(s), strings.Join(want, ", "))
	}
}

func (p *problems) list(field string, l []string, form *regexp.Regexp, want string) {
	if len(l) > maxList {
		p.add(field, "has %d entries; at most %d", len(l), maxList)
	}
	for i, s := range l {
		if len(s) > maxText || !form.MatchString(s) {
			p.add(indexed(field, i), "%q: want %s", clip(s), want)
		}
	}
}

func (p *problems) abs(field, s string) {
	switch {
	case !path.IsAbs(s):
		p.add(field, "%q is not absolute; a path is absolute or begins with \"workspace:\" where that is allowed", clip(s))
	case path.Clean(s) != s:
		p.add(field, "%q is not clean; write %q", clip(s), clip(path.Clean(s)))
	case len(s) > 4096:
		p.add(field, "is longer than 4096 bytes")
	}
}

func (p *problems) duration(field string, d Duration) {
	if d < 0 || d.Std() > MaxTimeout {
		p.add(field, "is %s; want more than 0s and at most %s", d, MaxTimeout)
	}
}

func (p *problems) year(field string, t time.Time) {
	if !t.IsZero() && (t.Year() < 2020 || t.Year() > 2200) {
		p.add(field, "is in the year %d", t.Year())
	}
}

func (p *problems) url(field, s string, schemes ...string) {
	u, err := url.Parse(s)
	switch {
	case err != nil || !slices.Contains(schemes, u.Scheme) || (u.Host == "" && u.Scheme != "file"):
		p.add(field, "want a URL with scheme %s", strings.Join(schemes, " or ")) // never echoed: it may hold a password
	case u.User != nil && (u.Scheme != "ssh" || hasPassword(u)):
		p.add(field, "holds a user or password; name a credential of the worker instead")
	case len(s) > 2048:
		p.add(field, "is longer than 2048 bytes")
	default:
		p.value(field, s)
	}
}

func hasPassword(u *url.URL) bool {
	_, ok := u.User.Password()
	return ok
}

func (p *problems) env(field string, env map[string]string) {
	if len(env) > maxList {
		p.add(field, "has %d entries; at most %d", len(env), maxList)
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !envForm.MatchString(name) {
			p.add(field, "%q is not the name of a variable", clip(name))
			continue
		}
		p.value(field+"."+name, env[name])
	}
}

// value holds what is handed to a program, and keeps secrets out of requests:
// they would be stored, shown and reported.
func (p *problems) value(field, s string) {
	if len(s) > maxValue {
		p.add(field, "is %d bytes; at most %d", len(s), maxValue)
	}
	if what, ok := LooksSecret(s); ok {
		p.add(field, "looks like %s: a request is stored and shown; keep secrets in the worker's environment and name them in grants.env or account", what)
	}
}

// secrets are the published forms of credentials that are recognised.
var secrets = []struct {
	form *regexp.Regexp
	what string
}{
	{regexp.MustCompile(`\bsk-ant-[A-Za-z0-9_-]{8,}`), "an Anthropic key"},
	{regexp.MustCompile(`\bsk-(proj-|svcacct-|or-)?[A-Za-z0-9_-]{20,}`), "an OpenAI-style key"},
	{regexp.MustCompile(`\b(gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})`), "a GitHub token"},
	{regexp.MustCompile(`\bglpat-[A-Za-z0-9_-]{16,}`), "a GitLab token"},
	{regexp.MustCompile(`\bxox[abeprs]-[A-Za-z0-9-]{10,}`), "a Slack token"},
	{regexp.MustCompile(`\b(AKIA|ASIA)[A-Z0-9]{16}\b`), "an AWS access key"},
	{regexp.MustCompile(`\bAIza[A-Za-z0-9_-]{35}\b`), "a Google API key"},
	{regexp.MustCompile(`\bnpm_[A-Za-z0-9]{30,}`), "an npm token"},
	{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{8,}`), "a JSON web token"},
	{regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY`), "a private key"},
	{regexp.MustCompile(`(?i)^bearer\s+[A-Za-z0-9._~+/-]{16,}=*$`), "a bearer token"},
	{regexp.MustCompile(`\b[a-z][a-z0-9+]*://[^/\s:@]+:[^/\s:@]+@`), "a URL with a password"},
}

// LooksSecret says whether s holds something of the form of a known kind of
// credential, and which.
func LooksSecret(s string) (what string, ok bool) {
	for _, k := range secrets {
		if k.form.MatchString(s) {
			return k.what, true
		}
	}
	return "", false
}

func indexed(field string, i int) string { return fmt.Sprintf("%s[%d]", field, i) }

func toStrings[S ~string](l []S) []string {
	out := make([]string, len(l))
	for i, s := range l {
		out[i] = string(s)
	}
	return out
}

// Agents lists the agents a profile may name.
func Agents() []string { return slices.Clone(agents) }

// Sandboxes lists the sandboxes a profile may name.
func Sandboxes() []string { return slices.Clone(sandboxes) }
