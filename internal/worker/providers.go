package worker

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"

	"turnpike/internal/agent"
)

// Provider is a provider of models, which is added to those an agent knows or changes
// one of them. What it leaves out stays as the agent has it.
type Provider struct {
	BaseURL string `yaml:"base_url" json:"base_url,omitempty"`
	// API is how the provider is spoken to, in the agent's own word for it: an API's
	// name for pi, a package that opencode carries for opencode.
	API string `yaml:"api" json:"api,omitempty"`
	// KeyEnv is the variable of the turn that holds the credential, which an account
	// gives.
	KeyEnv string          `yaml:"key_env" json:"key_env,omitempty"`
	Models []ProviderModel `yaml:"models" json:"models,omitempty"`
}

// ProviderModel is one model of a Provider.
type ProviderModel struct {
	ID            string `yaml:"id" json:"id"`
	Reasoning     bool   `yaml:"reasoning" json:"reasoning,omitempty"`           // it can be told how hard to think
	ContextWindow int    `yaml:"context_window" json:"context_window,omitempty"` // in tokens
	MaxTokens     int    `yaml:"max_tokens" json:"max_tokens,omitempty"`         // of an answer
	// Price is what the agent reckons with; without it the cost of a turn is unknown.
	Price *ProviderPrice `yaml:"price" json:"price,omitempty"`
}

// ProviderPrice is in dollars for a million tokens.
type ProviderPrice struct {
	Input      float64 `yaml:"input" json:"input"`
	Output     float64 `yaml:"output" json:"output"`
	CacheRead  float64 `yaml:"cache_read" json:"cache_read"`
	CacheWrite float64 `yaml:"cache_write" json:"cache_write"`
}

var providerForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?$`)

// validateProviders holds what an agent would trip over, or take for something else.
func (c *Ceiling) validateProviders(among func(string, []string, []string), bad func(string, string, ...any)) {
	for _, kind := range slices.Sorted(maps.Keys(c.Providers)) {
		among("providers", []string{kind}, []string{agent.AgentOpenCode, agent.AgentPi})
		for _, name := range slices.Sorted(maps.Keys(c.Providers[kind])) {
			p, at := c.Providers[kind][name], "providers."+kind+"."+name
			if !providerForm.MatchString(name) {
				bad(at, "want a name of lower-case letters, digits and \"-\"")
			}
			if p.BaseURL != "" {
				u, err := url.Parse(p.BaseURL)
				if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
					bad(at+".base_url", "want an http or https URL, without credential and query")
				}
			}
			if p.KeyEnv != "" && !envForm.MatchString(p.KeyEnv) {
				bad(at+".key_env", "%q is not the name of a variable: a ceiling names secrets, it never holds them", p.KeyEnv)
			}
			for i, m := range p.Models {
				field := fmt.Sprintf("%s.models[%d]", at, i)
				if m.ID == "" || m.ContextWindow < 0 || m.MaxTokens < 0 {
					bad(field, "want an id, and numbers of tokens that are not negative")
				}
				if q := m.Price; q != nil {
					for _, usd := range []float64{q.Input, q.Output, q.CacheRead, q.CacheWrite} {
						if !(usd >= 0 && usd <= 10_000) { // so that no-number fails as well
							bad(field+".price", "%v is no price in dollars for a million tokens", usd)
						}
					}
				}
			}
		}
	}
}
