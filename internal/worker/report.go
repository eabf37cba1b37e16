package worker

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/job"
	"turnpike/internal/work"
)

// maxText bounds the text of a result in a report; the session directory has all.
const maxText = 256 << 10

// fillResult copies what the runner found into a report.
func fillResult(rep *job.Report, res *agent.Result, prices *Prices) {
	rep.Started = true
	rep.StartedAt = res.StartedAt
	rep.DurationMS = res.Duration.Milliseconds()
	if !res.StartedAt.IsZero() {
		rep.EndedAt = res.StartedAt.Add(res.Duration).UTC()
	}
	rep.ToolCalls, rep.NumTurns = res.ToolCalls, res.NumTurns
	rep.AgentVersion, rep.Conversation = clean(res.AgentVersion), clean(res.ClaudeID)
	if res.Agent != "" {
		rep.Agent = res.Agent
	}
	rep.ExitCode, rep.Signal = res.ExitCode, res.Signal
	rep.IsError, rep.ErrorSubtype = res.IsError, clean(res.ErrorSubtype)
	rep.ResultText = clip(clean(res.ResultText), maxText)
	rep.TimedOut, rep.CostCapped = res.TimedOut, res.CostCapped
	if res.CostKnown {
		usd := job.USDFromFloat(res.CostUSD)
		rep.CostUSD = &usd
	}
	rep.Usage = usage(res.Models, prices)
	if res.HasOutcome {
		rep.Outcome = &job.Outcome{Status: clean(res.Outcome.Status), Note: clean(res.Outcome.Note), Work: cleanRef(res.Outcome.Work)}
	}
	if res.RateLimit != nil {
		rep.RateLimit = storable(res.RateLimit)
		if rep.Ending == job.EndLimited {
			rep.RetryAfter = res.RateLimit.ResetsAt
		}
	}
	kept := *res
	kept.ResultText = rep.ResultText
	rep.Result = storable(&kept)
	if res.SessionDir != "" {
		rep.SessionDir = res.SessionDir
	}
}

// fillProgress copies what is known of a turn that left no result.
func fillProgress(rep *job.Report, p agent.Progress, models map[string]agent.Usage, prices *Prices) {
	rep.Conversation, rep.AgentVersion = clean(p.Conversation), clean(p.AgentVersion)
	rep.NumTurns, rep.ToolCalls = p.Turns, p.ToolCalls
	if p.CostKnown {
		usd := job.USDFromFloat(p.CostUSD)
		rep.CostUSD = &usd
	}
	rep.Usage = usage(models, prices)
	if p.RateLimit != nil {
		rep.RateLimit = storable(p.RateLimit)
	}
}

func usage(models map[string]agent.Usage, prices *Prices) []job.ModelUsage {
	var l []job.ModelUsage
	for _, name := range slices.Sorted(maps.Keys(models)) {
		u := models[name]
		m := job.ModelUsage{
			Model: clean(name), InputTokens: u.InputTokens, OutputTokens: u.OutputTokens,
			CacheReadTokens: u.CacheReadTokens, CacheWriteTokens: u.CacheWriteTokens,
			EstimatedUSD: prices.estimate(name, u),
		}
		if u.CostUSD != nil {
			usd := job.USDFromFloat(*u.CostUSD)
			m.CostUSD = &usd
		}
		l = append(l, m)
	}
	return l
}

func cleanRef(r work.Ref) work.Ref {
	out := work.Ref{Key: clean(r.Key)}
	for _, t := range r.Tags {
		out.Tags = append(out.Tags, clean(t))
	}
	return out
}

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "\n[cut]"
}

// storable is v as JSON that jsonb takes: NUL, which it refuses, is replaced. What
// cannot be written is left out; the typed columns have what matters.
func storable(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return replaceNUL(b)
}

// replaceNUL replaces each escaped NUL of a JSON text, and no backslash that is
// itself escaped before a "u0000".
func replaceNUL(b []byte) []byte {
	const nul, replacement = `\u0000`, `\ufffd`
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' {
			continue
		}
		if i+len(nul) <= len(b) && string(b[i:i+len(nul)]) == nul {
			copy(b[i:], replacement)
		}
		i++ // the escaped byte
	}
	return b
}

// base is a report of an attempt that begins now.
func base(c job.Claimed, worker, host string, versions map[string]string) job.Report {
	return job.Report{
		Version: job.ReportVersion, Lease: c.Lease, Worker: worker, Host: host,
		EndedAt: time.Now().UTC(), Versions: maps.Clone(versions),
	}
}
