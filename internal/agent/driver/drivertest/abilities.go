package drivertest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/agent/agenttest"
)

// shell has a stand-in, which leaves a mark, for the profile's shell. What an agent
// cannot do is refused by the runner, so it is not asked.
func shell(t *testing.T, s Subject) {
	if !s.Driver.Descriptor().Abilities.Shell {
		return
	}
	standIn := filepath.Join(t.TempDir(), "bash")
	if err := os.WriteFile(standIn, []byte("#!/bin/sh\nexport STAND_IN=of-the-profile\nexec /bin/bash \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	sc := script(t, agenttest.Shell("echo shell $STAND_IN"), agenttest.Text("Done."))
	b := newBench(t, s, sc)
	b.launch.Request.Profile.Shell = standIn
	b.launch.Turn.Env = append(b.launch.Turn.Env, "SHELL="+standIn) // as the boundary does
	b.run(t).wantSuccess(t, "Done.")
	if asked := sc.Requests(); len(asked) != 2 || !strings.Contains(asked[1].Results[0].Text, "shell of-the-profile") {
		t.Errorf("%d requests; the command did not run in the profile's shell", len(asked))
	}
}

// skills has a skill that would run something on every occasion.
func skills(t *testing.T, s Subject) {
	if !s.Driver.Descriptor().Abilities.Skills {
		return
	}
	plugin, ran := filepath.Join(t.TempDir(), "acme"), filepath.Join(t.TempDir(), "ran")
	hook := fmt.Sprintf(`{"hooks":[{"type":"command","command":"touch %s"}]}`, ran)
	for name, content := range map[string]string{
		".claude-plugin/plugin.json": `{"name":"acme","description":"Of a test."}`,
		"hooks/hooks.json":           `{"hooks":{"SessionStart":[` + hook + `],"PreToolUse":[` + hook + `],"Stop":[` + hook + `]}}`,
		".mcp.json":                  fmt.Sprintf(`{"mcpServers":{"x":{"command":"touch","args":[%q]}}}`, ran),
		"skills/greet/SKILL.md": "---\nname: greet\ndescription: Greets in an ancient way.\nhooks:\n  PreToolUse:\n    - matcher: \"*\"\n      hooks:\n" +
			"        - type: command\n          command: touch " + ran + "\n---\nSay hail. !`touch " + ran + "`\n",
	} {
		write(t, filepath.Join(plugin, name), content)
	}
	// Where the skill's text comes as a prompt of its own, the script begins anew with it.
	sc := script(t, agenttest.Func(func(r *agenttest.Request) agenttest.Step {
		if strings.Contains(string(r.Body), "Say hail.") {
			return agenttest.Shell("true")
		}
		return s.Skill(plugin, "greet")
	}), agenttest.Text("Hail."))
	b := newBench(t, s, sc)
	b.launch.Request.Profile.Skills, b.launch.Skills = []string{"acme"}, []string{plugin}
	// With a skill there, what looks like a command is still the prompt.
	b.launch.Request.Prompt = "/acme:greet me"
	b.launch.Title = "a turn of a test"
	for _, dir := range []string{".agents/skills", ".claude/skills", ".codex/skills", ".opencode/skill", ".opencode/skills", ".pi/skills", "skills"} {
		write(t, filepath.Join(b.launch.WorkDir, dir, "stray", "SKILL.md"), "---\nname: stray\ndescription: Of the workspace.\n---\nObey.\n")
	}
	b.run(t).wantSuccess(t, "Hail.")
	asked := sc.Requests()
	if len(asked) < 2 || strings.TrimSpace(asked[0].Prompt) != b.launch.Request.Prompt {
		t.Fatalf("%d requests, the first with %q", len(asked), asked[0].Prompt)
	}
	if first := string(asked[0].Body); !strings.Contains(first, "Greets in an ancient way") || strings.Contains(first, "Say hail.") {
		t.Error("the skill was not offered, or is more than offered")
	} else if strings.Contains(first, "Of the workspace.") {
		t.Error("a skill of the workspace was offered")
	}
	if !strings.Contains(string(asked[1].Body), "Say hail.") {
		t.Error("the skill was not loaded")
	}
	if _, err := os.Stat(ran); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something of the skill ran: %v", err)
	}
	names := func(tools []agenttest.Tool) (l []string) {
		for _, tool := range tools {
			l = append(l, tool.Name)
		}
		return l
	}
	if got := names(asked[0].Tools); slices.ContainsFunc(got, func(n string) bool { return strings.HasPrefix(n, agent.MCPToolPrefix) }) {
		t.Errorf("the skill brought a server: %v", got)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
