package dispatcher

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Store is what the loops need of Postgres.
type Store interface {
	Leadership
	Candidates
	Dispatched
	Lapsed
	Settler
	Watched
	Scheduled
}

// WakeListener hears wake-ups from other processes.
type WakeListener interface {
	// ListenWakes calls wake for each until ctx ends, and whenever some may have been
	// missed.
	ListenWakes(ctx context.Context, wake func()) error
}

// Dispatcher is all loops of one process. Its zero settings are usable.
type Dispatcher struct {
	Store Store
	// The broker; all five are nil where there is none.
	Publisher Publisher
	Streams   Streams
	Reports   ReportStream
	Wakes     WakeListener
	Pusher    CancelPusher

	Sweep func(ctx context.Context, epoch int64) error // one pass of retention

	Holder     string        // names this process; required
	Bell       Bell          // rung by Intake; required
	Offers     *Offers       // Intake's; nil: every job goes by selection
	LeaderTTL  time.Duration // default 5 s
	Lease      time.Duration // the store's; default 60 s
	AckWait    time.Duration // the stream's; default 30 s
	Poll       time.Duration // default 250 ms
	Floor      int           // default 4
	SweepEvery time.Duration // default 10 min

	Health  *Health
	Metrics *Metrics
	Log     *slog.Logger
}

// Run runs every loop until ctx ends, and returns when all have. An outage ends none.
func (d *Dispatcher) Run(ctx context.Context) {
	var all sync.WaitGroup
	if d.Wakes != nil {
		all.Go(func() { d.listen(ctx) })
	}
	if d.Reports != nil {
		all.Go(func() {
			r := &Results{Stream: d.Reports, Attempts: d.Store, Bell: d.Bell, Health: d.Health, Metrics: d.Metrics, Log: d.Log}
			r.Run(ctx)
		})
	}
	all.Go(func() {
		l := &Leader{Row: d.Store, Holder: d.Holder, TTL: d.LeaderTTL, Health: d.Health}
		l.Run(ctx, d.lead)
	})
	all.Wait()
}

// lead runs what only the leader does.
func (d *Dispatcher) lead(ctx context.Context, epoch int64) {
	d.Log.Info("leading", "epoch", epoch)
	d.Metrics.leader(true)
	relay := &Relay{Jobs: d.Store, Publisher: d.Publisher, Streams: d.Streams, AckWait: d.AckWait, Health: d.Health, Metrics: d.Metrics, Log: d.Log}
	selection := &Selection{Jobs: d.Store, Relay: relay, Bell: d.Bell, Poll: d.Poll, Floor: d.Floor, Offers: d.Offers, Health: d.Health, Metrics: d.Metrics, Log: d.Log}
	reaper := &Reaper{Attempts: d.Store, Lease: d.Lease, Bell: d.Bell, Health: d.Health, Metrics: d.Metrics, Log: d.Log}
	janitor := &Janitor{Sweep: d.Sweep, Every: d.SweepEvery, Health: d.Health}
	watch := &Watch{Jobs: d.Store, Bell: d.Bell, Health: d.Health, Metrics: d.Metrics, Log: d.Log}
	schedules := &Schedules{Jobs: d.Store, Pusher: d.Pusher, Bell: d.Bell, Health: d.Health, Metrics: d.Metrics, Log: d.Log}
	var all sync.WaitGroup
	for _, run := range []func(context.Context, int64){relay.Run, selection.Run, reaper.Run, janitor.Run, watch.Run, schedules.Run} {
		all.Go(func() { run(ctx, epoch) })
	}
	if d.Offers != nil {
		all.Go(func() { d.Offers.run(ctx, relay, d.Log) })
	}
	all.Wait()
	d.Metrics.leader(false)
	d.Health.forget("relay", "selection", "reaper", "janitor", "watch", "schedules")
	d.Log.Info("leading no more", "epoch", epoch, "cause", context.Cause(ctx))
}

// listen rings the bell for wake-ups from elsewhere.
func (d *Dispatcher) listen(ctx context.Context) {
	loop(ctx, nil, func(ctx context.Context) (time.Duration, error) {
		err := d.Wakes.ListenWakes(ctx, d.Bell.Ring)
		d.Health.note("wakes", err)
		return time.Second, err
	})
}
