package queue

import (
	"fmt"
	"strconv"
	"strings"

	"turnpike/internal/job"
)

const (
	root           = "turnpike."
	jobsRoot       = root + "jobs."
	resultsRoot    = root + "results."
	transcriptRoot = root + "transcripts."
	cancelRoot     = root + "cancel."
	wakeSubject    = root + "wake"

	resultsStream     = "TURNPIKE_RESULTS"
	transcriptsStream = "TURNPIKE_TRANSCRIPTS"
	resultsConsumer   = "settle"
)

// maxNumber bounds what a subject may count; the database's columns are as wide.
const maxNumber = 1<<31 - 1

// jobsStream is the stream of a placement.
func jobsStream(placement string) string {
	return "TURNPIKE_JOBS_" + strings.ToUpper(strings.ReplaceAll(placement, "-", "_"))
}

// laneConsumer is the durable consumer of a lane within its placement's stream.
func laneConsumer(l job.Lane) string { return "pool-" + l.Pool }

// laneSubjects matches every delivery of a lane.
func laneSubjects(l job.Lane) string { return jobsRoot + l.Placement + "." + l.Pool + ".*.*" }

// jobSubject is where a delivery is published.
func jobSubject(d job.Delivery) string {
	return jobsRoot + d.Lane.Placement + "." + d.Lane.Pool + "." + string(d.Job) + "." + strconv.Itoa(d.Dispatch)
}

// parseJobSubject reads what jobSubject writes and nothing else.
func parseJobSubject(s string) (job.Delivery, error) {
	rest, ok := strings.CutPrefix(s, jobsRoot)
	parts := strings.Split(rest, ".")
	if !ok || len(parts) != 4 {
		return job.Delivery{}, fmt.Errorf("%q is not the subject of a job", clip(s))
	}
	lane, err := job.ParseLane(parts[0] + "/" + parts[1])
	if err != nil {
		return job.Delivery{}, fmt.Errorf("subject %q: %w", clip(s), err)
	}
	id, err := exactID(parts[2])
	if err != nil {
		return job.Delivery{}, fmt.Errorf("subject %q: %w", clip(s), err)
	}
	n, err := number(parts[3])
	if err != nil {
		return job.Delivery{}, fmt.Errorf("subject %q: %w", clip(s), err)
	}
	return job.Delivery{Job: id, Dispatch: n, Lane: lane}, nil
}

func attemptSubject(prefix string, id job.ID, attempt int) string {
	return prefix + string(id) + "." + strconv.Itoa(attempt)
}

// parseAttemptSubject reads what attemptSubject writes and nothing else.
func parseAttemptSubject(prefix, s string) (job.ID, int, error) {
	rest, ok := strings.CutPrefix(s, prefix)
	idPart, nPart, dot := strings.Cut(rest, ".")
	if !ok || !dot {
		return "", 0, fmt.Errorf("%q is not the subject of an attempt", clip(s))
	}
	id, err := exactID(idPart)
	if err != nil {
		return "", 0, fmt.Errorf("subject %q: %w", clip(s), err)
	}
	n, err := number(nPart)
	if err != nil {
		return "", 0, fmt.Errorf("subject %q: %w", clip(s), err)
	}
	return id, n, nil
}

// exactID takes only the canonical form: people may write an id otherwise,
// programs do not.
func exactID(s string) (job.ID, error) {
	id, err := job.ParseID(s)
	if err == nil && string(id) != s {
		err = fmt.Errorf("%q is not a job id in canonical form", clip(s))
	}
	return id, err
}

func number(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > maxNumber || strconv.Itoa(n) != s {
		return 0, fmt.Errorf("%q is not a positive number", clip(s))
	}
	return n, nil
}

func clip(s string) string {
	if len(s) > 200 {
		s = s[:200]
	}
	return strings.ToValidUTF8(s, "?")
}
