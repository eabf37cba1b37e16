package container

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"turnpike/internal/agent"
)

const (
	// askTime bounds one question to the engine.
	askTime = time.Minute
	// endTime bounds ending a container.
	endTime = time.Minute
)

// client talks to the engine through its program.
type client struct{ bin string }

// run runs one command of the engine's program and gives what it printed.
func (c client) run(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.bin, args...)
	cmd.WaitDelay = time.Second
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err == nil {
		return strings.TrimSpace(string(out)), nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return "", fmt.Errorf("%w: %s %s: %w: %s", agent.ErrUnready, c.bin, args[0], err, oneLine(said.String()))
}

// oneLine is what a program said last, short enough for an error.
func oneLine(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r < ' ' }), "; ")
	if len(s) > 1000 {
		s = s[:1000]
	}
	return s
}

func (c client) ask(ctx context.Context, into any, args ...string) error {
	text, err := c.run(ctx, args...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("%w: %s %s: %w", agent.ErrUnready, c.bin, args[0], err)
	}
	return nil
}

// list gives the ids of the containers a filter finds, running or not.
func (c client) list(ctx context.Context, filter string) ([]string, error) {
	text, err := c.run(ctx, "ps", "--all", "--quiet", "--no-trunc", "--filter", filter)
	return strings.Fields(text), err
}

// labelled gives the containers that have a label of this key, with its value.
func (c client) labelled(ctx context.Context, key string) (map[string]string, error) {
	text, err := c.run(ctx, "ps", "--all", "--no-trunc", "--filter", "label="+key, "--format", fmt.Sprintf("{{.ID}} {{.Label %q}}", key))
	out := map[string]string{}
	for line := range strings.Lines(text) {
		id, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		out[id] = value
	}
	return out, err
}

// remove ends a container and returns once the engine knows it no more.
func (c client) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		// One that is being removed already is told as an error: whether it is there is
		// what counts.
		_, removing := c.run(ctx, "rm", "--force", "--volumes", id)
		left, err := c.list(ctx, "id="+id)
		if err == nil && len(left) == 0 {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("it is there yet: %w", errors.Join(context.Cause(ctx), removing, err))
		}
	}
}

// image is as much of an image's description as matters here.
type image struct {
	ID           string `json:"Id"`
	OS           string `json:"Os"`
	Architecture string
	Config       struct {
		Env     []string
		Volumes map[string]any
	}
}

func (c client) image(ctx context.Context, name string) (image, error) {
	if name == "" || strings.HasPrefix(name, "-") {
		return image{}, fmt.Errorf("%w: image %q", agent.ErrUnsupported, name)
	}
	var found []image
	if err := c.ask(ctx, &found, "image", "inspect", name); err != nil {
		return image{}, fmt.Errorf("image %s: %w", name, err)
	}
	if len(found) != 1 || found[0].ID == "" {
		return image{}, fmt.Errorf("%w: image %s: the engine knows %d of this name", agent.ErrUnready, name, len(found))
	}
	return found[0], nil
}

// check refuses an image that a turn cannot be held in.
func (i image) check(name string, f facts) error {
	switch {
	case i.OS != "linux":
		return fmt.Errorf("%w: image %s is for %s", agent.ErrUnsupported, name, i.OS)
	case f.Server.Arch != "" && i.Architecture != f.Server.Arch:
		return fmt.Errorf("%w: image %s is for %s, this machine is %s", agent.ErrUnsupported, name, i.Architecture, f.Server.Arch)
	case len(i.Config.Volumes) > 0:
		return fmt.Errorf("%w: image %s declares volumes, which a turn could write; build it without", agent.ErrUnsupported, name)
	}
	return nil
}

// gateway is the host's address on the network that open turns are in; invalid where it
// cannot be told.
func (c client) gateway(ctx context.Context) netip.Addr {
	const format = `{{range .IPAM.Config}}{{.Gateway}} {{end}}{{index .Options "com.docker.network.bridge.name"}}`
	text, err := c.run(ctx, "network", "inspect", "--format", format, openNetwork)
	if err != nil {
		return netip.Addr{}
	}
	for word := range strings.FieldsSeq(text) {
		if a, err := netip.ParseAddr(word); err == nil && a.Is4() {
			return a
		}
		bridge, err := net.InterfaceByName(word)
		if err != nil {
			continue
		}
		addrs, err := bridge.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
				return p.Addr()
			}
		}
	}
	return netip.Addr{}
}

// socket is the engine's own, by which the client reaches it; empty where it has none.
func (c client) socket(ctx context.Context) string {
	at, err := c.run(ctx, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
	if err != nil {
		return ""
	}
	path, _ := strings.CutPrefix(at, "unix://")
	if path == at {
		return ""
	}
	return path
}
