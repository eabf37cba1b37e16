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

// Every public incident has a row in its page, and what the row names is there: the
// test, and the text of its own row.
func TestIncidents(t *testing.T) {
	for _, c := range []struct {
		page, section, ids string
		rows               int
	}{
		{"security.md", "Public incidents", "incidents", 40},
		{"scenarios.md", "Public reports", "reports", 50},
	} {
		t.Run(c.page, func(t *testing.T) {
			page, err := os.ReadFile(filepath.Join(root, "docs", c.page))
			if err != nil {
				t.Fatal(err)
			}
			_, section, ok := strings.Cut(string(page), "\n## "+c.section+"\n")
			if !ok {
				t.Fatal("the page has no such section")
			}
			section, _, _ = strings.Cut(section, "\n## ")
			ids, err := os.ReadFile(filepath.Join("testdata", c.ids))
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range strings.Fields(string(ids)) {
				if !strings.Contains(section, id) {
					t.Errorf("%s has no row", id)
				}
			}
			if n := shownRows(t, section); n < c.rows {
				t.Errorf("%d rows were read", n)
			}
		})
	}
}

// shownRows holds every row of a section to the tests it names, and counts the rows.
func shownRows(t *testing.T, section string) (rows int) {
	t.Helper()
	known := packages{}
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 3 || strings.HasPrefix(cells[0], "--") || strings.HasPrefix(cells[2], "test") || strings.HasPrefix(cells[2], "shown by") {
			continue
		}
		rows++
		tests := strings.Split(strings.TrimSpace(cells[2]), "; ")
		if strings.HasPrefix(tests[0], "cannot be: ") && len(tests) > 1 {
			tests = tests[1:] // what holds the reason
		}
		for _, test := range tests {
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
	return rows
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
