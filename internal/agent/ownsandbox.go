package agent

// Leavings is a Driver whose CLI leaves empty files and directories of its own in the
// workspace. The runner takes them away after the turn, unless they were there before
// or something is in them.
type Leavings interface {
	// Leavings are slash-separated paths beneath the working directory, inner before
	// outer.
	Leavings(t *Turn) []string
}

// ReadOnly are the paths of c that stay read-only although their surroundings, or the
// working directory's own being writable by default, would have them written: metadata,
// mounts inside writable ones, and what decides about the working directory.
func (c Confinement) ReadOnly() []string {
	var out []string
	for _, m := range c.Mounts {
		if m.Access != ReadOnly {
			continue
		}
		over, ok := Deciding(without(c.Mounts, m), m.Path)
		if ok && over.Access == ReadWrite || Inside(c.Workspace, m.Path) {
			out = append(out, m.Path)
		}
	}
	return append(out, c.ReadOnlyMetadata...)
}

func without(mounts []Mount, m Mount) []Mount {
	var out []Mount
	for _, o := range mounts {
		if o != m {
			out = append(out, o)
		}
	}
	return out
}
