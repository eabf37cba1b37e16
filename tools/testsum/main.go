// Command testsum reads the output of `go test -json`, shows what a person wants to
// see of it, and decides whether the run counts. A run in which a suite did not run is
// a failed one, whatever go test says: testsum fails when one of the packages named as
// arguments passed no test, or one of the tests named did not pass, and, with -no-skips,
// when any test was skipped.
//
//	go test -json ./... | testsum [-no-skips] PACKAGE|PACKAGE:TEST...
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

func main() {
	noSkips := flag.Bool("no-skips", false, "fail when a test was skipped")
	flag.Parse()
	run := newRun(os.Stdout)
	err := run.read(os.Stdin)
	if err == nil {
		err = run.verdict(flag.Args(), *noSkips)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(1)
	}
}

// event is one line of `go doc test2json`, or of a build.
type event struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// key is a package, or a test of it.
type key struct{ pkg, test string }

type run struct {
	to     io.Writer
	output map[key][]string
	passed map[string]int // tests, by package
	tests  map[key]bool   // that passed
	failed []key
	skips  []key
	broken bool // something failed to build
}

func newRun(to io.Writer) *run {
	return &run{to: to, output: make(map[key][]string), passed: make(map[string]int), tests: make(map[key]bool)}
}

func (r *run) read(from io.Reader) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			r.line(line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *run) line(line []byte) {
	var e event
	if err := json.Unmarshal(line, &e); err != nil {
		fmt.Fprintf(r.to, "%s", line) // not an event: go itself says something
		return
	}
	at := key{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.to, e.Output)
	case "build-fail":
		r.broken = true
	case "output":
		r.output[at] = append(r.output[at], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(e)
		} else {
			r.endTest(at, e.Action)
		}
	}
}

func (r *run) endTest(at key, action string) {
	switch action {
	case "pass":
		r.passed[at.pkg]++
		r.tests[at] = true
		delete(r.output, at)
	case "fail":
		r.failed = append(r.failed, at)
	case "skip":
		r.skips = append(r.skips, at)
	}
}

func (r *run) endPackage(e event) {
	switch e.Action {
	case "pass":
		fmt.Fprintf(r.to, "ok    %-50s %4d tests %7.1fs\n", e.Package, r.passed[e.Package], e.Elapsed)
	case "fail":
		r.failed = append(r.failed, key{pkg: e.Package})
		r.showFailure(e.Package)
		fmt.Fprintf(r.to, "FAIL  %-50s %4d tests %7.1fs\n", e.Package, r.passed[e.Package], e.Elapsed)
	}
	for at := range r.output {
		if at.pkg == e.Package {
			delete(r.output, at)
		}
	}
}

// showFailure prints what the package's unfinished and failed tests had said, and what
// it said outside of tests: a panic or a timeout ends no test properly.
func (r *run) showFailure(pkg string) {
	var tests []key
	for at := range r.output {
		if at.pkg == pkg {
			tests = append(tests, at)
		}
	}
	slices.SortFunc(tests, func(a, b key) int { return cmp.Compare(a.test, b.test) })
	for _, at := range tests {
		fmt.Fprint(r.to, strings.Join(r.output[at], ""))
	}
}

// verdict sums up, and is an error when the run does not count.
func (r *run) verdict(must []string, noSkips bool) error {
	total := 0
	for _, n := range r.passed {
		total += n
	}
	failedTests := slices.DeleteFunc(slices.Clone(r.failed), func(at key) bool { return at.test == "" })
	fmt.Fprintf(r.to, "\n%d tests passed in %d packages, %d failed, %d skipped\n",
		total, len(r.passed), len(failedTests), len(r.skips))
	for _, at := range r.failed {
		fmt.Fprintf(r.to, "  failed   %s %s\n", at.pkg, at.test)
	}
	for _, at := range r.skips {
		fmt.Fprintf(r.to, "  skipped  %s %s\n", at.pkg, at.test)
	}
	var idle []string
	for _, suite := range must {
		pkg, test, one := strings.Cut(suite, ":")
		if one && !r.tests[key{pkg, test}] || r.passed[pkg] == 0 {
			idle = append(idle, suite)
		}
	}
	switch {
	case r.broken:
		return errors.New("something does not build")
	case len(r.failed) > 0:
		return fmt.Errorf("%d packages or tests failed", len(r.failed))
	case len(idle) > 0:
		return fmt.Errorf("these suites did not run: %s", strings.Join(idle, " "))
	case noSkips && len(r.skips) > 0:
		return fmt.Errorf("%d tests were skipped", len(r.skips))
	case total == 0:
		return errors.New("no test ran")
	}
	return nil
}
