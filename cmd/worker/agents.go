package main

import (
	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/claude"
	"turnpike/internal/agent/driver/codex"
	"turnpike/internal/agent/driver/opencode"
	"turnpike/internal/agent/driver/pi"
	"turnpike/internal/worker"
)

// drivers are the drivers of the agents this program can run, with the providers a
// ceiling offers to each: a new agent is a line here.
func drivers(providers map[string]map[string]worker.Provider) map[string]agent.Driver {
	return map[string]agent.Driver{
		agent.AgentClaude:   claude.Driver{},
		agent.AgentCodex:    codex.Driver{},
		agent.AgentOpenCode: opencode.Driver{Providers: openCodeProviders(providers[agent.AgentOpenCode])},
		agent.AgentPi:       pi.Driver{Providers: piProviders(providers[agent.AgentPi])},
	}
}

func openCodeProviders(all map[string]worker.Provider) map[string]opencode.Provider {
	out := make(map[string]opencode.Provider, len(all))
	for name, p := range all {
		o := opencode.Provider{Package: p.API, BaseURL: p.BaseURL, KeyEnv: p.KeyEnv}
		for _, m := range p.Models {
			o.Models = append(o.Models, opencode.Model{
				ID: m.ID, Reasoning: m.Reasoning, ContextWindow: m.ContextWindow, MaxTokens: m.MaxTokens, Price: (*opencode.Price)(m.Price),
			})
		}
		out[name] = o
	}
	return out
}

func piProviders(all map[string]worker.Provider) map[string]pi.Provider {
	out := make(map[string]pi.Provider, len(all))
	for name, p := range all {
		o := pi.Provider{API: p.API, BaseURL: p.BaseURL, KeyEnv: p.KeyEnv}
		for _, m := range p.Models {
			o.Models = append(o.Models, pi.Model{
				ID: m.ID, Reasoning: m.Reasoning, ContextWindow: m.ContextWindow, MaxTokens: m.MaxTokens, Price: (*pi.Price)(m.Price),
			})
		}
		out[name] = o
	}
	return out
}

// cannot lists what a turn of an agent cannot have, as far as its driver says so.
func cannot(b agent.Backend) []string {
	var out []string
	if !b.Abilities.Priced() {
		out = append(out, "never tells its cost: cost_cap_usd has no effect on its turns")
	}
	if tools := b.WritableTools[agent.Placement{Sandbox: agent.SandboxNone, Confine: true}]; !tools.Supported {
		out = append(out, "cannot be held to a list of tools: "+tools.Remedy)
	}
	if b.Restricted == nil || !b.Restricted.Supported {
		out = append(out, "has no read-only turns")
	}
	return out
}
