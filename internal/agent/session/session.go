package session

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"turnpike/internal/agent"
)

const (
	promptFile       = "prompt.md"
	systemPromptFile = "system-prompt.md"
	transcriptFile   = "transcript.jsonl"
	stderrFile       = "stderr.log"
	serverFile       = "host-mcp.log"
	resultFile       = "result.json"
	metaFile         = "meta.json"
	killedFile       = "killed"

	dirMode  = 0o700
	fileMode = 0o600

	// A turn's name becomes part of socket paths, which the kernel holds to
	// about a hundred bytes.
	maxName = 40
	// What is read back from small files; a larger one was not written by us.
	maxMeta   = 1 << 20
	maxResult = 64 << 20
	maxNote   = 4 << 10
)

// ErrEnded says that the directory already holds a turn's result.
var ErrEnded = errors.New("session already ended")

// Meta is what identifies a turn on its worker.
type Meta struct {
	Name    string `json:"name"`
	Role    string `json:"role,omitempty"`
	Agent   string `json:"agent,omitempty"`
	Job     string `json:"job,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
	// ResumeID is the conversation it continues; empty for a new one.
	ResumeID string `json:"resume_id,omitempty"`
	// Marker is unique to the session among those of its worker; whatever the turn
	// starts bears it, so that what outlived the worker can be swept.
	Marker    string    `json:"marker"`
	CreatedAt time.Time `json:"created_at"`
	// StartedAt is set just before an agent is started; zero means that none was.
	StartedAt time.Time `json:"started_at,omitzero"`
	// Process is the started agent, once it is known.
	Process *agent.Identity `json:"process,omitempty"`
}

// Dir is one session directory.
type Dir struct{ path string }

// Create makes a new session directory under root for the turn of this name.
// Its error wraps agent.ErrUnready.
func Create(root, name string) (*Dir, error) {
	if err := os.MkdirAll(root, dirMode); err != nil {
		return nil, unready("make session root", err)
	}
	root, err := resolve(root)
	if err != nil {
		return nil, unready("make session root", err)
	}
	marker := Sanitize(name) + "-" + randomHex()
	d := &Dir{path: filepath.Join(root, marker)}
	// Mkdir, not MkdirAll: a directory that is already there is somebody else's.
	if err := os.Mkdir(d.path, dirMode); err != nil {
		return nil, unready("make session directory", err)
	}
	if err := d.fill(Meta{Name: name, Marker: marker, CreatedAt: time.Now().UTC()}); err != nil {
		// Half a directory tells nobody anything.
		return nil, errors.Join(err, os.RemoveAll(d.path))
	}
	return d, nil
}

func (d *Dir) fill(m Meta) error {
	for _, sub := range []string{d.Home(), d.Run(), d.Tmp(), d.Shims()} {
		if err := os.Mkdir(sub, dirMode); err != nil {
			return unready("make session directory", err)
		}
	}
	return d.writeMeta(m)
}

// Open gives the session directory at dir, as Create made it. Its error wraps
// agent.ErrUnready where there is none.
func Open(dir string) (*Dir, error) {
	path, err := resolve(dir)
	if err != nil {
		return nil, unready("open session directory", err)
	}
	d := &Dir{path: path}
	if _, err := d.Meta(); err != nil {
		return nil, unready("open session directory", err)
	}
	return d, nil
}

// resolve gives the path without links that a confined turn sees too.
func resolve(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}

// Sanitize makes a turn's name fit for a path: letters, digits, dots, dashes and
// underscores, not hidden, not long and never empty.
func Sanitize(name string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_':
			return r
		}
		return '-'
	}, name)
	clean = strings.TrimLeft(clean, ".-")
	if len(clean) > maxName {
		clean = clean[:maxName]
	}
	if clean = strings.TrimRight(clean, ".-"); clean == "" {
		return "turn"
	}
	return clean
}

// Path is the directory itself, without links; the other paths lie in it.
func (d *Dir) Path() string         { return d.path }
func (d *Dir) Prompt() string       { return filepath.Join(d.path, promptFile) }
func (d *Dir) SystemPrompt() string { return filepath.Join(d.path, systemPromptFile) }
func (d *Dir) Transcript() string   { return filepath.Join(d.path, transcriptFile) }
func (d *Dir) Stderr() string       { return filepath.Join(d.path, stderrFile) }
func (d *Dir) ServerLog() string    { return filepath.Join(d.path, serverFile) }
func (d *Dir) Home() string         { return filepath.Join(d.path, "home") }
func (d *Dir) Run() string          { return filepath.Join(d.path, "run") }
func (d *Dir) Tmp() string          { return filepath.Join(d.path, "tmp") }
func (d *Dir) Shims() string        { return filepath.Join(d.path, "shims") }

// Meta reads what identifies the turn.
func (d *Dir) Meta() (Meta, error) {
	var m Meta
	if err := d.readJSON(metaFile, maxMeta, &m); err != nil {
		return Meta{}, err
	}
	if m.Marker == "" {
		return Meta{}, fmt.Errorf("read %s: no marker", metaFile)
	}
	return m, nil
}

// Update changes what identifies the turn; it appears whole or not at all. Its
// error wraps agent.ErrUnready.
func (d *Dir) Update(change func(*Meta)) error {
	m, err := d.Meta()
	if err != nil {
		return unready("update session", err)
	}
	change(&m)
	return d.writeMeta(m)
}

func (d *Dir) writeMeta(m Meta) error {
	if err := d.writeJSON(metaFile, m); err != nil {
		return unready("record session", err)
	}
	return nil
}

// WritePrompts keeps what the agent is asked. Its error wraps agent.ErrUnready.
func (d *Dir) WritePrompts(prompt, system string) error {
	if d.Ended() {
		return fmt.Errorf("%w: session directory %s: %w", agent.ErrUnready, d.path, ErrEnded)
	}
	if err := os.WriteFile(d.Prompt(), []byte(prompt), fileMode); err != nil {
		return unready("write prompt", err)
	}
	if system == "" {
		return nil
	}
	if err := os.WriteFile(d.SystemPrompt(), []byte(system), fileMode); err != nil {
		return unready("write system prompt", err)
	}
	return nil
}

// Abandon forgets a turn that was made ready and not started, so that the directory
// neither looks like one that was lost nor stands in the way of another try.
func (d *Dir) Abandon() error {
	errs := []error{d.Update(func(m *Meta) { m.StartedAt = time.Time{} })}
	for _, log := range []string{d.Transcript(), d.Stderr(), d.ServerLog()} {
		if err := os.Remove(log); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("abandon session: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Ended says whether the directory holds a result.
func (d *Dir) Ended() bool {
	_, err := os.Lstat(filepath.Join(d.path, resultFile))
	return err == nil
}

// WriteResult ends the session: the result appears whole or not at all, and is
// on the disk when WriteResult returns.
func (d *Dir) WriteResult(r *agent.Result) error {
	if err := d.writeJSON(resultFile, r); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}

// Result reads what WriteResult wrote. Its error wraps fs.ErrNotExist while the
// turn has not ended.
func (d *Dir) Result() (*agent.Result, error) {
	var r agent.Result
	if err := d.readJSON(resultFile, maxResult, &r); err != nil {
		return nil, err
	}
	return &r, nil
}

// MarkKilled records that the turn was stopped on purpose after its worker was
// gone, and why.
func (d *Dir) MarkKilled(note string) error {
	if len(note) > maxNote {
		note = note[:maxNote]
	}
	if err := d.writeFile(killedFile, []byte(note)); err != nil {
		return fmt.Errorf("mark session killed: %w", err)
	}
	return nil
}

// Killed reports whether, and with which note, MarkKilled was called.
func (d *Dir) Killed() (note string, killed bool) {
	b, err := readFile(filepath.Join(d.path, killedFile), maxNote)
	return string(b), err == nil
}

func (d *Dir) readJSON(name string, limit int64, v any) error {
	b, err := readFile(filepath.Join(d.path, name), limit)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("read %s: %w", filepath.Join(d.path, name), err)
	}
	return nil
}

func (d *Dir) writeJSON(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return d.writeFile(name, append(b, '\n'))
}

// writeFile replaces a file of the directory so that a crash at any moment leaves
// the old content or the new one.
func (d *Dir) writeFile(name string, content []byte) (err error) {
	f, err := os.CreateTemp(d.path, "."+name+"-*") // made with mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if _, err := f.Write(content); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(d.path, name)); err != nil {
		return err
	}
	return syncDir(d.path)
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// readFile reads a regular file of bounded size, following no link: a directory
// an earlier agent could reach is not to be trusted more than it must be.
func readFile(path string, limit int64) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	if info.Size() > limit {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("larger than %d bytes", limit)}
	}
	return os.ReadFile(path)
}

func unready(what string, err error) error {
	return fmt.Errorf("%w: %s: %w", agent.ErrUnready, what, err)
}

func randomHex() string {
	var b [5]byte
	_, _ = rand.Read(b[:]) // never fails, as its documentation promises
	return hex.EncodeToString(b[:])
}
