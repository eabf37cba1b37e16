package agent

// SbxTemplates are the templates Docker Sandboxes makes a sandbox of an agent from when
// none is named. An agent that is not among them needs Profile.SandboxImage.
var SbxTemplates = map[string]string{
	AgentClaude:   "docker/sandbox-templates:claude-code",
	AgentCodex:    "docker/sandbox-templates:codex",
	AgentOpenCode: "docker/sandbox-templates:opencode",
}
