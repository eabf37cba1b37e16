package queue

import "turnpike/internal/job"

// What the fuzz targets reach.
var (
	EncodeDelivery = encodeDelivery
	DecodeDelivery = decodeDelivery
	JobSubject     = jobSubject
	DecodeReport   = decodeReport
	JobsStream     = jobsStream
	LaneConsumer   = laneConsumer
)

// ResultSubject is where an attempt's report goes.
func ResultSubject(id job.ID, attempt int) string { return attemptSubject(resultsRoot, id, attempt) }
