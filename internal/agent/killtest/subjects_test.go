package killtest_test

import (
	"encoding/json"
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/agent/agenttest"
	"turnpike/internal/agent/driver/claude"
	"turnpike/internal/agent/driver/codex"
	"turnpike/internal/agent/driver/opencode"
	"turnpike/internal/agent/driver/pi"
)

// subject is an agent, and how its transcript is counted by other means than its
// driver's.
type subject struct {
	bin    func(testing.TB) string
	model  string
	driver func(base string) agent.Driver
	env    func(base string) []string
	count  func(lines [][]byte) counted
}

// counted is what a transcript shows.
type counted struct {
	turns  int
	priced bool
	cost   float64
}

const key = "ANTHROPIC_API_KEY=sk-test-secret"

// What an answer of agenttest.DefaultUsage costs at the prices below.
const (
	inputPrice, outputPrice, cachedPrice = 3.0, 15.0, 0.3 // dollars for a million tokens
)

func answerPrice() float64 {
	u := agenttest.DefaultUsage
	return (float64(u.Input)*inputPrice + float64(u.Output)*outputPrice + float64(u.CacheRead)*cachedPrice) / 1e6
}

var subjects = map[string]subject{
	agent.AgentClaude: {
		bin: agenttest.ClaudeBin, model: "sonnet",
		driver: func(string) agent.Driver { return claude.Driver{} },
		env:    func(base string) []string { return []string{"ANTHROPIC_BASE_URL=" + base, key} },
		count:  countClaude,
	},
	agent.AgentCodex: {
		bin: agenttest.CodexBin, model: "gpt-5.5",
		driver: func(string) agent.Driver { return codex.Driver{} },
		env: func(base string) []string {
			return []string{"OPENAI_BASE_URL=" + base + "/v1", "OPENAI_API_KEY=sk-test-secret"}
		},
		count: countCodex,
	},
	agent.AgentOpenCode: {
		bin: agenttest.OpenCodeBin, model: "scripted/some-model",
		driver: func(base string) agent.Driver {
			return opencode.Driver{Providers: map[string]opencode.Provider{"scripted": {
				Package: "@ai-sdk/openai-compatible", BaseURL: base + "/v1", KeyEnv: "ANTHROPIC_API_KEY",
				Models: []opencode.Model{{
					ID: "some-model", ContextWindow: 400_000, MaxTokens: 8_000,
					Price: &opencode.Price{Input: inputPrice, Output: outputPrice, CacheRead: cachedPrice},
				}},
			}}}
		},
		env:   func(string) []string { return []string{key} },
		count: countOpenCode,
	},
	agent.AgentPi: {
		bin: agenttest.PiBin, model: "scripted/some-model",
		driver: func(base string) agent.Driver {
			return pi.Driver{Providers: map[string]pi.Provider{"scripted": {
				BaseURL: base + "/v1", API: "openai-completions", KeyEnv: "ANTHROPIC_API_KEY",
				Models: []pi.Model{{
					ID: "some-model", ContextWindow: 400_000, MaxTokens: 8_000,
					Price: &pi.Price{Input: inputPrice, Output: outputPrice, CacheRead: cachedPrice},
				}},
			}}}
		},
		env:   func(string) []string { return []string{key} },
		count: countPi,
	},
}

// countClaude counts messages until the result, which knows better and alone has a cost.
func countClaude(lines [][]byte) (c counted) {
	last := ""
	for _, line := range lines {
		var e struct {
			Type    string   `json:"type"`
			Turns   int      `json:"num_turns"`
			Cost    *float64 `json:"total_cost_usd"`
			Message struct {
				ID    string `json:"id"`
				Model string `json:"model"`
			} `json:"message"`
		}
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		switch e.Type {
		case "assistant":
			if e.Message.Model != "<synthetic>" && e.Message.ID != last {
				last = e.Message.ID
				c.turns++
			}
		case "result":
			c.turns = max(c.turns, e.Turns)
			if e.Cost != nil {
				c.priced, c.cost = true, *e.Cost
			}
		}
	}
	return c
}

// countCodex counts answers by their token counts, and one that has none yet.
func countCodex(lines [][]byte) (c counted) {
	total, begun := 0, false
	for _, line := range lines {
		var e struct {
			Method string `json:"method"`
			Params struct {
				Item struct {
					Type string `json:"type"`
				} `json:"item"`
				TokenUsage struct {
					Total struct {
						Tokens int `json:"totalTokens"`
					} `json:"total"`
				} `json:"tokenUsage"`
			} `json:"params"`
		}
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		switch e.Method {
		case "item/started", "item/completed":
			if !begun && e.Params.Item.Type != "userMessage" {
				begun = true
				c.turns++
			}
		case "thread/tokenUsage/updated":
			if n := e.Params.TokenUsage.Total.Tokens; n > total {
				if !begun {
					c.turns++
				}
				total, begun = n, false
			}
		}
	}
	return c
}

// countOpenCode counts steps that finished, each at the price of one answer.
func countOpenCode(lines [][]byte) (c counted) {
	for _, line := range lines {
		var e struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(line, &e) == nil && e.Type == "step_finish" {
			c.turns++
		}
	}
	c.priced, c.cost = c.turns > 0, float64(c.turns)*answerPrice()
	return c
}

// countPi counts messages of the assistant's that ended, each at the price of one answer.
func countPi(lines [][]byte) (c counted) {
	for _, line := range lines {
		var e struct {
			Type    string `json:"type"`
			Message struct {
				Role string `json:"role"`
			} `json:"message"`
		}
		if json.Unmarshal(line, &e) == nil && e.Type == "message_end" && e.Message.Role == "assistant" {
			c.turns++
		}
	}
	c.priced, c.cost = c.turns > 0, float64(c.turns)*answerPrice()
	return c
}
