// Package worker serves a pool: it pulls deliveries by free slot, claims jobs, runs
// each as a turn under the pool's ceiling, keeps its lease and settles its report.
// It knows the contracts only. How a turn is confined and driven, how Postgres and
// JetStream are spoken to, and where a workspace comes from are behind small
// interfaces, which cmd fills.
//
// # Who decides
//
// Postgres decides who may run a job, by the lease; this package decides whether a
// request is inside the ceiling and how an attempt ended; what follows from an
// ending is decided in the database. A message of the stream decides nothing: it is
// acked once the claim's commit is known, whatever the answer was.
//
// # An attempt
//
//	claim     one call for all messages of a fetch, each with a token of ours; repeated
//	          with the same tokens while there is no answer
//	check     decode strictly, pick the profile, hold it to the ceiling
//	mark      a note in journal/: from here on a successor finds the attempt; then a file
//	          in marks/, fsynced before anything is started
//	prepare   session directory, workspace, agent.Request
//	start     the agent is executed only after Postgres knows that it is about to be:
//	          what Postgres takes for unstarted really is
//	run       the keeper beats for all turns at once; Live identities go to the mark
//	          first and with the next beat to Postgres
//	end       what is left running is ended, the workspace is released
//	spool     the report is fsynced in journal/, with those that end at the same time;
//	          then the mark goes
//	settle    one idempotent statement by token; what is not settled at once gets a file
//	          in spool/, which goes when it is
//
// The lease is kept until the report is settled, not only until the turn ends: an
// attempt that is over must not be taken for lost.
//
// # What each failure does
//
//	Postgres away while claiming    the messages go back after a delay; a claim that was
//	                                granted unseen is found again by its token, or lapses
//	Postgres away while running     turns run on until their lease is in doubt, then stand
//	                                still until Postgres answers; still ours: they go on
//	Postgres away at the end        the report waits in the spool and, after a while, goes
//	                                to the results stream too; an outage ends no turn
//	the lease is somebody else's    the turn is killed as it stands (fenced) and its report
//	                                settles late
//	a job comes here again while    the earlier attempt has lost its lease and is stopped at
//	an earlier attempt is here      once; the new one starts when nothing of it runs
//	NATS away                       dispatched jobs are looked for in Postgres until it is
//	                                back; what runs is not touched; cancels come with beats
//	the disk is full                lanes take nothing new and say so; a report that cannot
//	                                be spooled is settled from memory
//	the worker is killed            marks and spool tell its successor in the same state
//	                                directory what to end, to record and to report; without
//	                                a successor the reaper closes the attempts
//	the worker is told to stop      fetching ends everywhere at once, turns may go on for a
//	                                while, then they are stopped as drained; one deadline
//	attempts cannot be made ready   three in a row for reasons of this worker's own close
//	                                the lane until it starts again
//	a report nobody knows           is set aside in rejected/ and told; it blocks no other
//	a report that cannot be stored  what its job needs of it is settled, and the whole is set
//	                                aside; its lease is not kept for ever
//
// # What each side may assume
//
// The runner may assume that the request is inside the ceiling and that Recorder
// and Observer.Starting answer before anything runs. It must end the whole tree when
// its context ends, and only then name the turn cancelled; a turn that ended by
// itself before keeps its result. The database may assume that a report comes once
// or many times and always says the same.
package worker
