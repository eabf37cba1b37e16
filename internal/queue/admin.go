package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"turnpike/internal/job"
)

// Admin makes and mends the streams and consumers. Only the dispatcher's leader has
// one. The zero settings are usable.
type Admin struct {
	Conn     *Conn
	Replicas int // of every stream; default 1
	// AckWait is how long a message in hand may go unanswered; default 30 s. It is
	// longer than a server takes to restart, and far longer than a claim.
	AckWait time.Duration
	// JobsAge is when an unclaimed message is forgotten; default 1 h. The dispatcher
	// publishes again long before.
	JobsAge time.Duration
	// MaxWaiting is how many pulls a lane holds: one per worker with a free slot;
	// default 4096.
	MaxWaiting      int
	TranscriptAge   time.Duration // default 7 days
	TranscriptBytes int64         // default 1 GiB
	ResultsBytes    int64         // default 1 GiB; a report that does not fit stays in its spool
	BundleAge       time.Duration // default 7 days; a conversation can be continued for so long
	BundleBytes     int64         // default 1 GiB; one that does not fit cannot be continued
	PatchAge        time.Duration // default 30 days
	PatchBytes      int64         // default 1 GiB; a patch that does not fit stays with its worker
}

// DefaultAckWait is Admin's AckWait when it is zero.
const DefaultAckWait = 30 * time.Second

func (a *Admin) settled() Admin {
	s := *a
	s.Replicas = orElse(s.Replicas, 1)
	s.AckWait = orElse(s.AckWait, DefaultAckWait)
	s.JobsAge = orElse(s.JobsAge, time.Hour)
	s.MaxWaiting = orElse(s.MaxWaiting, 4096)
	s.TranscriptAge = orElse(s.TranscriptAge, 7*24*time.Hour)
	s.TranscriptBytes = orElse(s.TranscriptBytes, 1<<30)
	s.ResultsBytes = orElse(s.ResultsBytes, 1<<30)
	s.BundleAge = orElse(s.BundleAge, 7*24*time.Hour)
	s.BundleBytes = orElse(s.BundleBytes, 1<<30)
	s.PatchAge = orElse(s.PatchAge, 30*24*time.Hour)
	s.PatchBytes = orElse(s.PatchBytes, 1<<30)
	return s
}

func orElse[T int | int64 | time.Duration](v, standard T) T {
	if v <= 0 {
		return standard
	}
	return v
}

// Ensure makes what is missing for the lanes, and the streams for transcripts, results
// and objects, and changes what differs. It tells by placement when its stream was
// created, which changes when a stream was lost and made again, and which placements'
// streams this call had to make: nothing that was published there before is left. An
// error may be about some of the lanes; the others are set up.
func (a *Admin) Ensure(ctx context.Context, lanes []job.Lane) (created map[string]time.Time, fresh []string, err error) {
	s := a.settled()
	const doing = "set up the streams"
	if err := s.Conn.up(doing); err != nil {
		return nil, nil, err
	}
	for _, own := range []jetstream.StreamConfig{
		s.transcripts(),
		s.objects(bundlesBucket, "conversations to be continued", s.BundleAge, s.BundleBytes),
		s.objects(patchesBucket, "what turns changed", s.PatchAge, s.PatchBytes),
	} {
		if _, _, err := s.stream(ctx, own); err != nil {
			return nil, nil, kind(ctx, doing, err)
		}
	}
	results, _, err := s.stream(ctx, s.results())
	if err == nil {
		err = s.consumer(ctx, results, s.settling())
	}
	if err != nil {
		return nil, nil, kind(ctx, doing, err)
	}
	created = make(map[string]time.Time)
	streams := make(map[string]jetstream.Stream)
	var failed []error // a lane that cannot be set up holds up no other
	for _, l := range lanes {
		stream := streams[l.Placement]
		if stream == nil {
			var missing bool
			if stream, missing, err = s.stream(ctx, s.jobs(l.Placement)); err != nil {
				failed = append(failed, kind(ctx, "set up lane "+l.String(), err))
				continue
			}
			streams[l.Placement] = stream
			created[l.Placement] = stream.CachedInfo().Created
			if missing {
				fresh = append(fresh, l.Placement)
			}
		}
		if err := s.consumer(ctx, stream, s.lane(l)); err != nil {
			failed = append(failed, kind(ctx, "set up lane "+l.String(), err))
		}
	}
	return created, fresh, errors.Join(failed...)
}

// Rebuild deletes a lane's consumer and makes it again: the cure for one that stopped
// delivering. Messages in hand come again and are refused by their claims.
func (a *Admin) Rebuild(ctx context.Context, l job.Lane) error {
	s := a.settled()
	doing := "rebuild lane " + l.String()
	if err := s.Conn.up(doing); err != nil {
		return err
	}
	call, cancel := s.Conn.call(ctx)
	defer cancel()
	err := s.Conn.js.DeleteConsumer(call, jobsStream(l.Placement), laneConsumer(l))
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return kind(ctx, doing, err)
	}
	_, err = s.Conn.js.CreateConsumer(call, jobsStream(l.Placement), s.lane(l))
	return kind(ctx, doing, err)
}

func (a *Admin) jobs(placement string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:                 jobsStream(placement),
		Description:          "jobs on offer; the truth is in Postgres",
		Subjects:             []string{jobsRoot + placement + ".*.*.*"},
		Retention:            jetstream.WorkQueuePolicy,
		Storage:              jetstream.FileStorage,
		Discard:              jetstream.DiscardNew,
		DiscardNewPerSubject: true,
		MaxMsgsPerSubject:    1,
		MaxMsgs:              -1,
		MaxBytes:             -1,
		MaxMsgSize:           maxBody,
		MaxAge:               a.JobsAge,
		Replicas:             a.Replicas,
	}
}

func (a *Admin) results() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:                 resultsStream,
		Description:          "reports that could not reach Postgres",
		Subjects:             []string{resultsRoot + "*.*"},
		Retention:            jetstream.WorkQueuePolicy,
		Storage:              jetstream.FileStorage,
		Discard:              jetstream.DiscardNew,
		DiscardNewPerSubject: true,
		MaxMsgsPerSubject:    1,
		MaxMsgs:              -1,
		MaxBytes:             a.ResultsBytes,
		MaxMsgSize:           -1,
		Compression:          jetstream.S2Compression,
		Replicas:             a.Replicas,
	}
}

func (a *Admin) transcripts() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              transcriptsStream,
		Description:       "transcripts as they are written",
		Subjects:          []string{transcriptRoot + "*.*"},
		Retention:         jetstream.LimitsPolicy,
		Storage:           jetstream.FileStorage,
		Discard:           jetstream.DiscardOld,
		MaxMsgsPerSubject: -1,
		MaxMsgs:           -1,
		MaxBytes:          a.TranscriptBytes,
		MaxMsgSize:        2 * chunkBytes,
		MaxAge:            a.TranscriptAge,
		Compression:       jetstream.S2Compression,
		AllowDirect:       true, // readers need no consumer
		Replicas:          a.Replicas,
	}
}

func (a *Admin) lane(l job.Lane) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:       laneConsumer(l),
		Description:   "lane " + l.String(),
		FilterSubject: laneSubjects(l),
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       a.AckWait,
		MaxDeliver:    -1, // a message out of deliveries would be hidden, not gone
		MaxWaiting:    a.MaxWaiting,
		MaxAckPending: -1, // the dispatcher's window is the limit
	}
}

func (a *Admin) settling() jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:       resultsConsumer,
		Description:   "reports on their way into Postgres",
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       a.AckWait,
		MaxDeliver:    -1,
		MaxAckPending: -1,
	}
}

// stream makes a stream, or changes it where it differs.
func (a *Admin) stream(ctx context.Context, want jetstream.StreamConfig) (stream jetstream.Stream, missing bool, err error) {
	call, cancel := a.Conn.call(ctx)
	defer cancel()
	stream, err = a.Conn.js.Stream(call, want.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		missing = true
		stream, err = a.Conn.js.CreateStream(call, want)
	case err == nil && !sameStream(stream.CachedInfo().Config, want):
		stream, err = a.Conn.js.UpdateStream(call, want)
	}
	if err != nil {
		return nil, false, fmt.Errorf("stream %s: %w", want.Name, err)
	}
	return stream, missing, nil
}

// sameStream compares what is ours; the server adds the rest.
func sameStream(got, want jetstream.StreamConfig) bool {
	return slices.Equal(got.Subjects, want.Subjects) &&
		got.Retention == want.Retention && got.Discard == want.Discard &&
		got.DiscardNewPerSubject == want.DiscardNewPerSubject &&
		got.MaxMsgsPerSubject == want.MaxMsgsPerSubject && got.MaxBytes == want.MaxBytes &&
		got.MaxMsgSize == want.MaxMsgSize && got.MaxAge == want.MaxAge &&
		got.Compression == want.Compression && got.AllowDirect == want.AllowDirect &&
		got.Replicas == want.Replicas
}

// consumer makes a consumer, or changes it where it differs. A filter is never
// changed in place: the server would let two consumers overlap then.
func (a *Admin) consumer(ctx context.Context, stream jetstream.Stream, want jetstream.ConsumerConfig) error {
	call, cancel := a.Conn.call(ctx)
	defer cancel()
	consumer, err := stream.Consumer(call, want.Durable)
	if err == nil {
		got := consumer.CachedInfo().Config
		switch {
		case got.FilterSubject != want.FilterSubject || got.AckPolicy != want.AckPolicy:
			if err = stream.DeleteConsumer(call, want.Durable); err == nil {
				_, err = stream.CreateConsumer(call, want)
			}
		case got.AckWait != want.AckWait || got.MaxDeliver != want.MaxDeliver ||
			got.MaxAckPending != want.MaxAckPending || want.MaxWaiting != 0 && got.MaxWaiting != want.MaxWaiting:
			_, err = stream.UpdateConsumer(call, want)
		}
	} else if errors.Is(err, jetstream.ErrConsumerNotFound) {
		_, err = stream.CreateConsumer(call, want)
	}
	if err != nil {
		return fmt.Errorf("consumer %s: %w", want.Durable, err)
	}
	return nil
}
