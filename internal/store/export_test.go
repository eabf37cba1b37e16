package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// The statements behind Select, Claim, Beat, Look and Offered, for tests that ask the server how it
// carries them out.
const (
	ChooseSQL  = choose
	ClaimSQL   = claim
	BeatSQL    = beat
	LookSQL    = look
	OfferedSQL = offered
)

// PlannedSQL goes before each of them but the last.
const PlannedSQL = `SELECT ` + byIndex

// Within is within.
func Within(ctx context.Context, db *DB, do func(context.Context, pgx.Tx) error) error {
	return db.within(ctx, "try", do)
}

// Forget has every connection forget its prepared statements, on the server's side
// alone, as a transaction pooler's next connection would have.
func Forget(ctx context.Context, db *DB) error { return db.exec(ctx, "forget", "DEALLOCATE ALL", nil) }
