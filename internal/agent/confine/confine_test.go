//go:build linux

package confine_test

import (
	"net"
	"path/filepath"
	"testing"

	"turnpike/internal/agent/confine"
)

const workerName = "turnpike-test-worker"

func worker() {}

func TestAttacks(t *testing.T) {
	for mode, h := range modes(t) {
		t.Run(string(mode), func(t *testing.T) {
			r := newRoom(t)
			c := r.confinement()
			if mode == confine.LandlockOnly {
				c = r.landlockOnly(c)
			}
			r.Socket = filepath.Join(r.Outside, "s")
			r.Abstract = "@turnpike-test-" + filepath.Base(r.Outside) + string(mode) + t.Name()
			for network, address := range map[string]*string{"unix": &r.Socket, "tcp": &r.Loopback} {
				if network == "tcp" {
					r.Loopback = "127.0.0.1:0"
				}
				l, err := net.Listen(network, *address)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				*address = l.Addr().String()
			}
			l, err := net.Listen("unix", r.Abstract)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()

			met := r.play(t, h, c)
			for _, a := range attacks {
				want := a.full
				if mode == confine.LandlockOnly {
					want = a.landlock
				}
				got, tried := met[a.name]
				switch {
				case want == absent:
				case !tried:
					t.Errorf("%s: was not tried", a.name)
				case want == refused && got == "":
					t.Errorf("%s: succeeded", a.name)
				case want != refused && got != "":
					t.Errorf("%s: %s", a.name, got)
				default:
					t.Logf("%s: %s %s", a.name, want, got)
				}
			}
		})
	}
}
