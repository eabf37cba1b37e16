package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// Formats are the values of -o.
var Formats = []string{"table", "json", "yaml", "name"}

// OutputFlag adds -o to cmd, with completion.
func OutputFlag(cmd *cobra.Command) {
	f := format(Formats[0])
	cmd.Flags().VarP(&f, "output", "o", "how to print: "+strings.Join(Formats, ", "))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(Formats, cobra.ShellCompDirectiveNoFileComp)) // fails only for a flag that is not there
}

// format is a value of -o. One that is none is refused with the other flags: a command
// that did its work and then could not say so would be typed again.
type format string

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "string" }

func (f *format) Set(s string) error {
	if !slices.Contains(Formats, s) {
		return fmt.Errorf("want one of %s", strings.Join(Formats, ", "))
	}
	*f = format(s)
	return nil
}

// Table is data as people read it.
type Table struct {
	Header []string
	Rows   [][]string
}

// Print writes data as -o asks: v in JSON or YAML, the table, or the names alone.
func Print(cmd *cobra.Command, v any, table func() Table, names func() []string) error {
	as, err := cmd.Flags().GetString("output")
	if err != nil {
		return err
	}
	w := cmd.OutOrStdout()
	switch as {
	case "json":
		return writeJSON(w, v)
	case "yaml":
		return writeYAML(w, v)
	case "name":
		if names == nil {
			return Usagef("-o name says nothing here; want table, json or yaml")
		}
		for _, n := range names() {
			fmt.Fprintln(w, n)
		}
		return nil
	}
	return table().Write(w)
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// writeYAML goes through JSON, so that names and forms are the same in both.
func writeYAML(w io.Writer, v any) error {
	var b bytes.Buffer
	if err := writeJSON(&b, v); err != nil {
		return err
	}
	var n yaml.Node
	if err := yaml.Unmarshal(b.Bytes(), &n); err != nil {
		return err
	}
	plain(&n)
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(&n); err != nil {
		return err
	}
	return e.Close()
}

// plain drops the JSON styles so that blocks are written as blocks.
func plain(n *yaml.Node) {
	if n.Kind != yaml.ScalarNode {
		n.Style = 0
	} else if n.Style == yaml.DoubleQuotedStyle && !strings.ContainsRune(n.Value, '\n') {
		n.Style = 0
		if n.Tag == "" {
			n.Tag = "!!str"
		}
	}
	for _, c := range n.Content {
		plain(c)
	}
}

// Write lays t out in columns.
func (t Table) Write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	lines := t.Rows
	if len(t.Header) > 0 {
		lines = slices.Insert(slices.Clone(t.Rows), 0, t.Header)
	}
	for _, row := range lines {
		for i, c := range row {
			if i > 0 {
				fmt.Fprint(tw, "\t")
			}
			fmt.Fprint(tw, OneLine(c))
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}

// OneLine makes text that came from elsewhere safe to show in one cell of a
// terminal: no control characters, so no escape sequences either, and none that turn
// the direction of what follows.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, s)
}

// Dash is s, or a dash for nothing.
func Dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
