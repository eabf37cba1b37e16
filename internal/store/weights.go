package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"turnpike/internal/job"
)

const setWeight = `
	INSERT INTO turnpike.weights (tenant, weight, by) VALUES (@tenant, @weight, @by)
	ON CONFLICT (tenant) DO UPDATE SET weight = excluded.weight, by = excluded.by, at = now()`

const dropWeight = `DELETE FROM turnpike.weights WHERE tenant = @tenant`

// SetWeight gives a tenant so many live jobs of a lane for each one that a tenant without
// a weight is given. One is no weight.
func (db *DB) SetWeight(ctx context.Context, tenant string, weight int, by string) error {
	w := job.Weight{Tenant: tenant, Weight: weight}
	if err := w.Check(); err != nil {
		return fmt.Errorf("weigh tenant %s: %w", tenant, err)
	}
	set := stmt{setWeight, args{"tenant": tenant, "weight": weight, "by": by}}
	if weight == 1 {
		set = stmt{dropWeight, args{"tenant": tenant}}
	}
	_, err := together(ctx, db, "weigh tenant "+tenant, pgx.RowTo[int], set,
		stmt{audited, args{"who": by, "what": "weight", "subject": "tenant " + tenant, "note": fmt.Sprint(weight)}})
	return err
}

const weights = `SELECT tenant, weight, by, at FROM turnpike.weights ORDER BY tenant`

// Weights lists the tenants that have one.
func (db *DB) Weights(ctx context.Context) ([]job.Weight, error) {
	return many(ctx, db, "list weights", stmt{weights, nil}, pgx.RowToStructByPos[job.Weight])
}
