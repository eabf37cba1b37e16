// Package migrations holds the database's schema as the steps that made it, in
// goose's form. It applies nothing: that is package store's. A step is never
// edited once released, and works with the programs of the release before it.
// There are no steps back; a backup is.
package migrations

import "embed"

// Files are the steps, NNNNN_verb_noun.sql.
//
//go:embed *.sql
var Files embed.FS
