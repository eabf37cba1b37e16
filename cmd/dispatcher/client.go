package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"turnpike/cmd/internal/cli"
	"turnpike/internal/job"
)

// defaultServer is where `serve` and `dev` listen unless told otherwise.
const defaultServer = "127.0.0.1:8420"

// client speaks the HTTP API for the producers' and operators' commands.
type client struct {
	base  *url.URL
	token string
	http  *http.Client
}

// clientFlags adds what every command needs that talks to a dispatcher.
func clientFlags(cmd *cobra.Command) {
	cmd.Flags().String("server", "http://"+defaultServer, "the dispatcher's address ($TURNPIKE_SERVER)")
	cmd.Flags().String("token-file", "", "file with the bearer token; or set $TURNPIKE_TOKEN.\nWithout either, this machine's dispatcher dev is asked with its own token")
}

func newClient(cmd *cobra.Command) (*client, error) {
	s, err := cli.LoadSettings(cmd, "token")
	if err != nil {
		return nil, err
	}
	base, err := url.Parse(s.String("server"))
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		return nil, cli.Usagef("server %q: want such as http://%s", s.String("server"), defaultServer)
	}
	token, err := s.Secret("token")
	if err != nil {
		return nil, err
	}
	host := base.Hostname()
	ip := net.ParseIP(host)
	switch here := host == "localhost" || ip != nil && ip.IsLoopback(); {
	case token != "" && base.Scheme == "http" && !here:
		return nil, cli.Usagef("server %s: a token is sent over https only, or to this machine", base.Host)
	case token == "" && here:
		if token, err = devToken(defaultDevDir()); err != nil {
			return nil, err
		}
	}
	return &client{base: base, token: token, http: &http.Client{}}, nil
}

// problem is an RFC 9457 problem document, as the API answers.
type problem struct {
	Title  string `json:"title"`
	Detail string `json:"detail"`
	Errors []struct {
		Message  string `json:"message"`
		Location string `json:"location"`
	} `json:"errors"`
}

// kinds maps the API's statuses back to the kinds they stand for.
var kinds = map[int]error{
	http.StatusBadRequest:            job.ErrInvalid,
	http.StatusRequestEntityTooLarge: job.ErrInvalid,
	http.StatusUnprocessableEntity:   job.ErrInvalid,
	http.StatusUnauthorized:          job.ErrDenied,
	http.StatusForbidden:             job.ErrDenied,
	http.StatusNotFound:              job.ErrNotFound,
	http.StatusConflict:              job.ErrConflict,
	http.StatusTooManyRequests:       job.ErrQueueFull,
	http.StatusBadGateway:            job.ErrUnavailable,
	http.StatusServiceUnavailable:    job.ErrUnavailable,
	http.StatusGatewayTimeout:        job.ErrUnavailable,
}

// answered is an answer that is a refusal, in the server's words.
type answered struct {
	kind error
	text string
}

func (a *answered) Error() string { return a.text }
func (a *answered) Unwrap() error { return a.kind }

// do sends one request and decodes the answer into out, unless out is nil.
func (c *client) do(ctx context.Context, method, path string, query url.Values, body []byte, header http.Header, out any) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	res, err := c.send(ctx, method, path, query, body, header)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return fmt.Errorf("read the answer of %s: %w", c.base.Host, err)
	}
	return nil
}

// send returns the answer to a request that was accepted; its body is the caller's.
func (c *client) send(ctx context.Context, method, path string, query url.Values, body []byte, header http.Header) (*http.Response, error) {
	u := c.base.JoinPath(path)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("no answer from the dispatcher at %s; is it running? (start one with `dispatcher dev`): %w", c.base.Host, errors.Join(job.ErrUnavailable, err))
	}
	if res.StatusCode < 300 {
		return res, nil
	}
	defer res.Body.Close()
	return nil, refusal(res)
}

func refusal(res *http.Response) error {
	kind, ok := kinds[res.StatusCode]
	if !ok {
		kind = errors.New(res.Status)
	}
	raw, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("%s, and its reason was cut off: %w", res.Status, errors.Join(kind, err))
	}
	var p problem
	if json.Unmarshal(raw, &p) != nil || p.Title == "" && p.Detail == "" {
		return &answered{kind, "the server answers " + res.Status}
	}
	var lines []string
	for _, e := range p.Errors {
		lines = append(lines, strings.TrimPrefix(strings.TrimSpace(e.Location+": "+e.Message), ": "))
	}
	switch {
	case len(lines) == 1:
		return &answered{kind, lines[0]}
	case len(lines) > 1:
		return &answered{kind, fmt.Sprintf("%d problems:\n  %s", len(lines), strings.Join(lines, "\n  "))}
	case p.Detail != "":
		return &answered{kind, p.Detail}
	}
	return &answered{kind, p.Title}
}

func (c *client) job(ctx context.Context, id job.ID) (job.View, error) {
	var v job.View
	err := c.do(ctx, http.MethodGet, "v1/jobs/"+string(id), nil, nil, nil, &v)
	return v, err
}

func (c *client) list(ctx context.Context, f job.Filter) ([]job.Summary, error) {
	q := url.Values{}
	for _, s := range f.States {
		q.Add("state", string(s))
	}
	for k, v := range map[string]string{"tenant": f.Tenant, "pool": f.Pool, "name": f.Name, "work": f.WorkKey, "before": string(f.Before)} {
		if v != "" {
			q.Set(k, v)
		}
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	var out struct {
		Jobs []job.Summary `json:"jobs"`
	}
	err := c.do(ctx, http.MethodGet, "v1/jobs", q, nil, nil, &out)
	return out.Jobs, err
}
