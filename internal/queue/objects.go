package queue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"turnpike/internal/job"
)

// The object stores: what turns leave that other programs need. Like every stream they
// may be wiped; a conversation that is gone cannot be continued, and a patch that is
// gone is in the session directory for as long as that is kept.
const (
	bundlesBucket = "TURNPIKE_BUNDLES"
	patchesBucket = "TURNPIKE_PATCHES"
)

// transferTime bounds one object on its way.
const transferTime = time.Minute

// objectStream is the stream behind a bucket.
func objectStream(bucket string) string { return "OBJ_" + bucket }

// objects is the form every client gives a bucket's stream.
func (a *Admin) objects(bucket, about string, age time.Duration, bytes int64) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              objectStream(bucket),
		Description:       about,
		Subjects:          []string{"$O." + bucket + ".C.>", "$O." + bucket + ".M.>"},
		Retention:         jetstream.LimitsPolicy,
		Storage:           jetstream.FileStorage,
		Discard:           jetstream.DiscardNew, // half an object is of no use
		MaxMsgsPerSubject: -1,
		MaxMsgs:           -1,
		MaxBytes:          bytes,
		MaxMsgSize:        -1,
		MaxAge:            age,
		AllowRollup:       true,
		AllowDirect:       true,
		Replicas:          a.Replicas,
	}
}

// PutConversation keeps the bundle of a conversation as a job's own, in place of what an
// earlier attempt of it left, and as the newest of its name. One of that name is
// followed only when the conversation was continued, by which it is known to be the
// same: else the error wraps [job.ErrConflict], so that no turn can pass its
// conversation for another's.
func (c *Conn) PutConversation(ctx context.Context, of job.Conversation, continued bool, bundle io.ReadSeeker) error {
	const doing = "keep a conversation"
	return c.transfer(ctx, doing, bundlesBucket, func(ctx context.Context, store jetstream.ObjectStore) error {
		newest := conversationName(of)
		if !continued {
			_, err := store.GetInfo(ctx, newest)
			if err == nil {
				return fmt.Errorf("another turn has a conversation of this name: %w", job.ErrConflict)
			}
			if !errors.Is(err, jetstream.ErrObjectNotFound) {
				return err
			}
		}
		own, err := store.Put(ctx, jetstream.ObjectMeta{Name: ownName(of)}, bundle)
		if err != nil {
			return err
		}
		if _, err = store.AddLink(ctx, newest, own); !errors.Is(err, jetstream.ErrObjectAlreadyExists) {
			return err
		}
		// Kept by the release before, which had no copies of jobs: the newest stays one.
		if _, err := bundle.Seek(0, io.SeekStart); err != nil {
			return err
		}
		_, err = store.Put(ctx, jetstream.ObjectMeta{Name: newest}, bundle)
		return err
	})
}

// GetConversation writes the bundle of a conversation. The error wraps [job.ErrNotKept]
// when there is none.
func (c *Conn) GetConversation(ctx context.Context, of job.Conversation, to io.Writer) error {
	const doing = "get a conversation"
	if of.Job == "" {
		return c.getObject(ctx, doing, bundlesBucket, conversationName(of), to)
	}
	err := c.getObject(ctx, doing, bundlesBucket, ownName(of), to)
	if !errors.Is(err, job.ErrNotKept) {
		return err
	}
	// Where the release before kept it, nobody has a copy.
	before := false
	if err := c.transfer(ctx, doing, bundlesBucket, func(ctx context.Context, store jetstream.ObjectStore) error {
		info, err := store.GetInfo(ctx, conversationName(of))
		if errors.Is(err, jetstream.ErrObjectNotFound) {
			return nil
		}
		before = err == nil && (info.Opts == nil || info.Opts.Link == nil)
		return err
	}); err != nil || !before {
		return errors.Join(err, job.ErrNotKept)
	}
	return c.getObject(ctx, doing, bundlesBucket, conversationName(of), to)
}

// conversationName has one form for each conversation: its parts hold no slash. The
// object of that name is a link to the newest copy.
func conversationName(of job.Conversation) string {
	name := url.PathEscape(of.Tenant) + "/" + url.PathEscape(of.Agent) + "/" + url.PathEscape(of.ID)
	if of.Restricted {
		name += "/restricted"
	}
	return name
}

func ownName(of job.Conversation) string { return conversationName(of) + "/" + string(of.Job) }

// PutPatch keeps what an attempt changed. It may be repeated.
func (c *Conn) PutPatch(ctx context.Context, id job.ID, attempt int, patch io.Reader) error {
	return c.transfer(ctx, "keep a patch", patchesBucket, func(ctx context.Context, store jetstream.ObjectStore) error {
		_, err := store.Put(ctx, jetstream.ObjectMeta{Name: patchName(id, attempt)}, patch)
		return err
	})
}

// GetPatch writes an attempt's patch. The error wraps [job.ErrNotKept] when there is
// none.
func (c *Conn) GetPatch(ctx context.Context, id job.ID, attempt int, to io.Writer) error {
	return c.getObject(ctx, "get a patch", patchesBucket, patchName(id, attempt), to)
}

func patchName(id job.ID, attempt int) string { return string(id) + "/" + strconv.Itoa(attempt) }

func (c *Conn) getObject(ctx context.Context, doing, bucket, name string, to io.Writer) error {
	return c.transfer(ctx, doing, bucket, func(ctx context.Context, store jetstream.ObjectStore) error {
		object, err := store.Get(ctx, name)
		if errors.Is(err, jetstream.ErrObjectNotFound) {
			return job.ErrNotKept
		}
		if err != nil {
			return err
		}
		// Its end has been compared with the digest.
		_, err = io.Copy(to, object)
		return errors.Join(err, object.Close())
	})
}

func (c *Conn) transfer(ctx context.Context, doing, bucket string, f func(context.Context, jetstream.ObjectStore) error) error {
	if err := c.up(doing); err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, transferTime)
	defer cancel()
	store, err := c.js.ObjectStore(call, bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return fmt.Errorf("%s: %w: bucket %s", doing, job.ErrLaneMissing, bucket)
	}
	if err == nil {
		err = f(call, store)
	}
	if errors.Is(err, job.ErrNotKept) || errors.Is(err, job.ErrConflict) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return kind(ctx, doing, err)
}
