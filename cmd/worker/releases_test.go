package main

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/agent/driver/opencode"
	"turnpike/internal/agent/driver/pi"
	"turnpike/internal/worker"
)

func TestTestedReleases(t *testing.T) {
	t.Run("end with what is pinned", func(t *testing.T) {
		text, err := os.ReadFile("../../agents/package.json")
		if err != nil {
			t.Fatal(err)
		}
		var pins struct {
			Dependencies         map[string]string
			OptionalDependencies map[string]string
		}
		if err := json.Unmarshal(text, &pins); err != nil {
			t.Fatal(err)
		}
		for name, pinned := range map[string]string{
			agent.AgentClaude:   pins.Dependencies["@anthropic-ai/claude-code"],
			agent.AgentCodex:    pins.Dependencies["@openai/codex"],
			agent.AgentOpenCode: pins.OptionalDependencies["opencode-linux-x64-baseline"],
			agent.AgentPi:       pins.Dependencies["@earendil-works/pi-coding-agent"],
		} {
			if got := drivers(nil)[name].Descriptor().Abilities.Tested.Last; got != pinned {
				t.Errorf("%s: tested to %s, pinned is %s", name, got, pinned)
			}
		}
	})

	t.Run("are there for every agent", func(t *testing.T) {
		all := drivers(nil)
		for _, name := range agent.Agents() {
			if d := all[name]; d == nil || d.Descriptor().Abilities.Tested.First == "" {
				t.Errorf("%s has no driver or no tested releases", name)
			}
		}
	})

	t.Run("know the providers of the ceiling", func(t *testing.T) {
		price := &worker.ProviderPrice{Input: 3, Output: 15}
		ours := map[string]worker.Provider{"ours": {
			BaseURL: "https://models.example.com", API: "spoken", KeyEnv: "OUR_KEY",
			Models: []worker.ProviderModel{{ID: "m", Reasoning: true, ContextWindow: 7, MaxTokens: 5, Price: price}},
		}}
		wantPi := pi.Provider{
			BaseURL: "https://models.example.com", API: "spoken", KeyEnv: "OUR_KEY",
			Models: []pi.Model{{ID: "m", Reasoning: true, ContextWindow: 7, MaxTokens: 5, Price: &pi.Price{Input: 3, Output: 15}}},
		}
		if diff := cmp.Diff(map[string]pi.Provider{"ours": wantPi}, piProviders(ours)); diff != "" {
			t.Errorf("pi (-want +got):\n%s", diff)
		}
		wantOpenCode := opencode.Provider{
			BaseURL: "https://models.example.com", Package: "spoken", KeyEnv: "OUR_KEY",
			Models: []opencode.Model{{ID: "m", Reasoning: true, ContextWindow: 7, MaxTokens: 5, Price: &opencode.Price{Input: 3, Output: 15}}},
		}
		if diff := cmp.Diff(map[string]opencode.Provider{"ours": wantOpenCode}, openCodeProviders(ours)); diff != "" {
			t.Errorf("opencode (-want +got):\n%s", diff)
		}
	})
}
