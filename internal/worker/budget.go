package worker

import (
	"fmt"

	"turnpike/internal/agent"
	"turnpike/internal/job"
)

// lower is the cap that a budget makes, where it is below the cap there is; zero is no
// cap.
func lower(left *job.Left, capUSD job.USD) (job.USD, bool) {
	if left == nil || capUSD > 0 && capUSD <= left.USD {
		return 0, false
	}
	return max(left.USD, 1), true
}

// bounded refuses a turn under a budget whose cost nobody would ever know: neither its
// agent tells one, nor has the price list a price to estimate it by.
func (a *attempt) bounded() error {
	name := agentName(a.profile.Agent)
	if a.budget == nil || a.Priced == nil || a.Priced(name) || a.Prices.has(a.profile.Model) {
		return nil
	}
	model := fmt.Sprintf("model %q", a.profile.Model)
	if a.profile.Model == "" {
		model = "the default model"
	}
	return fmt.Errorf("profile.model: no price for %s of %s: budgets need one, and %s never tells what a turn costs; name a model that this worker's price list has: %w",
		model, name, name, agent.ErrUnsupported)
}

// overBudget says that a budget ended the turn; empty when none did.
func (a *attempt) overBudget(res *agent.Result, cause error) string {
	if res == nil || a.budget == nil {
		return ""
	}
	if res.ErrorSubtype == agent.SubtypeCancelled && overBudget(cause) {
		return text(cause)
	}
	if _, ours := lower(a.budget, a.Ceiling.costCap(a.request)); ours && res.CostCapped {
		return fmt.Sprintf("what the budget of %s had left is spent: %s USD", a.budget.Budget, a.budget.USD)
	}
	return ""
}

// Keeping is how many reports are not settled yet, and how many turns stand still.
func (p *Pool) Keeping() (unsettled, frozen int) {
	p.init()
	return p.settler.Count(), p.keeper.Frozen()
}

// inert are the agents of the ceiling that never tell what a turn costs.
func (t *Turns) inert() []string {
	var names []string
	for _, name := range t.Ceiling.Agents {
		if t.Priced != nil && !t.Priced(name) {
			names = append(names, name)
		}
	}
	return names
}
