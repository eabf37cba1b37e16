package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"turnpike/internal/agent"
)

// skillDir prepares the skills of the worker's owner: each a directory of a root, by
// its name, that holds skills/NAME/SKILL.md and nothing that would run or configure
// anything when it is loaded.
type skillDir struct{ root string }

var _ agent.SkillPreparer = skillDir{}

const (
	skillFile    = "SKILL.md"
	skillsSub    = "skills"
	manifestDir  = ".claude-plugin"
	manifestFile = "plugin.json"
	maxManifest  = 64 << 10
)

var (
	// What a plugin of skills may have beside them.
	beside = []string{skillsSub, manifestDir, "README.md", "LICENSE", "LICENSE.md", "LICENSE.txt", "CHANGELOG.md"}
	// What its manifest may say: everything else names something to run or to fetch.
	told = []string{"name", "description", "version", "author", "license", "keywords", "homepage", "repository"}
)

// Prepare finds the directories. Nothing is copied: they are the owner's, and a turn is
// to be granted them for reading alone.
func (d skillDir) Prepare(_ context.Context, names []string) ([]string, error) {
	root, err := os.OpenRoot(d.root)
	if err != nil {
		return nil, fmt.Errorf("skills: %w: %w", agent.ErrUnready, err)
	}
	defer func() { _ = root.Close() }() // it was only read
	var dirs []string
	for _, name := range names {
		if !filepath.IsLocal(name) || filepath.Base(name) != name {
			return nil, fmt.Errorf("skill %q: %w: it is no name", name, agent.ErrNotGranted)
		}
		if err := check(root, name); err != nil {
			return nil, fmt.Errorf("skill %q: %w", name, err)
		}
		dirs = append(dirs, filepath.Join(d.root, name))
	}
	return dirs, nil
}

func check(root *os.Root, name string) error {
	plugin, err := root.OpenRoot(name)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: this worker does not have it", agent.ErrUnready)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", agent.ErrUnready, err)
	}
	defer func() { _ = plugin.Close() }() // it was only read
	entries, err := fs.ReadDir(plugin.FS(), ".")
	if err != nil {
		return fmt.Errorf("%w: %w", agent.ErrUnready, err)
	}
	for _, e := range entries {
		if !slices.Contains(beside, e.Name()) {
			return fmt.Errorf("%w: a plugin of skills has no %q; take it out", agent.ErrUnsupported, e.Name())
		}
	}
	if err := manifest(plugin); err != nil {
		return err
	}
	found, err := fs.Glob(plugin.FS(), skillsSub+"/*/"+skillFile)
	if err != nil || len(found) == 0 {
		return fmt.Errorf("%w: it has no %s/NAME/%s", agent.ErrUnsupported, skillsSub, skillFile)
	}
	return nil
}

// manifest refuses one that does more than describe.
func manifest(plugin *os.Root) error {
	entries, err := fs.ReadDir(plugin.FS(), manifestDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", agent.ErrUnready, err)
	}
	for _, e := range entries {
		if e.Name() != manifestFile {
			return fmt.Errorf("%w: a plugin of skills has no %q; take it out", agent.ErrUnsupported, manifestDir+"/"+e.Name())
		}
		f, err := plugin.Open(manifestDir + "/" + manifestFile)
		if err != nil {
			return fmt.Errorf("%w: %w", agent.ErrUnready, err)
		}
		text, err := io.ReadAll(io.LimitReader(f, maxManifest))
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("%w: %w", agent.ErrUnready, err)
		}
		members := map[string]json.RawMessage{}
		if err := json.NewDecoder(bytes.NewReader(text)).Decode(&members); err != nil {
			return fmt.Errorf("%w: its %s is no JSON object", agent.ErrUnsupported, manifestFile)
		}
		for member := range members {
			if !slices.Contains(told, member) {
				return fmt.Errorf("%w: the %s of a plugin of skills has no %q; take it out", agent.ErrUnsupported, manifestFile, member)
			}
		}
	}
	return nil
}
