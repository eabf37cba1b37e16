package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// notes holds the marks of attempts that started nothing yet, one to a slot of one
// file: making and removing a file of its own costs an attempt more than all else this
// worker does for one that ends at once. They are for the case that this process ends;
// with the machine everything ends that was started, and a note that comes back is
// reported again, which changes nothing.
type notes struct {
	path string

	mu    sync.Mutex // guards the fields below
	file  *os.File   // nil: not opened yet
	slots map[attemptKey]int
	found map[attemptKey]bool // an earlier worker's
	free  []int
	size  int // in slots
}

// noteBytes is the size of a slot: a slot lies within a page, so that what is written to
// it is there as a whole or not at all when this process is killed.
const noteBytes = 2 << 10

// errLong says that a mark needs a file of its own.
var errLong = errors.New("longer than a note")

// openNotes reads what an earlier worker noted: those slots are taken until they are
// removed.
func openNotes(path string) (*notes, error) {
	n := &notes{path: path, slots: make(map[attemptKey]int), found: make(map[attemptKey]bool)}
	taken := make(map[int]bool)
	size, err := readNotes(path, func(slot int, mk *mark) {
		n.slots[mk.key()], n.found[mk.key()], taken[slot] = slot, true, true
	})
	n.size = size
	for slot := range size {
		if !taken[slot] {
			n.free = append(n.free, slot)
		}
	}
	return n, err
}

// readNotes gives every note of the file at path to each. One that is not whole was
// being written when its worker was killed: nothing had been started.
func readNotes(path string, each func(slot int, mk *mark)) (size int, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read notes: %w", err)
	}
	for ; len(b) > 0; size++ {
		slot := b[:min(noteBytes, len(b))]
		b = b[len(slot):]
		line, _, whole := bytes.Cut(slot, []byte("\n"))
		var mk mark
		if whole && json.Unmarshal(line, &mk) == nil && mk.Version == markVersion {
			each(size, &mk)
		}
	}
	return size, nil
}

// put writes a mark to a slot. It returns errLong when it does not fit one.
func (n *notes) put(mk *mark) error {
	b, err := json.Marshal(mk)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if len(b) > noteBytes {
		return errLong
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.file == nil {
		if n.file, err = os.OpenFile(n.path, os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
			return err
		}
	}
	slot, known := n.slots[mk.key()]
	if !known {
		slot = n.size
		if last := len(n.free) - 1; last >= 0 {
			slot = n.free[last]
		}
	}
	if _, err := n.file.WriteAt(b, int64(slot)*noteBytes); err != nil {
		return err
	}
	switch {
	case known:
	case slot == n.size:
		n.size++
	default:
		n.free = n.free[:len(n.free)-1]
	}
	n.slots[mk.key()] = slot
	return nil
}

// remove empties the slot of an attempt, if it has one. only says that the attempt had
// no mark but this: a worker that was killed may have left a file beside the note.
func (n *notes) remove(k attemptKey) (only bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	slot, known := n.slots[k]
	if !known {
		return false, nil
	}
	if n.file == nil {
		if n.file, err = os.OpenFile(n.path, os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
			return false, err
		}
	}
	if _, err := n.file.WriteAt([]byte{0}, int64(slot)*noteBytes); err != nil {
		return false, err
	}
	only = !n.found[k]
	delete(n.slots, k)
	delete(n.found, k)
	n.free = append(n.free, slot)
	return only, nil
}

func (n *notes) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.file == nil {
		return nil
	}
	err := n.file.Close()
	n.file = nil
	return err
}
