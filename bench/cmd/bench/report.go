package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"turnpike/bench/figure"
	"turnpike/bench/servers"
)

// reference is the system that ratios are of.
const reference = "river-tuned"

// row is one figure of one system over all rounds.
type row struct {
	figure, system, unit string
	lines                []figure.Line
}

func (r *row) median(of func(figure.Line) float64) float64 {
	v := make([]float64, len(r.lines))
	for i, l := range r.lines {
		v[i] = of(l)
	}
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

func value(l figure.Line) float64 { return l.Value }

// cost is core-milliseconds per 1,000, of everybody but strangers.
func cost(l figure.Line) float64 { return (l.Self + l.Server) / l.Value * 1e6 }

// report prints the table, and writes it into doc when that is named.
func report(to io.Writer, results []byte, doc, machine string) error {
	rows, err := gather(results)
	if err != nil {
		return err
	}
	var t bytes.Buffer
	fmt.Fprintf(&t, "%s\n\n", machine)
	fmt.Fprintln(&t, "| figure | system | median | min–max | unit | to River tuned | core-ms per 1000 | cores self/server/other | rounds |")
	fmt.Fprintln(&t, "|---|---|---:|---:|---|---:|---:|---|---:|")
	for i, r := range rows {
		name := r.figure
		if i > 0 && rows[i-1].figure == name {
			name = ""
		}
		v := make([]float64, len(r.lines))
		for i, l := range r.lines {
			v[i] = l.Value
		}
		ratio, each := "", ""
		if j := slices.IndexFunc(rows, func(o *row) bool { return o.figure == r.figure && o.system == reference }); j >= 0 {
			ratio = fmt.Sprintf("%.2f", r.median(value)/rows[j].median(value))
		}
		if strings.HasSuffix(r.unit, "/s") {
			each = number(r.median(cost))
		}
		fmt.Fprintf(&t, "| %s | %s | %s | %s–%s | %s | %s | %s | %.2f/%.2f/%.2f | %d |\n", name, r.system, number(r.median(value)),
			number(slices.Min(v)), number(slices.Max(v)), r.unit, ratio, each,
			r.median(func(l figure.Line) float64 { return l.Self }), r.median(func(l figure.Line) float64 { return l.Server }),
			r.median(func(l figure.Line) float64 { return l.Foreign }), len(r.lines))
	}
	if _, err := to.Write(t.Bytes()); err != nil {
		return err
	}
	if doc == "" {
		return nil
	}
	return replace(doc, t.String())
}

// gather sorts figures as the programs name them first, and systems as they are listed.
func gather(results []byte) ([]*row, error) {
	var rows []*row
	var order []string
	for line := range bytes.Lines(results) {
		var l figure.Line
		if err := json.Unmarshal(line, &l); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		if !slices.Contains(order, l.Figure) {
			order = append(order, l.Figure)
		}
		i := slices.IndexFunc(rows, func(r *row) bool { return r.figure == l.Figure && r.system == l.System })
		if i < 0 {
			i = len(rows)
			rows = append(rows, &row{figure: l.Figure, system: l.System, unit: l.Unit})
		}
		rows[i].lines = append(rows[i].lines, l)
	}
	place := func(name string) int {
		if i := slices.IndexFunc(all, func(s system) bool { return s.name == name }); i >= 0 {
			return i
		}
		return len(all) // what only one figure is compared with
	}
	slices.SortStableFunc(rows, func(a, b *row) int {
		return cmp.Or(slices.Index(order, a.figure)-slices.Index(order, b.figure), place(a.system)-place(b.system))
	})
	return rows, nil
}

func number(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.2f", v)
	}
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

const (
	tableBegins = "<!-- table: written by make bench ARGS=\"-doc ...\" -->\n"
	tableEnds   = "<!-- end of table -->\n"
)

// replace puts a table between the marks of a Markdown file.
func replace(file, table string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(b), tableBegins)
	_, after, ends := strings.Cut(rest, tableEnds)
	if !begins || !ends {
		return fmt.Errorf("%s has no place for a table: want the lines %q and %q", file, tableBegins, tableEnds)
	}
	return os.WriteFile(file, []byte(before+tableBegins+table+tableEnds+after), 0o644)
}

// machine says what the figures were measured on, and with what.
func machine(ctx context.Context, pg *servers.Postgres) string {
	parts := []string{time.Now().UTC().Format(time.DateOnly), fmt.Sprintf("%d × %s", runtime.NumCPU(), processor()), kernel(ctx), runtime.Version()}
	if pg != nil {
		if v, err := pg.Version(ctx); err == nil {
			parts = append(parts, "PostgreSQL "+v)
		}
	}
	return strings.Join(parts, ", ") + "."
}

func processor() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err == nil {
		for line := range strings.Lines(string(b)) {
			if name, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				return strings.TrimSpace(v)
			}
		}
	}
	return runtime.GOARCH
}

func kernel(ctx context.Context) string {
	b, err := exec.CommandContext(ctx, "uname", "-sr").Output()
	if err != nil {
		return runtime.GOOS
	}
	return strings.TrimSpace(string(b))
}
