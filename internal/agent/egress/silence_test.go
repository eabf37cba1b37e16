package egress_test

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"turnpike/internal/agent/egress"
)

// A connection that says nothing, or stops in the middle of saying what it is for, is
// not kept.
func TestSilence(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		port  uint16
		said  string
		after time.Duration
	}{
		"nothing on 443":         {443, "", 10 * time.Second},
		"part of a TLS greeting": {443, "\x16\x03\x01\x02\x00\x01", 10 * time.Second},
		"nothing on 80":          {80, "", 10 * time.Second},
		"part of a request":      {80, "GET / HTTP/1.1\r\nHost: a.test\r\n", 10 * time.Second},
		"part of a query":        {53, "\x00\x20\x00", 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, err := egress.New(egress.Limited(nil, nil), nil)
				if err != nil {
					t.Fatal(err)
				}
				near, far := net.Pipe()
				began := time.Now()
				go p.Serve(far, "a.test", row.port)
				if _, err := io.WriteString(near, row.said); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadAll(near); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != row.after {
					t.Errorf("it was kept for %v", took)
				}
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A connection that is silent for long ends; one that says a word now and then does not.
func TestIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, a := net.Pipe()
		b, far := net.Pipe()
		go egress.Join(a, b)
		word := make([]byte, 1)
		for range 3 {
			time.Sleep(29 * time.Minute)                   //nolint:forbidigo // the sleep of a bubble is the signal
			go func() { _, _ = near.Write([]byte("x")) }() // read below
			if _, err := io.ReadFull(far, word); err != nil {
				t.Fatal(err)
			}
		}
		last := time.Now()
		if _, err := far.Read(word); !errors.Is(err, io.EOF) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(last); took != 30*time.Minute {
			t.Errorf("it ended after %v", took)
		}
		_ = near.Close()
		_ = far.Close()
	})
}
