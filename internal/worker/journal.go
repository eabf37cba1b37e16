package worker

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"turnpike/internal/job"
)

// journal is where a report is durable from the end of its turn until it is settled,
// which mostly is a moment: turns that end together share one write and one fsync. A
// report that stays longer goes to a file of its own in the spool.
type journal struct {
	dir string

	writing sync.Mutex // held for one write; who waits for it is gathered meanwhile

	mu      sync.Mutex // guards the fields below
	pending *entries
	volumes [2]volume
	current int
}

// volume is one of the journal's two files. It is written from its beginning again once
// nothing in it is of use.
type volume struct {
	file *os.File // nil: not opened yet
	size int64
	live int // reports in it that are not settled
}

// entries are lines that become durable together.
type entries struct {
	lines bytes.Buffer
	count int
	done  bool // written or failed; guarded by journal.writing, as the rest
	in    int  // the volume
	err   error
}

// volumeBytes is when the other volume is taken, if it is free.
const volumeBytes = 4 << 20

func (s *StateDir) newJournal() *journal { return &journal{dir: s.journal()} }

func (j *journal) path(volume int) string {
	return filepath.Join(j.dir, strconv.Itoa(volume))
}

// put makes a line durable, with all that come at the same time, and says in which
// volume it is. Each line that was put is to be forgotten.
func (j *journal) put(line []byte) (volume int, err error) {
	j.mu.Lock()
	if j.pending == nil {
		j.pending = &entries{}
	}
	mine := j.pending
	mine.lines.Write(line)
	mine.lines.WriteByte('\n')
	mine.count++
	j.mu.Unlock()

	j.writing.Lock()
	defer j.writing.Unlock()
	if !mine.done {
		j.write()
	}
	return mine.in, mine.err
}

// write writes what is pending. j.writing is held.
func (j *journal) write() {
	j.mu.Lock()
	e := j.pending
	j.pending = nil
	if other := 1 - j.current; j.volumes[j.current].size >= volumeBytes && j.volumes[other].live == 0 {
		j.current = other
	}
	e.in = j.current
	v := &j.volumes[e.in]
	// Nobody waits for what is in it, and it cannot get any shorter by forgetting.
	anew := v.live == 0
	v.live += e.count
	j.mu.Unlock()

	n, err := j.append(e.in, anew, e.lines.Bytes())
	j.mu.Lock()
	defer j.mu.Unlock()
	if e.done, e.err = true, err; err != nil {
		v.live -= e.count
		return
	}
	v.size = n
}

// append adds to a volume, or begins it anew, and returns its size.
func (j *journal) append(volume int, anew bool, lines []byte) (size int64, err error) {
	v := &j.volumes[volume] // file and size change under j.writing alone
	if v.file == nil {
		if v.file, err = os.OpenFile(j.path(volume), os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
			return 0, err
		}
		if err := syncDir(j.dir); err != nil {
			return 0, err
		}
	}
	at := v.size
	if anew {
		at = 0
		if err := v.file.Truncate(0); err != nil {
			return 0, err
		}
	}
	if _, err := v.file.WriteAt(lines, at); err != nil {
		return 0, err
	}
	return at + int64(len(lines)), v.file.Sync()
}

// forget says that a line is of no use any more. That is not made durable: a report
// that comes back after a crash is settled again, which changes nothing.
func (j *journal) forget(volume int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.volumes[volume].live--
}

// recover gives every line that an earlier worker left to keep, and empties the journal
// once all of them were kept. A line that was being written is nobody's.
func (j *journal) recover(keep func(line []byte) error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range j.volumes {
		b, err := os.ReadFile(j.path(i))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read journal: %w", err)
		}
		for line := range bytes.Lines(b) {
			if whole, ok := bytes.CutSuffix(line, []byte("\n")); ok {
				if err := keep(whole); err != nil {
					// It is of use until another worker has read it.
					j.volumes[i] = volume{size: int64(len(b)), live: 1}
					return fmt.Errorf("read journal: %w", err)
				}
			}
		}
		if err := os.Remove(j.path(i)); err != nil {
			return fmt.Errorf("empty journal: %w", err)
		}
	}
	return nil
}

// close closes the files, and removes those that are of no use. A report that comes
// nevertheless opens one again.
func (j *journal) close() error {
	j.writing.Lock()
	defer j.writing.Unlock()
	var errs []error
	for i := range j.volumes {
		v := &j.volumes[i]
		if v.file == nil {
			continue
		}
		errs = append(errs, v.file.Close())
		if v.live == 0 {
			errs = append(errs, os.Remove(j.path(i)))
		}
		v.file = nil
	}
	return errors.Join(errs...)
}

// keepFromJournal gives a report of the journal a file of its own in the spool. What is
// no report is set aside.
func (s spool) keepFromJournal(line []byte) error {
	r, err := decodeReport(line)
	if err != nil {
		return writeDurably(s.rejected, fmt.Sprintf("journal-%s.json", job.NewToken()), line)
	}
	return s.put(r)
}
