package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"turnpike/internal/job"
)

// ErrTooLarge is a report that the server does not take in one message. Its worker
// keeps it in the spool.
var ErrTooLarge = errors.New("larger than the server takes")

// Codes of the server's API.
const (
	codeAlreadyThere     jetstream.ErrorCode = 10077 // maximum messages per subject exceeded
	codeConsumerNotFound jetstream.ErrorCode = 10014
	codeStreamNotFound   jetstream.ErrorCode = 10059
	codeNoMessage        jetstream.ErrorCode = 10037
	codeNoPeers          jetstream.ErrorCode = 10005 // a cluster that waits for its servers
)

func hasCode(err error, code jetstream.ErrorCode) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == code
}

// alreadyThere says that the subject has its message. A full stream refuses with the
// same code and other words.
func alreadyThere(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == codeAlreadyThere && strings.Contains(api.Description, "per subject")
}

// kind gives err the kind a caller may test for. ctx is the caller's own: when it
// ended, that is the whole story.
func kind(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var api *jetstream.APIError
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("%s: %w", doing, ErrTooLarge)
	case errors.Is(err, jetstream.ErrStreamNotFound),
		errors.Is(err, jetstream.ErrConsumerNotFound),
		errors.Is(err, jetstream.ErrConsumerDoesNotExist),
		errors.Is(err, jetstream.ErrConsumerDeleted),
		errors.Is(err, jetstream.ErrNoStreamResponse),
		hasCode(err, codeStreamNotFound),
		hasCode(err, codeConsumerNotFound):
		return fmt.Errorf("%s: %w: %w", doing, job.ErrLaneMissing, err)
	case errors.As(err, &api) && api.Code < 500 && api.ErrorCode != codeNoPeers:
		return fmt.Errorf("%s: %w", doing, err) // a refusal, which waiting does not cure
	default:
		return fmt.Errorf("%s: %w: %w", doing, job.ErrUnavailable, err)
	}
}
