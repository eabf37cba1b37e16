package queue_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"turnpike/internal/job"
	"turnpike/internal/queue"
	"turnpike/internal/testenv"
)

// Both stores are used as the roles use them, with no more than their permissions.
func TestObjects(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	var users []*server.User
	for _, r := range queue.Roles() {
		p := queue.PermissionsOf(r)
		users = append(users, &server.User{Username: string(r), Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Allow: p.Publish}, Subscribe: &server.SubjectPermission{Allow: p.Subscribe},
		}})
	}
	b := testenv.NATS(t, users...)
	dispatcher := connect(t, b.As(string(queue.Dispatcher)), queue.Dispatcher)
	worker := connect(t, b.As(string(queue.Worker)), queue.Worker)
	talk := job.Conversation{Tenant: "acme", Agent: "claude", ID: "5b9e"}
	of := func(c job.Conversation, id job.ID) job.Conversation {
		c.Job = id
		return c
	}

	t.Run("are missing until the dispatcher made them", func(t *testing.T) {
		if err := worker.GetConversation(ctx, talk, &bytes.Buffer{}); !errors.Is(err, job.ErrLaneMissing) {
			t.Errorf("got %v", err)
		}
	})
	ensure(ctx, t, &queue.Admin{Conn: dispatcher})
	ensure(ctx, t, &queue.Admin{Conn: dispatcher}) // what is there stays as it is

	large := make([]byte, 1<<20)
	if _, err := rand.Read(large); err != nil {
		t.Fatal(err)
	}
	get := func(t *testing.T, of job.Conversation) []byte {
		t.Helper()
		var got bytes.Buffer
		if err := worker.GetConversation(ctx, of, &got); err != nil {
			t.Fatal(err)
		}
		return got.Bytes()
	}
	t.Run("keep a conversation for its own tenant", func(t *testing.T) {
		if err := worker.PutConversation(ctx, of(talk, anID), false, bytes.NewReader(large)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(get(t, talk), large) {
			t.Error("it comes back changed")
		}
		for _, other := range []job.Conversation{
			{Tenant: "other", Agent: talk.Agent, ID: talk.ID},
			{Tenant: talk.Tenant, Agent: "pi", ID: talk.ID},
			{Tenant: talk.Tenant + "/" + talk.Agent, ID: talk.ID},
		} {
			if err := worker.GetConversation(ctx, other, &bytes.Buffer{}); !errors.Is(err, job.ErrNotKept) {
				t.Errorf("%+v: got %v", other, err)
			}
		}
	})
	t.Run("replace a conversation only when it goes on", func(t *testing.T) {
		if err := worker.PutConversation(ctx, of(talk, anID), false, strings.NewReader("another's")); !errors.Is(err, job.ErrConflict) {
			t.Errorf("got %v", err)
		}
		if err := worker.PutConversation(ctx, of(talk, anID), true, strings.NewReader("longer")); err != nil {
			t.Fatal(err)
		}
		if got := get(t, talk); string(got) != "longer" {
			t.Errorf("got %d bytes", len(got))
		}
	})
	t.Run("keep it as each job left it", func(t *testing.T) {
		for _, fork := range []job.ID{"left", "right"} {
			if err := worker.PutConversation(ctx, of(talk, fork), true, strings.NewReader(string(fork))); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct {
			of   job.ID
			want string
		}{{anID, "longer"}, {"left", "left"}, {"right", "right"}, {"", "right"}} {
			if got := get(t, of(talk, c.of)); string(got) != c.want {
				t.Errorf("of job %q: %.20q, want %q", c.of, got, c.want)
			}
		}
		if err := worker.GetConversation(ctx, of(talk, "none"), &bytes.Buffer{}); !errors.Is(err, job.ErrNotKept) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("go on with what the release before kept", func(t *testing.T) {
		old := job.Conversation{Tenant: "acme", Agent: "claude", ID: "old"}
		if err := worker.PutConversationBefore(ctx, old, strings.NewReader("old")); err != nil {
			t.Fatal(err)
		}
		if got := get(t, of(old, anID)); string(got) != "old" {
			t.Errorf("got %q", got)
		}
		if err := worker.PutConversation(ctx, of(old, "new"), true, strings.NewReader("longer")); err != nil {
			t.Fatal(err)
		}
		for _, id := range []job.ID{"", "new"} {
			if got := get(t, of(old, id)); string(got) != "longer" {
				t.Errorf("of job %q: %q", id, got)
			}
		}
	})
	t.Run("hand a patch to the dispatcher", func(t *testing.T) {
		for range 2 { // a report that is repeated repeats its patch
			if err := worker.PutPatch(ctx, anID, 2, bytes.NewReader(large)); err != nil {
				t.Fatal(err)
			}
		}
		var got bytes.Buffer
		if err := dispatcher.GetPatch(ctx, anID, 2, &got); err != nil || !bytes.Equal(got.Bytes(), large) {
			t.Errorf("%d bytes, %v", got.Len(), err)
		}
		if err := dispatcher.GetPatch(ctx, anID, 1, &got); !errors.Is(err, job.ErrNotKept) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("are full at their bound", func(t *testing.T) {
		ensure(ctx, t, &queue.Admin{Conn: dispatcher, BundleBytes: 2 << 20})
		full := job.Conversation{Tenant: "acme", Agent: "claude", ID: "full"}
		if err := worker.PutConversation(ctx, of(full, anID), false, bytes.NewReader(make([]byte, 4<<20))); err == nil {
			t.Error("takes more than it may hold")
		}
		if got := get(t, talk); string(got) != "right" {
			t.Errorf("what was there is gone: %q", got)
		}
	})
}
