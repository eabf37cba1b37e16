// Package store keeps jobs in Postgres: every query of the project is here, one
// file per aggregate, each above the one method that runs it. It decides nothing
// about when to do what; loops that do are in packages dispatcher and worker. The
// tables are in package migrations.
//
// # Transitions
//
// Every move of a job is one statement that names the state it leaves, so that
// anything else finds no row. The queue row exists exactly as long as the job is
// not finished; its CHECK constraints refuse rows that no transition makes.
//
//	            -> queued | scheduled   Enqueue, Retry, Fire, turnpike.enqueue
//	            -> dispatched           Enqueue, of an offer about which nothing has to be decided
//	scheduled   -> queued               Promote: its time came
//	queued      -> queued               Select, and Promote on a paused lane: to another profile of its chain
//	queued      -> dispatched           Select
//	dispatched  -> dispatched           Redispatch: nobody claimed it; the next number
//	dispatched  -> queued               Pause, Redispatch of what is paused, Settle of what pauses its account,
//	                                    Crossings of what is under a spent budget
//	dispatched  -> running              Claim
//	running     -> succeeded | failed | cancelled | queued | scheduled
//	                                    Settle by token, Reap after the lease lapsed: turnpike.after decides
//	scheduled, queued, dispatched -> cancelled      Cancel; a running job gets a flag, which beats return;
//	                                                Fire does the same to the last job, under that policy
//	scheduled, queued, dispatched -> failed         Promote: past its deadline, or unready for too long
//	queued      -> failed                           Promote: what it waited for did not succeed
//	queued      -> queued | scheduled               turnpike.resolve: nothing is left that it waits for
//	scheduled, queued (unchecked) -> failed         Checked: the request is refused
//
// An orphan's record is apart from its job: creating, live, reaping or unreachable, until
// it is gone. Abandon makes unreachable what is on a host that nobody sees any more.
//
// Final states are final: the row that could change is gone. The final state is on
// the job's last attempt, or in "finished" when no attempt ran at the end.
//
// # Locks
//
// Where a transition relies on what others committed, it takes its row locks in a
// statement of its own and does its work in the next, in one transaction and one
// round trip: the second statement sees everything that was committed before the
// locks were had. Settle and Cancel lock their rows so; whatever selects, parks or
// reaps locks the leader's row so. Batches lock rows in the order of their ids.
//
// # Keys
//
// A concurrency key is taken while a live row (dispatched or running) has it; a
// unique index refuses a second. Others are parked outside the ready index. The
// invariant: whenever a job is parked behind a key, a row with that key is live or
// ready. Every transition that takes such a row away lets out the first one parked
// behind it. Selection locks the live row before it parks, so that who closes it
// sees the parked one.
//
// # Slow starts
//
// An account whose limit is over may have so many live jobs as the time since allows
// (turnpike.v_pauses). While one lasts only selection, under the leader's lock, makes jobs
// live, so what it counts stays so until it commits; no counter is kept. What exceeds it is
// parked as for a pause, each job until as many may be live, so that a backlog is not
// looked at in every step.
//
// # Waits
//
// A job that comes after others is parked while turnpike.waits has a row of it, or a
// reason why it cannot run. The invariant: such a row's awaited job is in the queue.
// Enqueueing holds the awaited rows FOR KEY SHARE, against their deletion; the trigger
// of each deletion holds the rows of those who wait, in the order of their ids, before it
// takes a wait away. A job is enqueued after what it waits for, and ids sort by time: who
// locks on from awaited to waiting stays in that order.
//
// # Budgets
//
// A job's row has the budgets it was under when it was selected, and its attempt those
// it counts against. Settling adds to their buckets in its own transaction; what a
// budget has left is a sum over at most 1441 of them, less what the beats of running
// attempts told. Selection parks, a claim is refused, and a beat is answered with what
// is spent, each by that sum at its time. Two claims at once may be given the same
// money: the beats of both find out. Jobs under no budget have NULL, and no statement
// asks anything for them.
//
// # Schedules
//
// Fire acts on a time of a schedule in one transaction: it holds the lead, then the
// schedule's row, which must be as it was when it was decided what to do; it writes the
// jobs and the next time. So a time is acted on once, and the idempotency key of each
// job, made of the schedule and the time, holds even should a row forget.
//
// # Failure
//
// Every call has a deadline. job.ErrUnavailable means that nothing is known about a
// write: Claim, Beat, Settle, Published, Cancel and the enqueues under an idempotency
// key may simply be repeated. Nothing here listens or keeps a session lock: a transaction
// pooler may stand between. One that keeps no prepared statements is found out by the
// first call that fails for it, and none are used from then on.
//
// # Plans
//
// What every job passes through is prepared and planned once per connection, by indexes
// alone (planned). A table that is empty then may have a million rows later, and no
// statement of these reads more than it is asked for.
//
// # Commits
//
// Every commit waits for the disk but that of a selection and of published_at: see
// selecting and unhurried for what a crash of the server then does.
package store
