package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"turnpike/cmd/internal/cli"
	"turnpike/internal/job"
)

// printPatch prints a job's patch as it is.
func printPatch(cmd *cobra.Command, c *client, id job.ID) error {
	q := url.Values{}
	if n, err := cmd.Flags().GetInt("attempt"); err != nil {
		return err
	} else if n > 0 {
		q.Set("attempt", strconv.Itoa(n))
	}
	res, err := c.send(cmd.Context(), http.MethodGet, "v1/jobs/"+string(id)+"/patch", q, nil, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	out := cmd.OutOrStdout()
	if cli.IsTerminal(out) {
		out = visible{out}
	}
	if _, err := io.Copy(out, res.Body); err != nil {
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

// visible shows control characters instead of having a terminal obey them: an agent
// wrote what is printed.
type visible struct{ to io.Writer }

func (v visible) Write(p []byte) (int, error) {
	shown := make([]byte, 0, len(p))
	for _, b := range p {
		switch {
		case b == '\n' || b == '\t' || b >= ' ' && b != 0x7f:
			shown = append(shown, b)
		default:
			shown = append(shown, '^', b^0x40)
		}
	}
	_, err := v.to.Write(shown)
	return len(p), err
}
