package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/job"
	"turnpike/internal/vcs"
)

// Archive keeps what turns leave for later attempts, wherever they run, and for people.
// Its errors may be job.ErrNotKept, for what is not there, and job.ErrConflict.
type Archive interface {
	// PutConversation keeps a bundle as a job's own and as the newest. One that is there
	// is followed only by a turn that continued it; else job.ErrConflict.
	PutConversation(ctx context.Context, of job.Conversation, continued bool, bundle io.ReadSeeker) error
	GetConversation(ctx context.Context, of job.Conversation, to io.Writer) error
	PutPatch(ctx context.Context, id job.ID, attempt int, patch io.Reader) error
	GetPatch(ctx context.Context, id job.ID, attempt int, to io.Writer) error
}

// Historian is a workspace provider that can tell what a turn changed, and change it
// again.
type Historian interface {
	// Patch writes the changes since Acquire; nothing when there are none.
	Patch(ctx context.Context, ws vcs.Workspace, w io.Writer) (vcs.Changes, error)
	// Apply makes the changes of a patch file in a workspace that was just acquired.
	Apply(ctx context.Context, ws vcs.Workspace, patch string) error
}

const (
	// PatchFile is the name of a turn's changes in its session directory.
	PatchFile = "changes.patch"
	// workFile is what an earlier attempt changed, and this one goes on with.
	workFile = "continued.patch"
	// workspaceDir is a workspace whose changes could not be told otherwise.
	workspaceDir = "workspace"

	// maxPatch bounds a patch that is kept beyond the session directory.
	maxPatch = 64 << 20
	// archiveTimeout bounds keeping what one turn left: a drain waits for it.
	archiveTimeout = 20 * time.Second
)

// leavings are what a turn left in its workspace.
type leavings struct {
	changes vcs.Changes
	problem string // why the changes are not in PatchFile
	gone    bool   // the workspace went with the attempt, and something in it that no patch has
}

// continues is the conversation the attempt goes on with; empty for none.
func (a *attempt) continues() string { return cmp.Or(a.resume, a.request.ResumeID) }

// origin is the job that left the conversation as the attempt goes on with it: its own,
// which was interrupted, or the one its request names. Empty is whoever was the last.
func (a *attempt) origin() job.ID {
	if a.resume != "" {
		return a.mark.Lease.Job
	}
	return a.from
}

// conversation names the one with the agent's id, as a job left it. Those of read-only
// turns are kept apart.
func (a *attempt) conversation(id string, of job.ID) job.Conversation {
	return job.Conversation{Tenant: a.tenant, Agent: agentName(a.profile.Agent), ID: id, Job: of, Restricted: a.request.Restricted}
}

// fetchConversation puts the bundle of the conversation the attempt continues where the
// runner finds it.
func (a *attempt) fetchConversation(ctx context.Context) error {
	id := a.continues()
	switch {
	case id == "" && a.request.ResumeFrom != "":
		return fmt.Errorf("resume_from: there is no queue with that job: %w", agent.ErrUnsupported)
	case id == "":
		return nil
	case a.Archive == nil:
		return fmt.Errorf("resume: this worker keeps no conversations (it runs without NATS): %w", agent.ErrUnsupported)
	}
	of := a.conversation(id, a.origin())
	err := fetch(filepath.Join(a.mark.Session, agent.ContinuedFile), agent.MaxConversation, func(w io.Writer) error {
		return a.Archive.GetConversation(ctx, of, w)
	})
	switch {
	case errors.Is(err, job.ErrNotKept):
		return fmt.Errorf("resume: conversation %.64q of %s is not kept, or not any more: %w", id, of.Agent, agent.ErrUnsupported)
	case err != nil:
		return fmt.Errorf("resume: %w: %w", err, agent.ErrUnready)
	}
	return nil
}

// restoreWork makes in a fresh clone what earlier attempts had changed when the
// conversation broke off: the newest patch has all of it.
func (a *attempt) restoreWork(ctx context.Context, ws vcs.Workspace) error {
	h, ok := a.Workspaces.(Historian)
	if a.resume == "" || a.request.Workspace.Git == nil || !ok {
		return nil
	}
	file := filepath.Join(a.mark.Session, workFile)
	for n := a.mark.Lease.Attempt - 1; n > 0; n-- {
		err := fetch(file, maxPatch, func(w io.Writer) error { return a.Archive.GetPatch(ctx, a.mark.Lease.Job, n, w) })
		switch {
		case errors.Is(err, job.ErrNotKept):
			continue
		case err != nil:
			return fmt.Errorf("resume: %w: %w", err, agent.ErrUnready)
		}
		if err := h.Apply(ctx, ws, file); err != nil {
			return fmt.Errorf("resume: what attempt %d changed does not fit the repository any more: %w: %w", n, err, agent.ErrUnsupported)
		}
		return nil
	}
	return nil // an attempt that changed nothing
}

// fetch writes a file of the session directory, whole or not at all.
func fetch(path string, most int64, get func(io.Writer) error) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	return get(&atMost{f, most})
}

// atMost writes up to a bound.
type atMost struct {
	w    io.Writer
	left int64
}

func (a *atMost) Write(p []byte) (int, error) {
	if a.left -= int64(len(p)); a.left < 0 {
		return 0, errors.New("it is larger than is taken")
	}
	return a.w.Write(p)
}

// keepWork keeps what the turn left in its workspace, before that goes.
func (a *attempt) keepWork(ctx context.Context, ws vcs.Workspace) {
	switch {
	case a.request.Workspace.Scratch:
		entries, err := os.ReadDir(ws.Dir)
		a.left.gone = err != nil || len(entries) > 0
	case a.request.Workspace.Git != nil:
		h, ok := a.Workspaces.(Historian)
		if !ok {
			return
		}
		err := a.patch(ctx, h, ws)
		if err == nil {
			return
		}
		a.left.problem = "no patch could be made: " + text(err)
		a.Log.Warn("a turn's changes could not be made a patch; its workspace is kept instead", "name", a.name, "error", err)
		if err := saveWorkspace(ws.Dir, a.mark.Session); err != nil {
			a.Log.Error("a turn's workspace could not be kept", "name", a.name, "error", err)
			return
		}
		a.left.problem += "; the workspace is in the session directory"
	}
}

// saveWorkspace keeps a workspace in a session directory, for as long as that is kept.
func saveWorkspace(workspace, session string) error {
	return os.Rename(workspace, filepath.Join(session, workspaceDir))
}

// patch keeps the changes of the workspace beside the transcript.
func (a *attempt) patch(ctx context.Context, h Historian, ws vcs.Workspace) (err error) {
	f, err := os.OpenFile(filepath.Join(a.mark.Session, PatchFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil || a.left.changes.Files == 0 {
			err = errors.Join(err, os.Remove(f.Name())) // half a patch is none
		}
	}()
	a.left.changes, err = h.Patch(ctx, ws, f)
	return err
}

// archive keeps what the turn left where others find it, and says so in the report.
func (a *attempt) archive(ctx context.Context, res *agent.Result, rep *job.Report) {
	// The turn's context has mostly ended with it.
	cause := context.Cause(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), archiveTimeout)
	defer cancel()
	rep.Patch = a.archivePatch(ctx)
	if errors.Is(cause, job.ErrLeaseLost) {
		return // another attempt may have gone on with the conversation by now
	}
	kept, err := a.archiveConversation(ctx, res.ClaudeID)
	if err != nil {
		a.Log.Warn("a conversation is not kept and cannot be continued", "name", a.name, "error", err)
		rep.Notes = append(rep.Notes, "the conversation is not kept and cannot be continued: "+text(err))
	}
	rep.Kept = kept
	rep.Resumable = kept && a.canGoOn(res, rep.Patch)
}

func (a *attempt) archivePatch(ctx context.Context) *job.Patch {
	c := a.left.changes
	if c.Files == 0 && a.left.problem == "" {
		return nil
	}
	p := &job.Patch{Files: c.Files, Added: c.Added, Deleted: c.Deleted, Stat: clean(c.Stat), Problem: a.left.problem}
	for _, name := range c.New {
		p.New = append(p.New, clean(name))
	}
	if p.Problem != "" {
		return p
	}
	f, err := os.Open(filepath.Join(a.mark.Session, PatchFile))
	if err == nil {
		defer f.Close() // it was only read
		var info os.FileInfo
		if info, err = f.Stat(); err == nil {
			p.Bytes = info.Size()
		}
	}
	switch {
	case err != nil:
	case a.Archive == nil:
		err = errors.New("this worker runs without NATS")
	case p.Bytes > maxPatch:
		err = fmt.Errorf("it is larger than %d MiB", maxPatch>>20)
	default:
		err = a.Archive.PutPatch(ctx, a.mark.Lease.Job, a.mark.Lease.Attempt, f)
	}
	if err != nil {
		a.Log.Warn("a patch is kept in its session directory only", "name", a.name, "error", err)
		p.Problem = "it is in the session directory only: " + text(err)
	}
	return p
}

// archiveConversation says whether the conversation is kept now.
func (a *attempt) archiveConversation(ctx context.Context, id string) (bool, error) {
	f, err := os.Open(filepath.Join(a.mark.Session, agent.ConversationFile))
	if a.Archive == nil || id == "" || errors.Is(err, os.ErrNotExist) {
		return false, nil // the runner said why, if there was anything to say
	}
	if err != nil {
		return false, err
	}
	defer f.Close() // it was only read
	err = a.Archive.PutConversation(ctx, a.conversation(id, a.mark.Lease.Job), id == a.continues(), f)
	return err == nil, err
}

// canGoOn says whether another attempt finds the place as this one left it, under the
// same path.
func (a *attempt) canGoOn(res *agent.Result, p *job.Patch) bool {
	switch w := a.request.Workspace; {
	case !a.released:
		return false
	case w.Dir != "":
		return true
	case res.WorkDir == "" || res.WorkDir == a.workspace:
		return false // the path is the attempt's own
	case w.Git != nil:
		return p == nil || p.Problem == ""
	}
	return !a.left.gone
}
