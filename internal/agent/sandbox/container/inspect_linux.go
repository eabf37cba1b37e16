package container

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"turnpike/internal/agent"
)

// made is what the engine says it made.
type made struct {
	Image  string
	Config struct {
		User       string
		Entrypoint []string
	}
	HostConfig struct {
		Privileged, ReadonlyRootfs, PublishAllPorts bool
		CapAdd, CapDrop, SecurityOpt, Binds         []string
		NetworkMode, PidMode, IpcMode, UTSMode      string
		UsernsMode, CgroupParent                    string
		Devices, DeviceRequests, DeviceCgroupRules  []any
		PortBindings                                map[string]any
		Memory, MemorySwap, NanoCpus                int64
		PidsLimit                                   *int64
		Ulimits                                     []struct {
			Name       string
			Hard, Soft int64
		}
		Init *bool
	}
	Mounts []struct {
		Type, Source, Destination string
		RW                        bool
	}
}

// inspect compares what the engine made with what it was asked for, before it is started:
// an engine that drops what it cannot do says so here at the latest.
func (s *start) inspect(ctx context.Context) error {
	var all []made
	if err := s.client.ask(ctx, &all, "container", "inspect", s.identity.ID); err != nil {
		return err
	}
	if len(all) != 1 {
		return fmt.Errorf("%w: the engine knows %d containers of one id", agent.ErrUnready, len(all))
	}
	m := all[0]
	h, l := m.HostConfig, s.box.Limits
	network := "none"
	if !s.plan.Alone {
		network = openNetwork
	}
	dropped := slices.ContainsFunc(h.CapDrop, func(c string) bool { return strings.EqualFold(strings.TrimPrefix(c, "CAP_"), "all") })
	newPrivileges := !slices.ContainsFunc(h.SecurityOpt, func(o string) bool { return strings.HasPrefix(o, "no-new-privileges") })
	unfiltered := slices.ContainsFunc(h.SecurityOpt, func(o string) bool { return strings.HasSuffix(o, "unconfined") })
	ulimit := func(name string, want int64) bool {
		for _, u := range h.Ulimits {
			if u.Name == name && u.Hard == want && u.Soft == want {
				return true
			}
		}
		return false
	}
	for what, weaker := range map[string]bool{
		"image":                 m.Image != s.box.Image,
		"command":               !slices.Equal(m.Config.Entrypoint, []string{s.stage}),
		"user":                  m.Config.User != fmt.Sprintf("%d:%d", s.plan.UID, s.plan.GID),
		"privileges":            h.Privileged || newPrivileges || unfiltered,
		"capabilities":          !dropped || len(h.CapAdd) > 0,
		"read-only root":        !h.ReadonlyRootfs,
		"init":                  h.Init == nil || !*h.Init,
		"network":               h.NetworkMode != network || h.PublishAllPorts || len(h.PortBindings) > 0,
		"namespaces":            h.PidMode != "" || h.UTSMode != "" || h.UsernsMode != "" || h.IpcMode != "private",
		"devices":               len(h.Devices)+len(h.DeviceRequests)+len(h.DeviceCgroupRules) > 0,
		"memory limit":          h.Memory != l.MemoryBytes || h.MemorySwap != l.MemoryBytes,
		"limit of processes":    l.Processes > 0 && (h.PidsLimit == nil || *h.PidsLimit != int64(l.Processes)),
		"limit of CPUs":         math.Abs(float64(h.NanoCpus)/1e9-l.CPUs) > 0.001,
		"limit of core files":   !ulimit("core", 0),
		"limit of open files":   l.OpenFiles > 0 && !ulimit("nofile", int64(l.OpenFiles)),
		"limit of files' sizes": l.FileBytes > 0 && !ulimit("fsize", l.FileBytes),
		"mounts":                !s.mounted(m),
	} {
		if weaker {
			return fmt.Errorf("%w: the engine made a container with other %s than asked", agent.ErrUnsupported, what)
		}
	}
	return nil
}

// mounted says whether the container has exactly the binds it was asked for.
func (s *start) mounted(m made) bool {
	if len(m.Mounts) != len(s.box.Binds) || len(m.HostConfig.Binds) > 0 {
		return false
	}
	for _, have := range m.Mounts {
		if !slices.ContainsFunc(s.box.Binds, func(b agent.Bind) bool {
			return have.Type == "bind" && have.Source == b.Source && have.Destination == b.Destination && have.RW == (b.Access == agent.ReadWrite)
		}) {
			return false
		}
	}
	return true
}
