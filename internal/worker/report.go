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
	rep.StartedAt = tellable(res.StartedAt)
	rep.DurationMS = res.Duration.Milliseconds()
	if !res.StartedAt.IsZero() {
		rep.EndedAt = tellable(res.StartedAt.Add(res.Duration))
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
		rep.CostUSD, rep.CostPartial = &usd, res.CostPartial
	}
	rep.Usage = usage(res.Models, prices)
	if res.HasOutcome {
		rep.Outcome = &job.Outcome{Status: clean(res.Outcome.Status), Note: clean(res.Outcome.Note), Work: cleanRef(res.Outcome.Work)}
	}
	kept := *res
	kept.ResultText, kept.StartedAt = rep.ResultText, rep.StartedAt
	if res.RateLimit != nil {
		kept.RateLimit = limit(res.RateLimit)
		rep.RateLimit = storable(kept.RateLimit)
		if rep.Ending == job.EndLimited {
			rep.RetryAfter = kept.RateLimit.ResetsAt
		}
	}
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
		rep.RateLimit = storable(limit(p.RateLimit))
	}
}

// limit is what an agent told of a limit, with a time that can be written.
func limit(l *agent.RateLimit) *agent.RateLimit {
	told := *l
	told.ResetsAt = tellable(l.ResetsAt)
	return &told
}

// tellable is t as JSON and Postgres can hold it, in the years 1 to 9999: an agent may
// tell any number of seconds. What is before is as good as unknown.
func tellable(t time.Time) time.Time {
	t = t.UTC()
	switch y := t.Year(); {
	case y < 1:
		return time.Time{}
	case y > 9999:
		return time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC)
	}
	return t
}

// least is what a job needs of a report to go on: how the attempt ended, and what that
// is decided by. note says where the rest is.
func least(r job.Report, note string) job.Report {
	return job.Report{
		Version: r.Version, Lease: r.Lease, Worker: r.Worker, Host: r.Host,
		Ending: r.Ending, Reason: clip(clean(r.Reason), maxReason), RetryAfter: tellable(r.RetryAfter),
		Started: r.Started, StartedAt: tellable(r.StartedAt), EndedAt: tellable(r.EndedAt), DurationMS: r.DurationMS,
		IsError: r.IsError, ToolCalls: r.ToolCalls, NumTurns: r.NumTurns, CostUSD: r.CostUSD, CostPartial: r.CostPartial,
		Notes: []string{note},
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
