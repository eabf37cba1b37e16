package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"turnpike/internal/job"
)

// Patches is what turns changed. Its error wraps job.ErrNotKept or job.ErrUnavailable.
type Patches interface {
	GetPatch(ctx context.Context, id job.ID, attempt int, to io.Writer) error
}

type patchInput struct {
	JobInput
	Attempt int `query:"attempt" minimum:"0" doc:"of this attempt; absent, of the last that changed something"`
}

func (s *Server) registerPatch(api huma.API) {
	op := huma.Operation{
		OperationID: "patch", Method: http.MethodGet, Path: "/v1/jobs/{id}/patch",
		Summary:     "What a turn changed in its git workspace, as git's binary diff",
		Description: "It applies to the commit the attempt began with. Its agent wrote it: look at it before it is applied.",
		Errors:      []int{401, 403, 404, 422, 503},
	}
	huma.Register(api, op, s.patch)
	api.OpenAPI().Paths[op.Path].Get.Responses["200"] = &huma.Response{
		Description: "The patch",
		Content:     map[string]*huma.MediaType{patchType: {Schema: &huma.Schema{Type: huma.TypeString}}},
	}
}

// patchType is no type a browser would render.
const patchType = "application/octet-stream"

func (s *Server) patch(ctx context.Context, in *patchInput) (*huma.StreamResponse, error) {
	_, view, err := s.find(ctx, in.JobInput, Producer, Operator, Reporter)
	if err != nil {
		return nil, s.fail(err)
	}
	attempt, err := patched(view, in.Attempt)
	if err != nil {
		return nil, s.fail(err)
	}
	// Whole, so that one that is cut off is an error and not a shorter patch. Its size
	// is bounded by the worker.
	var whole bytes.Buffer
	if err := s.patches.GetPatch(ctx, view.ID, attempt, &whole); err != nil {
		return nil, s.fail(err)
	}
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		_, w := humago.Unwrap(hctx)
		w.Header().Set("Content-Type", patchType)
		w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="%s.%d.patch"`, view.ID, attempt))
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(10 * patience)) // a test's recorder has none
		_, _ = w.Write(whole.Bytes())                                                     // the reader may be gone
	}}, nil
}

// patched is the attempt whose patch is asked for.
func patched(v job.View, attempt int) (int, error) {
	for i := len(v.Attempts) - 1; i >= 0; i-- {
		a := v.Attempts[i]
		if attempt > 0 && a.Attempt != attempt || a.Patch == nil {
			continue
		}
		if a.Patch.Problem != "" {
			return 0, fmt.Errorf("patch of attempt %d: %s: %w", a.Attempt, a.Patch.Problem, job.ErrNotKept)
		}
		return a.Attempt, nil
	}
	return 0, fmt.Errorf("patch: %w", job.ErrNotKept)
}
