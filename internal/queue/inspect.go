package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"turnpike/internal/job"
)

// Inspect compares the streams and consumers with what Ensure would make of them for
// the lanes, and changes nothing. Each difference is a line for people. Unsettled is
// how many reports wait in the results stream.
func (a *Admin) Inspect(ctx context.Context, lanes []job.Lane) (differences []string, unsettled int, err error) {
	s := a.settled()
	const doing = "look at the streams"
	if err := s.Conn.up(doing); err != nil {
		return nil, 0, err
	}
	look := func(want jetstream.StreamConfig, consumers ...jetstream.ConsumerConfig) error {
		call, cancel := s.Conn.call(ctx)
		defer cancel()
		stream, err := s.Conn.js.Stream(call, want.Name)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			differences = append(differences, fmt.Sprintf("stream %s is missing", want.Name))
			return nil
		case err != nil:
			return fmt.Errorf("stream %s: %w", want.Name, err)
		case !sameStream(stream.CachedInfo().Config, want):
			differences = append(differences, fmt.Sprintf("stream %s is not as configured", want.Name))
		}
		if want.Name == resultsStream {
			unsettled = int(stream.CachedInfo().State.Msgs)
		}
		for _, c := range consumers {
			consumer, err := stream.Consumer(call, c.Durable)
			switch {
			case errors.Is(err, jetstream.ErrConsumerNotFound):
				differences = append(differences, fmt.Sprintf("consumer %s of stream %s is missing", c.Durable, want.Name))
			case err != nil:
				return fmt.Errorf("consumer %s of stream %s: %w", c.Durable, want.Name, err)
			default:
				if got := consumer.CachedInfo().Config; got.FilterSubject != c.FilterSubject || got.AckPolicy != c.AckPolicy || got.AckWait != c.AckWait || got.MaxDeliver != c.MaxDeliver {
					differences = append(differences, fmt.Sprintf("consumer %s of stream %s is not as configured", c.Durable, want.Name))
				}
			}
		}
		return nil
	}
	err = errors.Join(
		look(s.transcripts()),
		look(s.objects(bundlesBucket, "", s.BundleAge, s.BundleBytes)),
		look(s.objects(patchesBucket, "", s.PatchAge, s.PatchBytes)),
		look(s.results(), s.settling()))
	byPlacement := map[string][]jetstream.ConsumerConfig{}
	var placements []string
	for _, l := range lanes {
		if byPlacement[l.Placement] == nil {
			placements = append(placements, l.Placement)
		}
		byPlacement[l.Placement] = append(byPlacement[l.Placement], s.lane(l))
	}
	for _, p := range placements {
		err = errors.Join(err, look(s.jobs(p), byPlacement[p]...))
	}
	return differences, unsettled, kind(ctx, doing, err)
}
