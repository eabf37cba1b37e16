package worker

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent"
	"turnpike/internal/job"
)

// A request's domains narrow the pool's network, and an empty list is none of it.
func TestCeilingNetwork(t *testing.T) {
	hosts := map[string]string{"own.test:443": "10.0.0.1:443"}
	proxied := func(domains []string) agent.Network {
		return agent.Network{Proxied: true, Domains: domains, Hosts: hosts}
	}
	for name, tc := range map[string]struct {
		ceiling Ceiling
		asked   []string
		want    agent.Network
	}{
		"any public host":            {Ceiling{Hosts: hosts}, nil, proxied(nil)},
		"any public host, in words":  {Ceiling{Network: networkProxied, Hosts: hosts}, nil, proxied(nil)},
		"the pool's domains":         {Ceiling{Domains: []string{"a.test"}, Hosts: hosts}, nil, proxied([]string{"a.test"})},
		"no domain of the pool's":    {Ceiling{Domains: []string{}, Hosts: hosts}, nil, proxied([]string{})},
		"the request's domains":      {Ceiling{Hosts: hosts}, []string{"b.test"}, proxied([]string{"b.test"})},
		"no domain of the request's": {Ceiling{Hosts: hosts}, []string{}, proxied([]string{})},
		"the host's network":         {Ceiling{Network: networkOpen}, nil, agent.Network{Open: true}},
		"the host's, narrowed":       {Ceiling{Network: networkOpen, Hosts: hosts}, []string{"b.test"}, proxied([]string{"b.test"})},
		"none":                       {Ceiling{Network: networkNone, Hosts: hosts}, nil, agent.Network{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.ceiling.network(job.Profile{SandboxDomains: tc.asked})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
