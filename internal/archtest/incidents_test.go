package archtest_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// shown is a test of a row, with the names of its own rows where they are given.
	shown  = regexp.MustCompile("^`([a-z0-9/]+)\\.(Test[A-Za-z]+)`(: (.+))?$")
	quoted = regexp.MustCompile("`([^`]+)`")
)

// Every public incident has a row in docs/security.md, and what the row names is there:
// the test, and the text of its own row.
func TestIncidents(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "\n## Public incidents\n")
	if !ok {
		t.Fatal("the page has no such section")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	incidents, err := os.ReadFile("testdata/incidents")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range strings.Fields(string(incidents)) {
		if !strings.Contains(section, id) {
			t.Errorf("%s has no row", id)
		}
	}
	known, rows := packages{}, 0
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 3 || cells[0] == " incident" {
			continue
		}
		rows++
		for _, test := range strings.Split(strings.TrimSpace(cells[2]), "; ") {
			m := shown.FindStringSubmatch(test)
			if m == nil {
				t.Errorf("%s: %q names no test", cells[0], test)
				continue
			}
			if !known.has(t, m[1]+"."+m[2]) {
				t.Errorf("%s: there is no test %s.%s", cells[0], m[1], m[2])
			}
			for _, own := range quoted.FindAllStringSubmatch(m[4], -1) {
				if !said(t, m[1], own[1]) {
					t.Errorf("%s: no test of %s says %q", cells[0], m[1], own[1])
				}
			}
		}
	}
	if rows < 40 {
		t.Errorf("%d rows were read", rows)
	}
}

// said says whether a test file of a package contains a text.
func said(t *testing.T, dir, text string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "internal", dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		source, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(source), text) {
			return true
		}
	}
	return false
}
