package queue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	"turnpike/internal/job"
)

// maxBody bounds a job's message: ids and trace context, nothing more.
const maxBody = 1 << 10

// errNewer is a message of a later release, to be left to a worker of that release.
var errNewer = errors.New("message of a newer version")

// traceForm is a W3C traceparent.
var traceForm = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

func encodeDelivery(d job.Delivery) ([]byte, error) {
	d.Version = job.MessageVersion
	if !traceForm.MatchString(d.Trace) {
		d.Trace = "" // a trace that cannot be continued is not worth a job
	}
	return json.Marshal(d)
}

// decodeDelivery reads a message. The body must be exactly what encodeDelivery
// writes for the subject, byte for byte: that refuses unknown and repeated members,
// trailing data and a body that belongs to another subject in one comparison.
func decodeDelivery(subject string, body []byte) (job.Delivery, error) {
	want, err := parseJobSubject(subject)
	if err != nil {
		return job.Delivery{}, err
	}
	if len(body) > maxBody {
		return job.Delivery{}, fmt.Errorf("message of %d bytes on %s: at most %d belong there", len(body), subject, maxBody)
	}
	var got job.Delivery
	if err := json.Unmarshal(body, &got); err != nil {
		return job.Delivery{}, fmt.Errorf("message on %s: %w", subject, err)
	}
	if got.Version > job.MessageVersion {
		return job.Delivery{}, fmt.Errorf("message on %s: %w: %d", subject, errNewer, got.Version)
	}
	want.Version, want.Trace = job.MessageVersion, got.Trace
	if canonical, err := encodeDelivery(want); err != nil || !bytes.Equal(canonical, body) {
		return job.Delivery{}, fmt.Errorf("message on %s is not in the form of version %d", subject, job.MessageVersion)
	}
	return want, nil
}

// decodeReport reads a report from the results stream, where members that a later
// release added may be ignored: what is known of a result is worth keeping.
func decodeReport(subject string, body []byte) (job.Report, error) {
	id, attempt, err := parseAttemptSubject(resultsRoot, subject)
	if err != nil {
		return job.Report{}, err
	}
	var r job.Report
	if err := json.Unmarshal(body, &r); err != nil {
		return job.Report{}, fmt.Errorf("report on %s: %w", subject, err)
	}
	switch {
	case r.Version < 1:
		return job.Report{}, fmt.Errorf("report on %s has no version", subject)
	case r.Version > job.ReportVersion:
		return job.Report{}, fmt.Errorf("report on %s: %w: %d", subject, errNewer, r.Version)
	case r.Lease.Job != id || r.Lease.Attempt != attempt:
		return job.Report{}, fmt.Errorf("report on %s is about attempt %d of job %q", subject, r.Lease.Attempt, clip(string(r.Lease.Job)))
	case r.Lease.Token == "":
		return job.Report{}, fmt.Errorf("report on %s has no token", subject)
	}
	return r, nil
}
