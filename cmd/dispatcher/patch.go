package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"turnpike/internal/job"
)

// printPatch prints a job's patch as it is.
func printPatch(cmd *cobra.Command, c *client, id job.ID) error {
	q := url.Values{}
	if n := attemptFlag(cmd); n > 0 {
		q.Set("attempt", strconv.Itoa(n))
	}
	res, err := c.send(cmd.Context(), http.MethodGet, "v1/jobs/"+string(id)+"/patch", q, nil, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(cmd.OutOrStdout(), res.Body); err != nil {
		return fmt.Errorf("the patch was cut off: %w: %w", job.ErrUnavailable, err)
	}
	return nil
}

func describePatch(p *job.Patch) string {
	s := fmt.Sprintf("%d files, %d lines added, %d deleted", p.Files, p.Added, p.Deleted)
	switch {
	case p.Files == 0:
		return p.Problem
	case p.Problem != "":
		return s + "; " + p.Problem
	}
	return s + fmt.Sprintf("; %d bytes with --patch", p.Bytes)
}
