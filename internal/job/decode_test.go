package job_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/job"
)

const minimal = `{
	"api_version": "turnpike/v1",
	"prompt": "say hello",
	"profile": {"sandbox": "none", "confine": true},
	"grants": {"mounts": [{"path": "workspace:", "access": "rw"}]},
	"workspace": {"scratch": true}
}`

// with gives the minimal request with one member replaced or added.
func with(member, value string) string {
	lines := strings.Split(minimal, "\n")
	for i, l := range lines {
		if strings.HasPrefix(strings.TrimSpace(l), `"`+member+`"`) {
			tail := ""
			if strings.HasSuffix(l, ",") {
				tail = ","
			}
			lines[i] = `"` + member + `": ` + value + tail
			return strings.Join(lines, "\n")
		}
	}
	return strings.Replace(minimal, "{\n", "{\n\""+member+"\": "+value+",\n", 1)
}

func TestDecode(t *testing.T) {
	t.Run("fills in what is left out", func(t *testing.T) {
		r, err := job.Decode([]byte(minimal))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := r.Lane(), (job.Lane{Placement: "none-confined", Pool: "default"}); got != want {
			t.Errorf("lane %v, want %v", got, want)
		}
		want := job.Retry{Policy: job.RetryIfNotStarted, MaxTries: 3, Backoff: job.Duration(30 * time.Second)}
		if diff := cmp.Diff(want, r.Retry); diff != "" {
			t.Error(diff)
		}
		if r.Profile.Timeout.Std() != time.Hour || r.Profile.Agent != "claude" || r.Tenant != "default" {
			t.Errorf("defaults: %+v", r)
		}
	})
	t.Run("keeps nil and empty apart", func(t *testing.T) {
		for text, isNil := range map[string]bool{`null`: true, `[]`: false} {
			r, err := job.Decode([]byte(with("valid_outcomes", text)))
			if err != nil {
				t.Fatal(err)
			}
			if (r.ValidOutcomes == nil) != isNil {
				t.Errorf("valid_outcomes %s: nil is %t", text, r.ValidOutcomes == nil)
			}
		}
	})
	t.Run("takes every field", func(t *testing.T) {
		if _, err := job.Decode([]byte(everything)); err != nil {
			t.Fatal(err)
		}
	})
}

const everything = `{
	"api_version": "turnpike/v1", "name": "builder-task-12-r1", "prompt": "p", "system_prompt": "s",
	"profile": {"name": "builder", "agent": "claude", "model": "m", "effort": "high", "max_turns": 4, "timeout": "15m",
		"allowed_tools": ["Bash(echo *)"], "disallowed_tools": ["Write"], "confine": true,
		"mcp": {"a": {"command": "srv", "args": ["x"], "env": {"A": "b"}, "env_vars": ["T"]}, "b": {"type": "http", "url": "https://m.example/x", "headers": {"X-A": "${T}"}, "bearer_token_env": "T"}},
		"sandbox_domains": ["a.example"], "env": {"A": "b"}, "skills": ["s"], "shell": "bash", "vcs_access": true,
		"fallback": {"agent": "codex", "sandbox": "container", "sandbox_image": "img:1"}},
	"grants": {"env": ["A", "CI_*"], "tools": ["*", "mcp__a"], "mounts": [{"path": "/repo", "access": "ro"}, {"path": "workspace:sub", "access": "rw"}], "within": "/repo", "vcs": true, "host_servers": [{"name": "a", "port": 80}]},
	"valid_outcomes": ["done", "blocked"], "workspace": {"git": {"url": "https://git.example/x.git", "ref": "main", "credentials": ["bot"]}},
	"env": {"A": "b"}, "container_env": {}, "vcs_env": {}, "vcs_container_env": {}, "vcs_container_path": ["/opt/wrap"], "host_mcp": "h", "resume_id": "r",
	"cost_cap_usd": "2.50", "account": "team-a", "work": {"key": "T-1", "tags": ["x"]},
	"pool": "big", "tenant": "acme", "priority": 5, "run_at": "2030-01-01T00:00:00Z", "deadline": "2030-01-02T00:00:00Z",
	"dedup_key": "d", "concurrency_key": "c", "retry": {"policy": "resume", "max_tries": 2, "backoff": "1m"}, "limits": {"start": "30s", "idle": "10m"},
	"after": {"jobs": ["0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11", "#0"], "on_failure": "run"}
}`

func TestDecodeRefuses(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 70) + "1" + strings.Repeat("}", 70)
	for name, c := range map[string]struct{ body, field, says string }{
		"nothing":                {"", "", "empty"},
		"not an object":          {`[1]`, "", "JSON object"},
		"cut off":                {minimal[:60], "", "ends too early"},
		"more behind it":         {minimal + "{}", "", ""},
		"a wrong type":           {with("prompt", `7`), "prompt", "want a string, not a number"},
		"a nested wrong type":    {with("grants", `{"mounts":[{"path":1,"access":"ro"}]}`), "grants.mounts[0].path", "want a string"},
		"an unknown field":       {with("promt", `"x"`), "promt", "unknown field"},
		"an unknown nested one":  {with("workspace", `{"scratch":true,"dirr":""}`), "workspace.dirr", "unknown field"},
		"another case":           {with("Prompt", `"x"`), "Prompt", "unknown field"},
		"a duplicate key":        {strings.Replace(minimal, "{\n", "{\"name\":\"a\",\"name\":\"b\",\n", 1), "name", "twice"},
		"too large":              {with("system_prompt", `"`+strings.Repeat("x", job.MaxRequestBytes)+`"`), "", "at most"},
		"too large a prompt":     {with("prompt", `"`+strings.Repeat("x", job.MaxPromptBytes+1)+`"`), "prompt", "at most"},
		"bad UTF-8":              {with("prompt", "\"a\xffb\""), "prompt", "UTF-8"},
		"NUL":                    {with("prompt", `"a\u0000b"`), "prompt", "NUL"},
		"NUL in a name":          {with("env", `{"A\u0000":"b"}`), "env.A\x00", "NUL"},
		"deep nesting":           {with("env", deep), "", "nested deeper"},
		"a negative cost cap":    {with("cost_cap_usd", `"-1"`), "cost_cap_usd", "negative"},
		"a cost cap as a number": {with("cost_cap_usd", `1.5`), "cost_cap_usd", "decimal string"},
		"a relative mount":       {with("grants", `{"mounts":[{"path":"src","access":"ro"}]}`), "grants.mounts[0].path", "not absolute"},
		"dots in a mount":        {with("grants", `{"mounts":[{"path":"/a/../b","access":"ro"}]}`), "grants.mounts[0].path", "not clean"},
		"out of the workspace":   {with("grants", `{"mounts":[{"path":"workspace:../x","access":"ro"}]}`), "grants.mounts[0].path", "beneath"},
		"unknown access":         {with("grants", `{"mounts":[{"path":"/a","access":"w"}]}`), "grants.mounts[0].access", "ro, rw"},
		"an unknown sandbox":     {with("profile", `{"sandbox":"vm"}`), "profile.sandbox", "none, claude"},
		"a confined container":   {with("profile", `{"sandbox":"container","confine":true}`), "profile.confine", "only"},
		"a profile by name":      {with("profile", `"builder"`), "profile", "written out"},
		"an unknown agent":       {with("profile", `{"agent":"gpt"}`), "profile.agent", "claude, codex"},
		"no grants":              {strings.Replace(minimal, `"grants": {"mounts": [{"path": "workspace:", "access": "rw"}]},`, "", 1), "grants", "required"},
		"every variable":         {with("grants", `{"env":["*"]}`), "grants.env[0]", "every variable"},
		"no workspace":           {with("workspace", `{}`), "workspace", "exactly one"},
		"two workspaces":         {with("workspace", `{"scratch":true,"dir":"/a"}`), "workspace", "exactly one"},
		"a password in a URL":    {with("workspace", `{"git":{"url":"https://u:hunter2@h/x"}}`), "workspace.git.url", "credential"},
		"an option as a ref":     {with("workspace", `{"git":{"url":"https://h/x","ref":"--upload-pack=x"}}`), "workspace.git.ref", "dash"},
		"an ext URL":             {with("workspace", `{"git":{"url":"ext::sh -c id"}}`), "workspace.git.url", "scheme"},
		"a secret in env":        {with("env", `{"K":"sk-ant-REDACTED"}`), "env.K", "Anthropic key"},
		"a bad duration":         {with("limits", `{"idle":"soon"}`), "limits.idle", "duration"},
		"a duration as a number": {with("limits", `{"idle":5}`), "limits.idle", "duration"},
		"a negative timeout":     {with("profile", `{"timeout":"-1s"}`), "profile.timeout", "at most"},
		"a bad time":             {with("run_at", `"tomorrow"`), "run_at", "RFC 3339"},
		"an early deadline":      {with("deadline", `"2020-01-01T00:00:00Z","run_at":"2030-01-01T00:00:00Z"`), "deadline", "before run_at"},
		"after nothing":          {with("after", `{"on_failure":"run"}`), "after.jobs", "names no job"},
		"after no job":           {with("after", `{"jobs":["0190b5a0-7c1e-7d3a-9c53-0d1c8a6f2b11","x"]}`), "after.jobs[1]", "the id of a job"},
		"after too many":         {with("after", `{"jobs":[`+strings.Repeat(`"#0",`, 32)+`"#1"]}`), "after.jobs", "at most 32"},
		"after, and then":        {with("after", `{"jobs":["#0"],"on_failure":"skip"}`), "after.on_failure", "fail, run"},
		"resumed from no job":    {with("resume_from", `"conv"`), "resume_from", "the id of a job"},
		"resumed twice":          {with("resume_from", `"#0","resume_id":"c"`), "resume_from", "without resume_id"},
		"a bad pool":             {with("pool", `"Big Pool"`), "pool", "a-z"},
		"another version":        {with("api_version", `"v0"`), "api_version", "turnpike/v1"},
		"half an MCP entry":      {with("profile", `{"mcp":{"a":{}}}`), "profile.mcp.a", "either command"},
		"endless fallbacks":      {with("profile", strings.Repeat(`{"fallback":`, 12)+`{}`+strings.Repeat(`}`, 12)), "profile", "fallbacks"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := job.Decode([]byte(c.body))
			if !errors.Is(err, job.ErrInvalid) {
				t.Fatalf("error %v, want an ErrInvalid", err)
			}
			fe, ok := errors.AsType[*job.FieldError](err)
			if !ok {
				t.Fatalf("%T holds no FieldError", err)
			}
			if c.field != "" && !strings.HasPrefix(fe.Field, c.field) {
				t.Errorf("field %q, want %q (%v)", fe.Field, c.field, err)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q does not say %q", err, c.says)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%q gives a secret away", err)
			}
		})
	}
	t.Run("every problem at once", func(t *testing.T) {
		_, err := job.Decode([]byte(`{"api_version":"x","prompt":"","profile":{},"workspace":{}}`))
		v, ok := errors.AsType[job.Invalid](err)
		if !ok || len(v) != 4 {
			t.Fatalf("%v: want four problems", err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(minimal))
	f.Add([]byte(everything))
	for _, text := range []string{
		"", "null", "{}{}", "{} x", `{"prompt":"a","prompt":"b"}`, strings.Repeat(`{"a":`, 70) + "1" + strings.Repeat("}", 70),
		with("env", `{"a":"\ud800"}`), with("env", `{"a":"1","a":"2"}`), with("env", `{"a":"\u0000"}`), with("prompt", "\"\xff\""), with("name", `"\\u0000"`),
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := job.Decode(b)
		if walked := job.Scan(b); walked != nil && (err == nil || err.Error() != walked.Error()) {
			t.Fatalf("%v, and a walk says %v", err, walked)
		}
		if err != nil {
			if !errors.Is(err, job.ErrInvalid) {
				t.Fatalf("%v is of no kind", err)
			}
			if _, ok := errors.AsType[*job.FieldError](err); !ok {
				t.Fatalf("%v names no field", err)
			}
			return
		}
		if r.Grants == nil || r.Prompt == "" || r.CostCapUSD < 0 {
			t.Fatalf("took %+v", r)
		}
	})
}
