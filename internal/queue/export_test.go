package queue

import (
	"context"
	"io"

	"github.com/nats-io/nats.go/jetstream"

	"turnpike/internal/job"
)

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

// PutConversationBefore keeps a bundle as the release before did.
func (c *Conn) PutConversationBefore(ctx context.Context, of job.Conversation, bundle io.Reader) error {
	return c.transfer(ctx, "keep a conversation", bundlesBucket, func(ctx context.Context, store jetstream.ObjectStore) error {
		_, err := store.Put(ctx, jetstream.ObjectMeta{Name: conversationName(of)}, bundle)
		return err
	})
}

// Kind is kind.
var Kind = kind
