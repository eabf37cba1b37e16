package agent

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

var reference = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// MCPEntries gives servers as they are run from servers as they are configured: each
// reference ${NAME} in an argument, a variable or a header is replaced by the value
// of that name. That happens once, here: what a value holds is never looked at again,
// and drivers refuse what is left that their CLI would replace. Commands and URLs say
// where things go, so they hold no references; neither may a name without a value be
// referred to.
func MCPEntries(configured map[string]MCPEntry, value func(name string) (string, bool)) (map[string]MCPEntry, error) {
	out := make(map[string]MCPEntry, len(configured))
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		e, err := expanded(configured[name], value)
		if err != nil {
			return nil, fmt.Errorf("MCP server %q: %w", name, err)
		}
		out[name] = e
	}
	return out, nil
}

func expanded(e MCPEntry, value func(string) (string, bool)) (MCPEntry, error) {
	if strings.Contains(e.Command, "${") || strings.Contains(e.URL, "${") {
		return MCPEntry{}, fmt.Errorf("%w: a command or URL with a reference in it", ErrNotGranted)
	}
	var unknown []string
	expand := func(text string) string {
		return reference.ReplaceAllStringFunc(text, func(ref string) string {
			name := ref[len("${") : len(ref)-1]
			v, ok := value(name)
			if !ok {
				unknown = append(unknown, name)
			}
			return v
		})
	}
	e.Args, e.EnvVars = slices.Clone(e.Args), slices.Clone(e.EnvVars)
	for i := range e.Args {
		e.Args[i] = expand(e.Args[i])
	}
	for _, vars := range []*map[string]string{&e.Env, &e.Headers} {
		*vars = maps.Clone(*vars)
		for _, name := range slices.Sorted(maps.Keys(*vars)) {
			(*vars)[name] = expand((*vars)[name])
		}
	}
	if len(unknown) > 0 {
		return MCPEntry{}, fmt.Errorf("%w: it refers to %s, which neither the request nor its profile sets", ErrNotGranted, strings.Join(unknown, ", "))
	}
	return e, nil
}
