package session

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"turnpike/internal/agent"
)

const (
	// aboutEntry is the first entry of a bundle; filesRoot begins every other.
	aboutEntry    = "about.json"
	filesRoot     = "files/"
	bundleVersion = 1

	// What a bundle holds at most. A conversation that outgrew it is not kept.
	maxBundleFiles = 2_000
	maxBundleBytes = 256 << 20 // of its files
	maxAbout       = 16 << 10
	// maxHomeLooked bounds how much of a home is looked through.
	maxHomeLooked = 100_000
)

// Errors of bundles.
var (
	// ErrNoConversation says that there is nothing of the conversation to keep.
	ErrNoConversation = errors.New("nothing is kept of the conversation")
	// ErrBundle says that a bundle is not what it should be. It is used not at all.
	ErrBundle = errors.New("not the bundle of the conversation")
)

// About says which conversation a bundle holds and where it took place.
type About struct {
	Version      int    `json:"version"`
	Agent        string `json:"agent"`
	Conversation string `json:"conversation"`
	// WorkDir is the working directory as the CLI saw it: CLIs look for their
	// conversations by it.
	WorkDir string `json:"work_dir"`
}

// Conversation is where KeepConversation leaves the bundle of this turn's
// conversation.
func (d *Dir) Conversation() string { return filepath.Join(d.path, agent.ConversationFile) }

// Continued is the bundle of the conversation this turn is to continue, put there by
// who ordered the turn.
func (d *Dir) Continued() string { return filepath.Join(d.path, agent.ContinuedFile) }

// KeepConversation packs the files of the CLI's home that belong to the conversation,
// as part tells by their slash-separated names. The home is the agent's: no link is
// followed, and only regular files are read. It is called once nothing of the turn
// runs.
func (d *Dir) KeepConversation(about About, part func(name string) bool) (err error) {
	about.Version = bundleVersion
	root, err := os.OpenRoot(d.Home())
	if err != nil {
		return fmt.Errorf("keep conversation: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	names, err := conversationNames(root, part)
	if err != nil {
		return fmt.Errorf("keep conversation: %w", err)
	}
	if len(names) == 0 {
		return ErrNoConversation
	}
	f, err := os.CreateTemp(d.path, "."+agent.ConversationFile+"-*") // made with mode 0600
	if err != nil {
		return fmt.Errorf("keep conversation: %w", err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if err := pack(&bounded{w: f, left: agent.MaxConversation}, root, about, names); err != nil {
		return fmt.Errorf("keep conversation: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("keep conversation: %w", err)
	}
	if err := os.Rename(f.Name(), d.Conversation()); err != nil {
		return fmt.Errorf("keep conversation: %w", err)
	}
	return nil
}

func conversationNames(root *os.Root, part func(string) bool) (names []string, err error) {
	looked := 0
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if e == nil {
			return err
		}
		if looked++; looked > maxHomeLooked {
			return fmt.Errorf("the CLI's home holds more than %d files", maxHomeLooked)
		}
		if err != nil || !e.Type().IsRegular() || !part(name) {
			return nil //nolint:nilerr // what cannot be read of the agent's is not there
		}
		if names = append(names, name); len(names) > maxBundleFiles {
			return fmt.Errorf("it has more than %d files", maxBundleFiles)
		}
		return nil
	})
	return names, err
}

func pack(w io.Writer, root *os.Root, about About, names []string) error {
	zipped := gzip.NewWriter(w)
	t := tar.NewWriter(zipped)
	head, err := json.Marshal(about)
	if err != nil {
		return err
	}
	if err := t.WriteHeader(&tar.Header{Name: aboutEntry, Typeflag: tar.TypeReg, Mode: fileMode, Size: int64(len(head))}); err != nil {
		return err
	}
	if _, err := t.Write(head); err != nil {
		return err
	}
	left := int64(maxBundleBytes)
	for _, name := range names {
		size, err := packFile(t, root, name)
		if err != nil {
			return err
		}
		if left -= size; left < 0 {
			return fmt.Errorf("it is larger than %d bytes", maxBundleBytes)
		}
	}
	return errors.Join(t.Close(), zipped.Close())
}

func packFile(t *tar.Writer, root *os.Root, name string) (size int64, err error) {
	f, err := root.Open(filepath.FromSlash(name))
	if err != nil {
		return 0, err
	}
	defer f.Close() // it was only read
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%s is no regular file", name)
	}
	if info.Size() > maxBundleBytes {
		return 0, fmt.Errorf("%s is larger than %d bytes", name, maxBundleBytes)
	}
	if err := t.WriteHeader(&tar.Header{
		Name: filesRoot + name, Typeflag: tar.TypeReg, Mode: fileMode, Size: info.Size(), ModTime: info.ModTime(),
	}); err != nil {
		return 0, err
	}
	return io.Copy(t, io.LimitReader(f, info.Size()))
}

// RestoreConversation puts the files of the bundle at Continued into the CLI's home,
// which is fresh. The bundle must be of this conversation and this place, and hold
// nothing but what part lets through: it is refused whole otherwise, with an error
// that wraps ErrBundle, and the home is then not to be used. The error wraps
// fs.ErrNotExist when there is no bundle.
func (d *Dir) RestoreConversation(want About, part func(name string) bool) (err error) {
	want.Version = bundleVersion
	f, err := os.Open(d.Continued())
	if err != nil {
		return fmt.Errorf("restore conversation: %w", err)
	}
	defer f.Close() // it was only read
	root, err := os.OpenRoot(d.Home())
	if err != nil {
		return unready("restore conversation", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	if err := unpack(f, root, want, part); err != nil {
		return fmt.Errorf("restore conversation: %w", err)
	}
	return nil
}

func unpack(r io.Reader, root *os.Root, want About, part func(string) bool) error {
	zipped, err := gzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBundle, err)
	}
	// The bound holds for whatever the archive inflates to, its own headers too.
	t := tar.NewReader(io.LimitReader(zipped, maxBundleBytes+maxBundleFiles*(4<<10)+maxAbout))
	if err := readAbout(t, want); err != nil {
		return err
	}
	left := int64(maxBundleBytes)
	for files := 0; ; files++ {
		h, err := t.Next()
		switch {
		case errors.Is(err, io.EOF):
			if files == 0 {
				return fmt.Errorf("%w: it holds no file", ErrBundle)
			}
			return nil
		case err != nil:
			return fmt.Errorf("%w: %w", ErrBundle, err)
		}
		name, inside := strings.CutPrefix(h.Name, filesRoot)
		left -= h.Size
		switch {
		case h.Typeflag != tar.TypeReg:
			return fmt.Errorf("%w: %q is no regular file", ErrBundle, clip(h.Name))
		case !inside || !fs.ValidPath(name) || path.Clean(name) != name || !filepath.IsLocal(filepath.FromSlash(name)) || !part(name):
			return fmt.Errorf("%w: %q is no file of a conversation", ErrBundle, clip(h.Name))
		case files >= maxBundleFiles || left < 0:
			return fmt.Errorf("%w: it is too large", ErrBundle)
		}
		if err := restoreFile(t, root, name, h.Size); err != nil {
			return err
		}
	}
}

func readAbout(t *tar.Reader, want About) error {
	h, err := t.Next()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBundle, err)
	}
	if h.Name != aboutEntry || h.Typeflag != tar.TypeReg || h.Size > maxAbout {
		return fmt.Errorf("%w: it does not say what it is", ErrBundle)
	}
	var got About
	if err := json.NewDecoder(t).Decode(&got); err != nil {
		return fmt.Errorf("%w: %w", ErrBundle, err)
	}
	switch {
	case got.Version != want.Version:
		return fmt.Errorf("%w: its version is %d, want %d", ErrBundle, got.Version, want.Version)
	case got.Agent != want.Agent || got.Conversation != want.Conversation:
		return fmt.Errorf("%w: it is of another one", ErrBundle)
	case got.WorkDir != want.WorkDir:
		return fmt.Errorf("%w: it took place in %s and cannot go on in %s", ErrBundle, clip(got.WorkDir), want.WorkDir)
	}
	return nil
}

func restoreFile(t *tar.Reader, root *os.Root, name string, size int64) (err error) {
	local := filepath.FromSlash(name)
	if err := root.MkdirAll(filepath.Dir(local), dirMode); err != nil {
		return unready("make directory", err)
	}
	// A second file of the same name is as wrong as one that stands in the way.
	f, err := root.OpenFile(local, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %q is there already", ErrBundle, clip(name))
	}
	if err != nil {
		return unready("write file", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	n, err := io.Copy(f, t)
	if err != nil || n != size {
		return fmt.Errorf("%w: %q ends early", ErrBundle, clip(name))
	}
	return nil
}

func clip(s string) string {
	const most = 200
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "?")
}

// bounded refuses to write more than it may.
type bounded struct {
	w    io.Writer
	left int64
}

func (b *bounded) Write(p []byte) (int, error) {
	if int64(len(p)) > b.left {
		return 0, fmt.Errorf("packed, it is larger than %d bytes", agent.MaxConversation)
	}
	b.left -= int64(len(p))
	return b.w.Write(p)
}
