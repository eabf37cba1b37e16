package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
)

const lead = `
	UPDATE turnpike.leader
	SET holder = @holder, until = now() + @ttl::interval, lease = @lease::interval, slow_start = @slow::interval,
		epoch = CASE WHEN holder = @holder THEN epoch ELSE epoch + 1 END
	WHERE one AND (holder = @holder OR until < now())
	RETURNING epoch`

// Lead takes or renews the leadership for ttl and returns its epoch, which every
// transition of the leader is given. holder names one process. It returns
// job.ErrNotLeader while another holds it.
func (db *DB) Lead(ctx context.Context, holder string, ttl time.Duration) (epoch int64, err error) {
	if holder == "" {
		return 0, fmt.Errorf("lead: no holder named")
	}
	got, err := many(ctx, db, "lead", stmt{lead, args{"holder": holder, "ttl": ttl, "lease": db.lease, "slow": db.slow}}, pgx.RowTo[int64])
	if err != nil {
		return 0, err
	}
	if len(got) == 0 {
		return 0, fmt.Errorf("lead: %w", job.ErrNotLeader)
	}
	return got[0], nil
}

const resign = `
	UPDATE turnpike.leader SET holder = '', until = '-infinity', epoch = epoch + 1
	WHERE one AND epoch = @epoch`

// Resign gives the leadership up at once. It is no error not to have it any more.
func (db *DB) Resign(ctx context.Context, epoch int64) error {
	return db.exec(ctx, "resign", resign, args{"epoch": epoch})
}

const asLeader = `SELECT turnpike.lead(@epoch)`

// holding is the statement that every transition of the leader begins with.
func holding(epoch int64) stmt { return stmt{asLeader, args{"epoch": epoch}} }

const asSelector = `SELECT turnpike.lead(@epoch), set_config('synchronous_commit', 'off', true), ` + byIndex

// selecting is holding, planned, for what dispatches jobs or notes that they were
// published, whose commit does not wait for the disk. A crash of the server may take
// it back after the message was published; then the job is queued with the number
// before, the claim of the message is refused, and the job is dispatched under that
// number again. A claim waits for the disk, and with it goes all that was written
// before: what is running was dispatched.
func selecting(epoch int64) stmt { return stmt{asSelector, args{"epoch": epoch}} }
