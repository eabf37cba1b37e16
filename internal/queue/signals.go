package queue

import (
	"context"

	"github.com/nats-io/nats.go"

	"turnpike/internal/job"
)

// Wake tells the dispatcher that something may be selected. It may be lost; the
// dispatcher polls too.
func (c *Conn) Wake() error {
	return kind(context.Background(), "wake the dispatcher", c.nc.Publish(wakeSubject, nil))
}

// ListenWakes calls wake for every wake-up until ctx ends, and whenever some may
// have been missed. wake must not block.
func (c *Conn) ListenWakes(ctx context.Context, wake func()) error {
	return c.listen(ctx, wakeSubject, func(*nats.Msg) { wake() }, wake)
}

// PushCancel tells the workers that a job's cancel flag was set. It carries nothing
// else and may be lost or forged without harm: who runs the job beats at once, and
// the beat's answer decides.
func (c *Conn) PushCancel(id job.ID) error {
	return kind(context.Background(), "push the cancel of job "+string(id), c.nc.Publish(cancelRoot+string(id), nil))
}

// ListenCancels calls cancelled for every push until ctx ends. After a reconnect,
// when pushes may have been missed, it calls cancelled with no id: any job may have
// been cancelled. cancelled must not block.
func (c *Conn) ListenCancels(ctx context.Context, cancelled func(job.ID)) error {
	return c.listen(ctx, cancelRoot+"*", func(m *nats.Msg) {
		id, err := exactID(m.Subject[len(cancelRoot):])
		if err != nil {
			c.log.Warn("a cancel push that is none", "subject", clip(m.Subject))
			return
		}
		cancelled(id)
	}, func() { cancelled("") })
}
