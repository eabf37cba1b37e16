package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRun(t *testing.T) {
	t.Run("explains itself", func(t *testing.T) {
		var out, errs bytes.Buffer
		if code := run(t.Context(), []string{"--help"}, &out, &errs); code != 0 || errs.Len() > 0 {
			t.Fatalf("exit %d, stderr %q", code, &errs)
		}
		for _, want := range []string{"-addr", "127.0.0.1:8399", "/s/demo", "/s/429unified"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("help does not mention %s", want)
			}
		}
	})

	t.Run("refuses what it does not understand", func(t *testing.T) {
		for args, want := range map[string]int{"--port=1": 2, "extra": 2, "--addr=127.0.0.1:no": 1} {
			var out, errs bytes.Buffer
			if code := run(t.Context(), []string{args}, &out, &errs); code != want || errs.Len() == 0 {
				t.Errorf("%s: exit %d, stderr %q; want exit %d and a reason", args, code, &errs, want)
			}
		}
	})

	t.Run("serves until it is told to stop", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		said, says := io.Pipe()
		code := make(chan int, 1)
		go func() {
			code <- run(ctx, []string{"--addr", "127.0.0.1:0"}, says, io.Discard)
			says.Close()
		}()
		buf := make([]byte, 4096)
		n, err := said.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, said) }() // ends with the pipe
		_, base, _ := strings.Cut(string(buf[:n]), "listens on ")
		base, _, _ = strings.Cut(base, ". Set")
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		res, err := client.Post(base+"/v1/messages", "application/json", strings.NewReader(`{"messages":[]}`))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Errorf("status %d", res.StatusCode)
		}
		stop()
		if got := <-code; got != 0 {
			t.Errorf("exit %d after an ordered stop, want 0", got)
		}
	})
}
