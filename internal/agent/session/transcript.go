package session

import (
	"errors"
	"fmt"
	"os"
	"sync"
)

// errBound says that a log stopped at its bound.
var errBound = errors.New("size bound reached")

// Log is a file that takes what an agent prints. Writing to it never fails: a
// turn is worth more than its log, so the first error ends the log, keeps what
// was written before, and is told by Err.
type Log struct {
	mu   sync.Mutex // guards what follows
	f    *os.File
	left int64
	err  error
}

// OpenTranscript opens the transcript for at most limit bytes. Its error wraps
// agent.ErrUnready.
func (d *Dir) OpenTranscript(limit int64) (*Log, error) { return openLog(d.Transcript(), limit) }

// OpenStderr opens the log of the agent's stderr for at most limit bytes. Its
// error wraps agent.ErrUnready.
func (d *Dir) OpenStderr(limit int64) (*Log, error) { return openLog(d.Stderr(), limit) }

// OpenServerLog opens the log of a server that runs on the host for the turn, for at
// most limit bytes. Its error wraps agent.ErrUnready.
func (d *Dir) OpenServerLog(limit int64) (*Log, error) { return openLog(d.ServerLog(), limit) }

func openLog(path string, limit int64) (*Log, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return nil, unready("open log", err)
	}
	return &Log{f: f, left: limit}, nil
}

// Write takes p. It always reports success.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return len(p), nil
	}
	keep := p
	if int64(len(keep)) > l.left {
		keep, l.err = keep[:l.left], errBound
	}
	n, err := l.f.Write(keep)
	l.left -= int64(n)
	if err != nil {
		l.err = err
	}
	return len(p), nil
}

// Err tells what ended the log early; nil when it holds everything.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return fmt.Errorf("write %s: %w", l.f.Name(), l.err)
	}
	return nil
}

// Close puts the log on the disk.
func (l *Log) Close() error {
	return errors.Join(l.f.Sync(), l.f.Close())
}
