package main

import (
	"os"
	"testing"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/agent/session"
)

// A turn whose worker died is read as its driver would have read it then: of one that
// continued a conversation, a cost of the whole conversation is not its own.
func TestSessionsRead(t *testing.T) {
	const whole = `{"type":"result","subtype":"success","result":"Hi","total_cost_usd":0.5}` + "\n"
	for name, c := range map[string]struct {
		resumes string
		known   bool
	}{
		"a new conversation": {"", true},
		"a continued one":    {"7f4d3c1e-5b0a-4a5c-9d38-2f6f1d1a8b11", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &sessions{root: t.TempDir(), drivers: drivers(nil)}
			dir, err := s.New("turn")
			if err != nil {
				t.Fatal(err)
			}
			d, err := session.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Update(func(m *session.Meta) { m.Agent, m.ResumeID, m.StartedAt = agent.AgentClaude, c.resumes, time.Now() }); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(d.Transcript(), []byte(whole), 0o600); err != nil {
				t.Fatal(err)
			}
			past, err := s.Read(dir)
			if err != nil {
				t.Fatal(err)
			}
			if p := past.Progress; p.CostKnown != c.known || c.known && p.CostUSD != 0.5 {
				t.Errorf("cost %v, known: %t", p.CostUSD, p.CostKnown)
			}
		})
	}
}
