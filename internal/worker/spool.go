package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"turnpike/internal/job"
)

// attemptKey names one attempt, and its files.
type attemptKey struct {
	Job     job.ID
	Attempt int
}

func keyOf(l job.Lease) attemptKey { return attemptKey{l.Job, l.Attempt} }

func (k attemptKey) String() string { return fmt.Sprintf("%s.%d", k.Job, k.Attempt) }

func (k attemptKey) file() string { return k.String() + ".json" }

// parseKey reads the name of an attempt's file.
func parseKey(file string) (attemptKey, bool) {
	base, ok := strings.CutSuffix(file, ".json")
	id, n, cut := strings.Cut(base, ".")
	attempt, err := strconv.Atoi(n)
	parsed, idErr := job.ParseID(id)
	if !ok || !cut || err != nil || attempt < 1 || idErr != nil {
		return attemptKey{}, false
	}
	k := attemptKey{parsed, attempt}
	return k, k.file() == file
}

// spool keeps each report that was not settled at once, fsynced, until it is.
type spool struct{ dir, rejected string }

func (s *StateDir) newSpool() spool { return spool{s.spool(), s.rejected()} }

// encodeReport writes a report as one line. Its error wraps errUnwritable.
func encodeReport(r job.Report) ([]byte, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("spool report of %s: %w: %w", keyOf(r.Lease), errUnwritable, err)
	}
	return b, nil
}

func (s spool) put(r job.Report) error {
	b, err := encodeReport(r)
	if err != nil {
		return err
	}
	if err := writeDurably(s.dir, keyOf(r.Lease).file(), b); err != nil {
		return fmt.Errorf("spool report of %s: %w", keyOf(r.Lease), err)
	}
	return nil
}

// errUnwritable says that a report holds what JSON cannot.
var errUnwritable = errors.New("the report cannot be written")

// errUnreadable says that a file will never be a report.
var errUnreadable = errors.New("not a report")

// get reads one report back. Its error wraps errUnreadable when no later try can
// succeed, and fs.ErrNotExist.
func (s spool) get(k attemptKey) (job.Report, error) {
	b, err := os.ReadFile(filepath.Join(s.dir, k.file()))
	if err != nil {
		return job.Report{}, fmt.Errorf("read spool: %w", err)
	}
	r, err := decodeReport(b)
	if err == nil && keyOf(r.Lease) != k {
		err = fmt.Errorf("it is of attempt %s: %w", keyOf(r.Lease), errUnreadable)
	}
	if err != nil {
		return job.Report{}, fmt.Errorf("read spool: %s: %w", k.file(), err)
	}
	return r, nil
}

func decodeReport(b []byte) (job.Report, error) {
	var r job.Report
	dec := json.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(&r); err != nil {
		return job.Report{}, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	if dec.More() {
		return job.Report{}, fmt.Errorf("%w: more than one value", errUnreadable)
	}
	if r.Version != job.ReportVersion {
		return job.Report{}, fmt.Errorf("%w: version %d, this release reads %d", errUnreadable, r.Version, job.ReportVersion)
	}
	if !slices.Contains(job.Endings(), r.Ending) {
		return job.Report{}, fmt.Errorf("%w: ending %q", errUnreadable, r.Ending)
	}
	return r, nil
}

// remove forgets a settled report. The removal is not made durable: a report that
// comes back after a crash is settled again, which changes nothing.
func (s spool) remove(k attemptKey) error {
	err := os.Remove(filepath.Join(s.dir, k.file()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// reject sets a file aside for a person to look at.
func (s spool) reject(file string) error {
	if err := os.Rename(filepath.Join(s.dir, file), filepath.Join(s.rejected, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("set %s aside: %w", file, err)
	}
	return nil
}

// setAside keeps a report that is not in the spool for a person to look at.
func (s spool) setAside(r job.Report) error {
	return spool{dir: s.rejected}.put(r)
}

// list names the attempts whose reports are here, and the files that are none.
func (s spool) list() (keys []attemptKey, strangers []string, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read spool: %w", err)
	}
	for _, e := range entries {
		switch k, ok := parseKey(e.Name()); {
		case strings.HasPrefix(e.Name(), unfinished): // being written
		case ok && e.Type().IsRegular():
			keys = append(keys, k)
		default:
			strangers = append(strangers, e.Name())
		}
	}
	return keys, strangers, nil
}
