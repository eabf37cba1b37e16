// Package archtest holds the import map: which package of this module may import
// which. Its test parses the whole tree, files of every system and build tag
// included, and fails on an arrow that the map does not have. It runs nothing and
// leaves the style of the code to the linters.
package archtest

import (
	"cmp"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Rule says what one package may import of this module.
type Rule struct {
	// Package is a directory. It covers what lies below it, as parts of one whole that
	// may import each other; with a last element "*", each directory there is a whole
	// of its own. The longest rule that fits decides.
	Package string
	// May lists directories, without what lies below them unless they end in "/...".
	// "..." alone is everything but the packages for tests.
	May []string
	// Tests marks packages that only tests, and other such packages, may import.
	Tests bool
}

// vague are names that say nothing about what a package does.
var vague = []string{"util", "utils", "common", "helper", "helpers", "type", "types", "model", "models", "misc", "base", "shared"}

// Check reads the module at the root of tree and returns what breaks the rules, in
// words for whoever broke them.
func Check(tree fs.FS, module string, rules []Rule) ([]string, error) {
	var broken []string
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if foreign(tree, name) {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		found, err := checkFile(tree, name, module, rules)
		broken = append(broken, found...)
		return err
	})
	return broken, err
}

// foreign reports directories whose Go files are none of this module's.
func foreign(tree fs.FS, dir string) bool {
	if dir == "." {
		return false
	}
	base := path.Base(dir)
	if strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" || base == "node_modules" {
		return true
	}
	_, err := fs.Stat(tree, path.Join(dir, "go.mod"))
	return err == nil
}

func checkFile(tree fs.FS, name, module string, rules []Rule) ([]string, error) {
	source, err := fs.ReadFile(tree, name)
	if err != nil {
		return nil, err
	}
	files := token.NewFileSet()
	// ImportsOnly looks at no build constraint, which is the point.
	file, err := parser.ParseFile(files, name, source, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var broken []string
	from := path.Dir(name)
	for _, word := range []string{path.Base(from), file.Name.Name} {
		if slices.Contains(vague, word) {
			broken = append(broken, fmt.Sprintf("%s: a package called %s says nothing: name it for what it does", name, word))
			break
		}
	}
	rule, known := find(rules, from)
	if !known {
		return append(broken, fmt.Sprintf("%s: %s is not on the import map: "+
			"move the code into a package that is, or add it to internal/archtest/map.go with a reason", name, from)), nil
	}
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		to, ours := strings.CutPrefix(imported, module+"/")
		if !ours || allowed(rules, rule, name, to) {
			continue
		}
		broken = append(broken, fmt.Sprintf("%s:%d: %s must not import %s; it may import %s. "+
			"Move the code to where the arrow exists, or declare what is needed as an interface beside its caller and let cmd "+
			"introduce the two. Only if the design itself changes: move the map (internal/archtest/map.go) and say why",
			name, files.Position(spec.Pos()).Line, from, to, words(rule)))
	}
	return broken, nil
}

// allowed reports whether the file called name, of a package under rule, may import
// the package to.
func allowed(rules []Rule, rule Rule, name, to string) bool {
	target, known := find(rules, to)
	if known && whole(target, to) == whole(rule, path.Dir(name)) {
		return true
	}
	if strings.HasSuffix(name, "_test.go") {
		return true // a test reaches for whatever it tests
	}
	if target.Tests && !rule.Tests {
		return false
	}
	return slices.ContainsFunc(rule.May, func(may string) bool {
		below, deep := strings.CutSuffix(may, "...")
		return may == to || deep && strings.HasPrefix(to+"/", below)
	})
}

func find(rules []Rule, dir string) (Rule, bool) {
	var best Rule
	for _, r := range rules {
		if covers(r, dir) && len(r.Package) > len(best.Package) {
			best = r
		}
	}
	return best, best.Package != ""
}

func covers(r Rule, dir string) bool {
	if parent, wild := strings.CutSuffix(r.Package, "*"); wild {
		return strings.HasPrefix(dir, parent)
	}
	return dir == r.Package || strings.HasPrefix(dir, r.Package+"/")
}

// whole names the unit that dir belongs to under its rule.
func whole(r Rule, dir string) string {
	parent, wild := strings.CutSuffix(r.Package, "*")
	if !wild {
		return r.Package
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(dir, parent), "/")
	return parent + first
}

func words(r Rule) string {
	return cmp.Or(strings.Join(r.May, ", "), "nothing of ours")
}
