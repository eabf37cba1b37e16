// Package vcs describes where a turn works and which version control resources
// come with that place. It runs no version control command: package workspace
// provides workspaces, and the boundary decides what a turn may touch of one.
package vcs

import "context"

// Workspace is a place a turn works in.
type Workspace struct {
	// Dir is the working directory, absolute.
	Dir string
	// Metadata are directories outside Dir that hold its version control
	// metadata, such as the repository a git worktree's .git file points at.
	// A turn reads them only with version control granted.
	Metadata []string
}

// Provider hands out workspaces of one sort S.
type Provider[S any] interface {
	// Acquire makes a workspace ready for one attempt. It returns an error a
	// caller may retry elsewhere when the place cannot be made ready now.
	Acquire(ctx context.Context, spec S) (Workspace, error)
	// Release gives the workspace back; its files may go. It is called once,
	// after the last process that could write there is gone.
	Release(ctx context.Context, w Workspace) error
}

// Spec asks for a workspace: exactly one of Dir, Scratch and Git is set.
type Spec struct {
	// Name is unique to the attempt and fit for a file name.
	Name string
	// Dir is an existing directory of the worker's host.
	Dir string
	// Scratch asks for an empty directory.
	Scratch bool
	// Git asks for a repository at a ref.
	Git *Checkout
}

// Checkout is a repository at a ref.
type Checkout struct {
	URL string
	Ref string // empty is the remote's own default
	// Credentials are names; what they stand for is the worker's.
	Credentials []string
}

// Changes sums up what changed in a workspace with a history since it was acquired.
type Changes struct {
	Files          int // changed, new and deleted ones
	Added, Deleted int // lines of text
	// Stat is a summary for people, and New names the files that are new. Both are
	// bounded.
	Stat string
	New  []string
}
