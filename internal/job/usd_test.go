package job_test

import (
	"testing"

	"pgregory.net/rapid"

	"turnpike/internal/job"
)

func TestUSD(t *testing.T) {
	t.Run("survives its text", rapid.MakeCheck(func(t *rapid.T) {
		u := job.USD(rapid.Int64Range(-1e12, 1e12).Draw(t, "micros"))
		got, err := job.ParseUSD(u.String())
		if err != nil || got != u {
			t.Fatalf("%d -> %s -> %d, %v", u, u, got, err)
		}
		if f := job.USDFromFloat(u.Float()); f != u {
			t.Fatalf("%d -> %v -> %d", u, u.Float(), f)
		}
	}))
	for in, want := range map[string]string{"2.5": "2.50", "0": "0.00", "0.000001": "0.000001", "12.345600": "12.3456"} {
		u, err := job.ParseUSD(in)
		if err != nil || u.String() != want {
			t.Errorf("%q reads as %v, %v; want %s", in, u, err, want)
		}
	}
	for _, in := range []string{"", ".", "1.", ".5", "1e3", "+1", "1,5", "0x1", "1.0000001", "99999999", "1000000.1", "NaN", "--1", "$1"} {
		if u, err := job.ParseUSD(in); err == nil {
			t.Errorf("%q reads as %v", in, u)
		}
	}
}

func TestIDs(t *testing.T) {
	if _, err := job.ParseID("0190B5A0-7C1E-7D3A-9C53-0D1C8A6F2B11"); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "x", "0190b5a07c1e7d3a9c530d1c8a6f2b11", "../../etc/passwd"} {
		if _, err := job.ParseID(bad); err == nil {
			t.Errorf("%q taken", bad)
		}
	}
	if a, b := job.NewToken(), job.NewToken(); a == b || len(string(a)) != 36 {
		t.Errorf("tokens %q %q", string(a), string(b))
	}
	for _, s := range []string{"none-confined/default", "container/big-2"} {
		if l, err := job.ParseLane(s); err != nil || l.String() != s {
			t.Errorf("%s: %v %v", s, l, err)
		}
	}
	for _, s := range []string{"none", "vm/default", "none/Bad", "none/a/b"} {
		if l, err := job.ParseLane(s); err == nil {
			t.Errorf("%s taken as %v", s, l)
		}
	}
}
