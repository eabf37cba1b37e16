// Package dispatcher is the loops between a producer and the workers: it accepts
// jobs, selects what may run now, publishes it, takes back what was lost and sweeps
// what is old. It knows the contracts only; Postgres and the stream are behind the
// small interfaces each part declares, and cmd introduces them.
//
// # Who leads
//
// Any number of dispatchers accept jobs and drain results. One of them leads, by a row
// in Postgres with an epoch: only it selects, publishes, reaps, fires and sweeps. Each of
// those statements carries the epoch and is refused once another leads, so a leader
// that lost contact may go on trying without harm; it stops when it is told so.
//
// # One job's way through
//
//	Intake     decodes and enqueues; answers after commit; rings the bell, which may be lost
//	Selection  on the bell and every 250 ms, or 500 when there was nothing to do: checks,
//	           promotes, fills each lane's window
//	Offers     takes a job past selection where nothing has to be decided about it:
//	           Intake's commit dispatches it
//	Relay      publishes after the selection's commit is known, notes it lazily
//	Results    settles reports that workers could not bring to Postgres
//	Reaper     closes attempts whose lease lapsed, after a full lease of unbroken ticks
//	Schedules  enqueues what is due by the schedules, each time once
//	Janitor    sweeps what retention lets go
//	Watch      tells how budgets stand, once for each level they cross, and late leases
//
// # What may fail
//
//   - A crash between selecting and publishing leaves a job dispatched with no
//     published_at: the next leader publishes the same number first of all, and "already
//     there" counts as published.
//   - A publication that is not claimed within two AckWaits though workers had room, or
//     within ten in any case, or whose stream was made anew, is dispatched again with the
//     next number. If workers had room, the lane's consumer is taken for deaf and rebuilt.
//   - While the broker is away selection goes on: workers find in Postgres what is
//     dispatched and not published. Without a broker at all they always do; then what is
//     dispatched counts as published, and only what was paused since is dispatched again.
//   - An outage ends no loop. The part says so in Health, backs off, and goes on. After
//     an outage the Reaper waits a full lease before it believes that a worker is gone.
package dispatcher
