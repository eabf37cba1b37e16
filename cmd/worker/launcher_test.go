package main

import "testing"

// A launcher that may not be of the same source must not hold a turn: its filter of
// system calls, for one, is compiled into it.
func TestLauncherIsOfTheSameBuild(t *testing.T) {
	for _, c := range []struct {
		launcher, worker string
		want             bool
	}{
		{"v0.2.0 (1a2b3c4d5e6f)", "v0.2.0 (1a2b3c4d5e6f)", true},
		{"4599e1b", "4599e1b", true},
		{"v0.2.0", "v0.2.1", false},
		{"", "v0.2.0", false},
		{"4599e1b-dirty", "4599e1b-dirty", false},
		{"v0.0.0-20261130-4599e1b+dirty", "v0.0.0-20261130-4599e1b+dirty", false},
		{"(devel)", "(devel)", false},
		{"unknown", "unknown", false},
		{"", "", false},
	} {
		if got := sameBuild(c.launcher, c.worker); got != c.want {
			t.Errorf("%q for %q: %t", c.launcher, c.worker, got)
		}
	}
}
