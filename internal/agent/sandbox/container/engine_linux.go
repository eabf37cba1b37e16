package container

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"turnpike/internal/agent"
)

// workDir is where a turn's workspace is shown, as in a confined turn of the host.
const workDir = "/workspace"

// lookTime bounds looking into an image.
const lookTime = 2 * time.Minute

// Engine runs turns in containers. Its fields are set before it is used; the zero Engine
// with a Dir is usable.
type Engine struct {
	// Bin is the engine's program; empty is agent.ContainerEngine.
	Bin string
	// Stage is the program whose main begins with Entry; empty is the running one.
	Stage string
	// Dir is a directory of the worker's own for stand-ins and for looking into images.
	Dir string
	// Label is the key=value that containers of Look bear.
	Label string
	Log   *slog.Logger

	mu    sync.Mutex // guards looks and known
	looks map[lookKey]*looked
	known map[string]known // by the engine's program
}

// factsTime is how long what an engine says of itself is believed. What a turn is held to
// is looked at in every container.
const factsTime = time.Minute

// known is what an engine said of itself.
type known struct {
	facts facts
	until time.Time
}

// facts asks the engine what it is, now and then.
func (e *Engine) facts(ctx context.Context, c client) (facts, error) {
	e.mu.Lock()
	k, ok := e.known[c.bin]
	e.mu.Unlock()
	if ok && time.Now().Before(k.until) {
		return k.facts, nil
	}
	f, err := c.facts(ctx)
	if err != nil {
		return f, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.known == nil {
		e.known = map[string]known{}
	}
	e.known[c.bin] = known{f, time.Now().Add(factsTime)}
	return f, nil
}

var _ agent.Engine = (*Engine)(nil)

type lookKey struct{ bin, image string }

// looked is what was found in an image, once.
type looked struct {
	once  sync.Once
	found contents
	err   error
}

func (e *Engine) client(bin string) client {
	return client{bin: cmp.Or(bin, e.Bin, agent.ContainerEngine)}
}

func (e *Engine) log() *slog.Logger {
	if e.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return e.Log
}

// Look implements agent.Engine.
func (e *Engine) Look(ctx context.Context, bin string, p agent.Profile) (agent.Premises, error) {
	c := e.client(bin)
	facts, err := e.facts(ctx, c)
	if err != nil {
		return agent.Premises{}, err
	}
	if err := facts.check(); err != nil {
		return agent.Premises{}, err
	}
	img, err := c.image(ctx, p.SandboxImage)
	if err != nil {
		return agent.Premises{}, err
	}
	if err := img.check(p.SandboxImage, facts); err != nil {
		return agent.Premises{}, err
	}
	out := agent.Premises{
		Image: img.ID, Env: img.Config.Env, WorkDir: workDir, Root: os.Getuid() == 0,
		Private: facts.private(), Host: facts.gateway,
		Version: facts.version(), Weaknesses: facts.weaknesses(),
	}
	if out.MaskFile, out.MaskDir, err = e.standIns(); err != nil {
		return agent.Premises{}, fmt.Errorf("%w: stand-ins: %w", agent.ErrUnready, err)
	}
	found, err := e.contents(ctx, c, img)
	if err != nil {
		return agent.Premises{}, err
	}
	if out.Bin = found.Agents[p.AgentName()]; out.Bin == "" {
		return agent.Premises{}, fmt.Errorf("%w: image %s has no %s on its PATH", agent.ErrUnsupported, p.SandboxImage, p.AgentName())
	}
	for _, x := range found.Denied {
		m := agent.Bind{Source: out.MaskFile, Destination: x.Path, Access: agent.ReadOnly}
		if x.Dir {
			m.Source = out.MaskDir
		}
		out.Masks = append(out.Masks, m)
	}
	return out, nil
}

// contents looks into an image, once.
func (e *Engine) contents(ctx context.Context, c client, img image) (contents, error) {
	key := lookKey{c.bin, img.ID}
	e.mu.Lock()
	l := e.looks[key]
	if l == nil {
		if e.looks == nil {
			e.looks = map[lookKey]*looked{}
		}
		l = new(looked)
		e.looks[key] = l
	}
	e.mu.Unlock()
	l.once.Do(func() { l.found, l.err = e.lookInto(ctx, c, img) })
	if l.err != nil {
		// What failed may be mended: the next turn looks again.
		e.mu.Lock()
		if e.looks[key] == l {
			delete(e.looks, key)
		}
		e.mu.Unlock()
		return contents{}, fmt.Errorf("look into image %s: %w", img.ID, l.err)
	}
	e.log().Debug("image", "image", img.ID, "agents", l.found.Agents, "denied", len(l.found.Denied))
	return l.found, nil
}

// lookInto runs this program's own look in a container of the image, held as a turn is.
func (e *Engine) lookInto(ctx context.Context, c client, img image) (found contents, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	dir, err := os.MkdirTemp(e.Dir, "look-")
	if err != nil {
		return found, fmt.Errorf("%w: %w", agent.ErrUnready, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	stage, err := e.stage()
	if err != nil {
		return found, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return found, fmt.Errorf("%w: %w", agent.ErrUnready, err)
	}
	defer null.Close()
	out, theirs, err := os.Pipe()
	if err != nil {
		return found, fmt.Errorf("%w: %w", agent.ErrUnready, err)
	}
	defer out.Close()
	cmd := &exec.Cmd{Path: stage, Args: []string{stage, lookArg}, Env: img.Config.Env, Dir: "/", Stdin: null, Stdout: theirs, Stderr: null}
	name := "turnpike-look-" + strings.ToLower(rand.Text()[:10])
	tree, err := e.Start(ctx, cmd, agent.Box{Bin: c.bin, Name: name, Label: cmp.Or(e.Label, "turnpike.look="+name), Dir: dir, Image: img.ID, WorkDir: "/"}, nil)
	theirs.Close()
	if err != nil {
		return found, err
	}
	end := context.AfterFunc(ctx, func() {
		// Outside the look's own time, which is over.
		kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		_ = tree.Kill(kill) // Wait tells
	})
	defer end()
	text, readErr := io.ReadAll(io.LimitReader(out, 4<<20))
	exit, err := tree.Wait()
	switch {
	case ctx.Err() != nil:
		return found, fmt.Errorf("%w: %w", agent.ErrUnready, context.Cause(ctx))
	case err != nil || readErr != nil:
		return found, fmt.Errorf("%w: %w", agent.ErrUnready, errors.Join(err, readErr))
	case exit != (agent.Exit{}):
		return found, fmt.Errorf("%w: it ended with %+v", agent.ErrUnsupported, exit)
	}
	if err := json.Unmarshal(text, &found); err != nil {
		return found, fmt.Errorf("%w: what was found cannot be read: %w", agent.ErrUnsupported, err)
	}
	return found, nil
}

// stage is the program that is bound into containers.
func (e *Engine) stage() (string, error) {
	path := e.Stage
	if path == "" {
		own, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("%w: find the stage: %w", agent.ErrUnready, err)
		}
		path = own
	}
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fmt.Errorf("%w: find the stage: %w", agent.ErrUnready, err)
	}
	return path, nil
}

const standIn = "#!/bin/sh\necho \"${0##*/}: not granted to this turn\" >&2\nexit 126\n"

// standIns are a file and an empty directory to lay over what a turn may not reach.
func (e *Engine) standIns() (file, dir string, err error) {
	file, dir = filepath.Join(e.Dir, "denied"), filepath.Join(e.Dir, "denied.d")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", "", err
	}
	if text, err := os.ReadFile(file); err == nil && string(text) == standIn {
		return file, dir, nil
	}
	f, err := os.CreateTemp(e.Dir, "denied-")
	if err != nil {
		return "", "", err
	}
	_, err = f.WriteString(standIn)
	if err = errors.Join(err, f.Chmod(0o555), f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	return file, dir, err
}

// Find implements agent.Engine.
func (e *Engine) Find(ctx context.Context, who agent.Identity) (bool, error) {
	ids, err := e.those(ctx, who)
	return len(ids) > 0, err
}

// End implements agent.Engine.
func (e *Engine) End(ctx context.Context, who agent.Identity) (bool, error) {
	ids, err := e.those(ctx, who)
	if err != nil {
		return false, err
	}
	for _, id := range ids {
		if err := e.client("").remove(ctx, id); err != nil {
			return false, fmt.Errorf("end container %.12s: %w", id, err)
		}
	}
	return len(ids) > 0, nil
}

// those are the containers that who names: by its id, and by its label.
func (e *Engine) those(ctx context.Context, who agent.Identity) ([]string, error) {
	if who.Kind != agent.KindContainer || who.ID == "" && who.Label == "" {
		return nil, errors.New("find container: the identity is incomplete")
	}
	c := e.client("")
	var ids []string
	for _, filter := range []string{"id=" + who.ID, "label=" + who.Label} {
		if strings.HasSuffix(filter, "=") && filter != "label="+who.Label || who.Label == "" && strings.HasPrefix(filter, "label") {
			continue
		}
		found, err := c.list(ctx, filter)
		if err != nil {
			return nil, fmt.Errorf("find container: %w", err)
		}
		ids = append(ids, found...)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Sweep implements agent.Engine.
func (e *Engine) Sweep(ctx context.Context, prefix string) (int, error) {
	key, value, ok := strings.Cut(prefix, "=")
	if !ok || key == "" || value == "" {
		return 0, fmt.Errorf("sweep containers: %q is no label", prefix)
	}
	c := e.client("")
	labelled, err := c.labelled(ctx, key)
	if err != nil {
		return 0, fmt.Errorf("sweep containers: %w", err)
	}
	n := 0
	for id, has := range labelled {
		if !strings.HasPrefix(has, value) {
			continue
		}
		if err := c.remove(ctx, id); err != nil {
			return n, fmt.Errorf("sweep container %.12s: %w", id, err)
		}
		n++
	}
	return n, nil
}

// Report is what an engine can hold a turn to, for people.
type Report struct {
	OK      bool     `json:"ok"`
	Version string   `json:"version,omitempty"`
	Missing []string `json:"missing,omitempty"`
	// Weaknesses are known by the engine's versions; a distribution may have mended
	// them without changing those.
	Weaknesses []string `json:"weaknesses,omitempty"`
}

// Probe asks the engine what it is. It makes no container.
func (e *Engine) Probe(ctx context.Context) Report {
	facts, err := e.client("").facts(ctx)
	if err != nil {
		return Report{Missing: []string{err.Error()}}
	}
	r := Report{OK: true, Version: facts.version(), Weaknesses: facts.weaknesses(), Missing: facts.limits()}
	if err := facts.check(); err != nil {
		r.OK, r.Missing = false, append(r.Missing, err.Error())
	}
	return r
}
