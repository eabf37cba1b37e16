package api_test

import (
	"context"
	"io"
	"net/http"
	"testing"

	"turnpike/internal/job"
)

// GetPatch is the broker as the server sees it: the second attempt's patch is there.
func (b *backend) GetPatch(_ context.Context, id job.ID, attempt int, to io.Writer) error {
	if id != anID || attempt != 2 {
		return job.ErrNotKept
	}
	_, err := io.WriteString(to, "diff --git a/x b/x\n")
	return err
}

func TestPatch(t *testing.T) {
	t.Parallel()
	changed, lost := &job.Patch{Bytes: 19, Files: 1}, &job.Patch{Files: 1, Problem: "it is in the session directory only"}
	for name, c := range map[string]struct {
		attempts []job.AttemptView
		query    string
		want     int
	}{
		"of the last attempt that changed something": {[]job.AttemptView{{Attempt: 1, Patch: lost}, {Attempt: 2, Patch: changed}, {Attempt: 3}}, "", http.StatusOK},
		"of one attempt":            {[]job.AttemptView{{Attempt: 2, Patch: changed}, {Attempt: 3, Patch: lost}}, "?attempt=2", http.StatusOK},
		"that changed nothing":      {[]job.AttemptView{{Attempt: 2}}, "", http.StatusNotFound},
		"that is not kept here":     {[]job.AttemptView{{Attempt: 2, Patch: lost}}, "", http.StatusNotFound},
		"that is not kept any more": {[]job.AttemptView{{Attempt: 1, Patch: changed}}, "", http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBackend()
			b.view.Attempts = c.attempts
			w := ask(serve(t, b), "GET", "/v1/jobs/"+string(anID)+"/patch"+c.query, "")
			if w.Code != c.want || c.want == http.StatusOK && w.Body.String() != "diff --git a/x b/x\n" {
				t.Errorf("%d %s", w.Code, w.Body.String())
			}
		})
	}
}
