package codex

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"turnpike/internal/agent"
)

// configFile is the CLI's whole configuration, beneath Launch.Home.
const configFile = "config.toml"

// maxPrompt is what the server takes as the text of one turn.
const maxPrompt = 1 << 20

var (
	efforts        = []string{"none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"}
	modelName      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,255}$`)
	conversationID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
)

// Command says how the CLI is run for this turn. What the turn is to do is told in
// the conversation.
func (d Driver) Command(l agent.Launch) (*agent.Command, error) {
	if err := supported(l); err != nil {
		return nil, err
	}
	config, err := d.config(l)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(l.Home, configFile), config, 0o600); err != nil {
		return nil, fmt.Errorf("configure codex: %w: %w", agent.ErrUnready, err)
	}
	return &agent.Command{
		// Also on the command line, so that no configuration can ask for them: the
		// CLI would fetch its plugins at every start.
		Args: []string{"app-server", "--disable", "plugins"},
		Env:  []string{"CODEX_HOME=" + l.HomeInside},
	}, nil
}

// supported refuses what the CLI, or this driver, cannot do.
func supported(l agent.Launch) error {
	p := l.Request.Profile
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("codex: %w: %s", agent.ErrUnsupported, fmt.Sprintf(format, args...))
	}
	switch size := len(l.Request.Prompt); {
	case size > maxPrompt:
		return refuse("a prompt has at most %d bytes, this one has %d; put the rest into a file of the workspace", maxPrompt, size)
	case strings.TrimSpace(l.Request.Prompt) == "":
		return refuse("a turn needs a prompt")
	case !utf8.ValidString(l.Request.Prompt) || !utf8.ValidString(l.Request.SystemPrompt):
		return refuse("its prompts are UTF-8")
	case p.Sandbox == agent.SandboxClaude:
		return refuse("the sandbox %q is another agent's; confine the turn instead (sandbox %q with confine)", p.Sandbox, agent.SandboxNone)
	case len(l.Turn.Tools) > 0 || len(p.DisallowedTools) > 0:
		return refuse("it cannot be held to a list of tools; grant %q and confine the turn, or use another agent", agent.ToolsAll)
	case len(p.Skills) != len(l.Skills):
		return refuse("%d of %d skills are prepared", len(l.Skills), len(p.Skills))
	case len(l.Skills) > 0 && toolless(l):
		return refuse("skills are read by its shell, which the turn does not have")
	case p.Effort != "" && !slices.Contains(efforts, p.Effort):
		return refuse("effort %q: it knows %s", p.Effort, strings.Join(efforts, ", "))
	case p.MaxTurns < 0:
		return refuse("max turns %d is below zero", p.MaxTurns)
	case p.Model != "" && !modelName.MatchString(p.Model):
		return refuse("%.64q is no model's name", p.Model)
	case l.Request.ResumeID != "" && !conversationID.MatchString(l.Request.ResumeID):
		return refuse("conversation %.64q: its ids are UUIDs", l.Request.ResumeID)
	case !path.IsAbs(l.WorkDir):
		return refuse("directory %q is not absolute", l.WorkDir)
	}
	return nil
}

// skillRoots are where the CLI looks for skills, given their plugins: beside them a plugin
// may have what is no skill.
func skillRoots(plugins []string) []string {
	var roots []string
	for _, dir := range plugins {
		roots = append(roots, path.Join(dir, "skills"))
	}
	return roots
}

// toolless says that the turn has none of the CLI's tools. What MCP servers offer
// it still has.
func toolless(l agent.Launch) bool { return l.Turn.Tools != nil && len(l.Turn.Tools) == 0 }

// variable is the value of a variable of the turn, where it has one.
func variable(env []string, name string) (value string, ok bool) {
	for _, pair := range slices.Backward(env) { // the last one counts
		if v, found := strings.CutPrefix(pair, name+"="); found {
			return v, v != ""
		}
	}
	return "", false
}
