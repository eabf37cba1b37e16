// Package queue is the hand-off between the dispatcher and the workers over NATS
// JetStream, and the small signals beside it. It decides nothing: Postgres is the
// truth, and every stream here may be wiped at any moment without losing a job.
//
// # What lives where
//
//	TURNPIKE_JOBS_<PLACEMENT>   turnpike.jobs.<placement>.<pool>.<job>.<dispatch>
//	TURNPIKE_RESULTS            turnpike.results.<job>.<attempt>
//	TURNPIKE_TRANSCRIPTS        turnpike.transcripts.<job>.<attempt>
//	TURNPIKE_BUNDLES            conversations to be continued (an object store)
//	TURNPIKE_PATCHES            what turns changed (an object store)
//	core NATS, may be lost      turnpike.wake, turnpike.cancel.<job>
//
// A jobs stream is a work queue with at most one message on a subject. The subject
// carries the number of the dispatch, so "already there" means that exactly this
// publication was stored before, and counts as published. No Msg-Id is used: its
// window would swallow a job that comes back. There is one durable consumer per
// lane, by a fixed name; none per worker, so that none leaks.
//
// # Who may assume what
//
//   - The dispatcher alone (Admin) makes and mends streams and consumers. A worker
//     that finds its lane missing gets [job.ErrLaneMissing] and waits.
//   - A worker asks for as many messages as it has free slots and never gets more.
//     A message in hand is a hint: the claim in Postgres decides, and an ack proves
//     nothing. An ack that is lost brings the message again after AckWait, to be
//     refused by the claim.
//   - There is no limit on deliveries: JetStream hides a message that used them up.
//     Attempts are counted in Postgres.
//   - While the server is away every call fails with [job.ErrUnavailable] within its
//     deadline; nothing is buffered to be sent later. The connection never gives up.
//   - A pull is a request of its own, so no subscription can go deaf after a
//     reconnect; the signals' subscriptions are checked and made again.
package queue
