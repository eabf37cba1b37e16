package store_test

import (
	"errors"
	"strings"
)

type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

func wantIs(t fataler, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, want %v", err, want)
	}
}

func containsSecret(s string) bool { return strings.Contains(s, "hunter2") }
