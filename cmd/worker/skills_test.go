package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"turnpike/internal/agent"
)

func TestSkills(t *testing.T) {
	const skill = "---\nname: greet\ndescription: greets\n---\nSay hail.\n"
	for name, tc := range map[string]struct {
		files map[string]string
		ask   string // the plugin's own name where it is empty
		want  error
	}{
		"a skill":                 {map[string]string{"skills/greet/SKILL.md": skill}, "", nil},
		"with a manifest":         {map[string]string{"skills/greet/SKILL.md": skill, ".claude-plugin/plugin.json": `{"name":"acme","version":"1"}`, "README.md": "x"}, "", nil},
		"with files of its own":   {map[string]string{"skills/greet/SKILL.md": skill, "skills/greet/scripts/x.sh": "true"}, "", nil},
		"with hooks":              {map[string]string{"skills/greet/SKILL.md": skill, "hooks/hooks.json": "{}"}, "", agent.ErrUnsupported},
		"with servers":            {map[string]string{"skills/greet/SKILL.md": skill, ".mcp.json": "{}"}, "", agent.ErrUnsupported},
		"hooks in the manifest":   {map[string]string{"skills/greet/SKILL.md": skill, ".claude-plugin/plugin.json": `{"name":"a","hooks":{}}`}, "", agent.ErrUnsupported},
		"a manifest of no use":    {map[string]string{"skills/greet/SKILL.md": skill, ".claude-plugin/plugin.json": `[]`}, "", agent.ErrUnsupported},
		"more beside a manifest":  {map[string]string{"skills/greet/SKILL.md": skill, ".claude-plugin/marketplace.json": `{}`}, "", agent.ErrUnsupported},
		"without a skill":         {map[string]string{"README.md": "x"}, "", agent.ErrUnsupported},
		"one that is not there":   {nil, "other", agent.ErrUnready},
		"a path out of the root":  {nil, "../acme", agent.ErrNotGranted},
		"a path into a directory": {map[string]string{"skills/greet/SKILL.md": skill}, "acme/skills", agent.ErrNotGranted},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file, text := range tc.files {
				path := filepath.Join(root, "acme", file)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			ask := tc.ask
			if ask == "" {
				ask = "acme"
			}
			dirs, err := skillDir{root}.Prepare(t.Context(), []string{ask})
			if !errors.Is(err, tc.want) || tc.want == nil && (len(dirs) != 1 || dirs[0] != filepath.Join(root, "acme")) {
				t.Errorf("got %v, %v, want %v", dirs, err, tc.want)
			}
		})
	}
	t.Run("a link out of the root", func(t *testing.T) {
		root := t.TempDir()
		if err := os.Symlink(t.TempDir(), filepath.Join(root, "acme")); err != nil {
			t.Fatal(err)
		}
		if _, err := (skillDir{root}).Prepare(t.Context(), []string{"acme"}); !errors.Is(err, agent.ErrUnready) {
			t.Error(err)
		}
	})
}
