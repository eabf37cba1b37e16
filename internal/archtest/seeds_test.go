package archtest_test

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// later is what the page says of a name whose behaviour belongs to an issue to come.
var later = regexp.MustCompile("^issue [0-9]+$")

// Every name of the API listing has a row that says where it lives and which test shows
// it, and both are there.
func TestSeedsPage(t *testing.T) {
	rows := seedRows(t)
	names, err := os.ReadFile("testdata/agent-api.names")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, name := range strings.Fields(string(names)) {
		listed[name] = true
		if _, ok := rows[name]; !ok {
			t.Errorf("%s of the listing has no row in docs/seeds.md", name)
		}
	}
	known := packages{}
	for name, r := range rows {
		switch {
		case !listed[name]:
			t.Errorf("%s has a row and is not in the listing", name)
		case later.MatchString(r.where):
			if r.where != r.shown {
				t.Errorf("%s comes with %s and is shown by %q", name, r.where, r.shown)
			}
			continue
		case !known.has(t, r.where):
			t.Errorf("%s: there is no %s", name, r.where)
		}
		if !later.MatchString(r.shown) && !known.has(t, r.shown) {
			t.Errorf("%s: there is no test %s", name, r.shown)
		}
		if _, test, _ := strings.Cut(path.Base(r.shown), "."); !later.MatchString(r.shown) && !strings.HasPrefix(test, "Test") {
			t.Errorf("%s: %s is no test", name, r.shown)
		}
	}
}

type seedRow struct{ where, shown string }

// seedRows reads the page's tables: name, where it lives, what shows it.
func seedRows(t *testing.T) map[string]seedRow {
	t.Helper()
	f, err := os.Open(filepath.Join(root, "docs", "seeds.md"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows := map[string]seedRow{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		cells := strings.Split(strings.Trim(lines.Text(), "| "), " | ")
		if len(cells) != 3 || !strings.HasPrefix(cells[0], "`") {
			continue
		}
		for i := range cells {
			cells[i] = strings.Trim(strings.TrimSpace(cells[i]), "`")
		}
		if _, twice := rows[cells[0]]; twice {
			t.Errorf("%s has two rows", cells[0])
		}
		rows[cells[0]] = seedRow{cells[1], cells[2]}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return rows
}

// packages are the names each directory declares: "Func", "Type", "Type.Member".
type packages map[string]map[string]bool

// has takes "agent/runner.Runner.Stream", beneath internal unless it begins with cmd.
func (p packages) has(t *testing.T, symbol string) bool {
	t.Helper()
	base, name, ok := strings.Cut(path.Base(symbol), ".")
	if !ok {
		return false
	}
	dir := path.Join(path.Dir(symbol), base)
	if !strings.HasPrefix(dir, "cmd/") {
		dir = path.Join("internal", dir)
	}
	if p[dir] == nil {
		p[dir] = declared(t, filepath.Join(root, dir))
	}
	return p[dir][name]
}

func declared(t *testing.T, dir string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	files, err := fs.Glob(os.DirFS(dir), "*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, file), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					names[d.Name.Name] = true
				} else {
					names[bare(d.Recv.List[0].Type)+"."+d.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					declare(names, spec)
				}
			}
		}
	}
	return names
}

func declare(names map[string]bool, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, n := range spec.Names {
			names[n.Name] = true
		}
	case *ast.TypeSpec:
		names[spec.Name.Name] = true
		var members *ast.FieldList
		switch what := spec.Type.(type) {
		case *ast.StructType:
			members = what.Fields
		case *ast.InterfaceType:
			members = what.Methods
		default:
			return
		}
		for _, m := range members.List {
			for _, n := range m.Names {
				names[spec.Name.Name+"."+n.Name] = true
			}
			if len(m.Names) == 0 {
				names[spec.Name.Name+"."+bare(m.Type)] = true // embedded
			}
		}
	}
}

// bare is a type's name without its package and pointer.
func bare(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return bare(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.IndexExpr:
		return bare(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
