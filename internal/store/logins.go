package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// EnsureLogin makes a login with a password that is a member of a role and has
// nothing of its own but the role's settings, which Postgres does not hand on by
// membership; one that is there gets the password. The DSN's login must be
// allowed to create roles. CREATE ROLE takes no parameters, so the server itself
// quotes them.
func EnsureLogin(ctx context.Context, dsn, login, password, role string) error {
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fail(ctx, "create login "+login, err)
	}
	defer c.Close(context.WithoutCancel(ctx))
	const statement = `
		SELECT format(CASE WHEN EXISTS (SELECT FROM pg_roles WHERE rolname = $1)
			THEN 'ALTER ROLE %1$I LOGIN PASSWORD %2$L; GRANT %3$I TO %1$I'
			ELSE 'CREATE ROLE %1$I LOGIN PASSWORD %2$L IN ROLE %3$I' END, $1::text, $2::text, $3::text)
			|| coalesce((SELECT string_agg(format('; ALTER ROLE %I SET %I = %L', $1, split_part(c, '=', 1), split_part(c, '=', 2)), '')
				FROM pg_roles, unnest(rolconfig) c WHERE rolname = $3), '')`
	var sql string
	if err := c.QueryRow(ctx, statement, login, password, role).Scan(&sql); err != nil {
		return fail(ctx, "create login "+login, err)
	}
	if _, err := c.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
		return fail(ctx, fmt.Sprintf("create login %s of role %s", login, role), err)
	}
	return nil
}
