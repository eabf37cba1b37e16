package worker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"turnpike/internal/agent"
	"turnpike/internal/job"
)

// Prices are what the worker's owner says models cost. They estimate the cost of
// what an agent did not price; an estimate is recorded as such, beside known costs
// and never among them. A nil Prices estimates nothing.
type Prices struct {
	// Models maps a model's name, or a prefix that ends in "*", to its price. The
	// name itself goes before prefixes, a longer prefix before a shorter one.
	Models map[string]Price `yaml:"models"`
}

// Price is in US dollars for a million tokens.
type Price struct {
	Input      *float64 `yaml:"input"`
	Output     *float64 `yaml:"output"`
	CacheRead  *float64 `yaml:"cache_read"`
	CacheWrite *float64 `yaml:"cache_write"`
	// Reasoning is the price of the output that was thought; nil is that of output.
	Reasoning *float64 `yaml:"reasoning"`
}

// maxModelPrice keeps a slip of the decimal point from passing for a price.
const maxModelPrice = 10_000

// ParsePrices reads a price file strictly, as ParseCeiling reads a ceiling.
func ParsePrices(text []byte) (*Prices, error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	var p Prices
	if err := dec.Decode(&p); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("prices: %s", yamlProblem(err))
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("prices: want one YAML document")
	}
	var errs []error
	for _, model := range slices.Sorted(maps.Keys(p.Models)) {
		if prefix := strings.TrimSuffix(model, "*"); model == "" || strings.Contains(prefix, "*") {
			errs = append(errs, fmt.Errorf("prices: models: %q: want a model's name, with a trailing * for a prefix", model))
		}
		price := p.Models[model]
		if price.Input == nil || price.Output == nil {
			errs = append(errs, fmt.Errorf("prices: models.%s: input and output are required", model))
		}
		for _, usd := range []*float64{price.Input, price.Output, price.CacheRead, price.CacheWrite, price.Reasoning} {
			if usd != nil && !(*usd >= 0 && *usd <= maxModelPrice) {
				errs = append(errs, fmt.Errorf("prices: models.%s: %v: want dollars for a million tokens, from 0 to %d", model, *usd, maxModelPrice))
			}
		}
	}
	return &p, errors.Join(errs...)
}

// estimate is what a model's usage costs by the price list. It is nil where the list
// has no price for a kind of token that was used, and for a cost that is known.
func (p *Prices) estimate(model string, u agent.Usage) *job.USD {
	if p == nil || u.CostUSD != nil {
		return nil
	}
	price, ok := p.of(model)
	if !ok {
		return nil
	}
	reasoning := price.Reasoning
	if reasoning == nil {
		reasoning = price.Output
	}
	// Drivers count what was thought as output, too.
	thought := min(max(u.ReasoningTokens, 0), u.OutputTokens)
	var sum float64
	for _, part := range []struct {
		tokens int64
		price  *float64
	}{
		{u.InputTokens, price.Input}, {u.OutputTokens - thought, price.Output}, {thought, reasoning},
		{u.CacheReadTokens, price.CacheRead}, {u.CacheWriteTokens, price.CacheWrite},
	} {
		switch {
		case part.tokens <= 0:
		case part.price == nil:
			return nil // nothing would be too little
		default:
			sum += float64(part.tokens) * *part.price / 1e6
		}
	}
	usd := job.USDFromFloat(sum)
	return &usd
}

// has says whether the list has a price for a model.
func (p *Prices) has(model string) bool {
	if p == nil {
		return false
	}
	_, ok := p.of(model)
	return ok
}

func (p *Prices) of(model string) (Price, bool) {
	if price, ok := p.Models[model]; ok {
		return price, true
	}
	best := ""
	for pattern := range p.Models {
		prefix, wild := strings.CutSuffix(pattern, "*")
		if wild && strings.HasPrefix(model, prefix) && len(pattern) > len(best) {
			best = pattern
		}
	}
	price, ok := p.Models[best]
	return price, ok && best != ""
}
