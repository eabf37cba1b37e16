// Package job is the queue's contract: what a producer asks for (Request), where
// a job is in its life (State), the right to run it (Lease) and what became of a
// run (Report). It decodes and validates requests and starts nothing; storing,
// publishing and running are for packages store, queue and worker.
//
// # A job's life
//
//	scheduled -> queued -> dispatched -> running -> succeeded | failed | cancelled
//
// and back: dispatched -> queued (paused, published again), dispatched ->
// cancelled, running -> queued (given back), running -> scheduled (retry or
// wait). Each is one guarded statement in package store; the database refuses
// anything else. Final states are final: running a finished job again is a new
// job.
//
// # Who decides
//
// Postgres decides. A Delivery from the stream is only a hint that a job may be
// claimed; the claim is refused unless the job is dispatched with exactly the
// delivery's number on the delivery's lane. From then on the Lease, by the
// database's clock, is the only right to run the attempt and to write its
// result. The lease's Token proves the holder; its Number only grows and fences
// whatever an earlier holder still does.
package job
