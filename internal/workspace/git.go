package workspace

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"turnpike/internal/agent"
	"turnpike/internal/vcs"
)

// Credential is how git reaches one host. It never leaves the worker.
type Credential struct {
	Username, Password string
}

// Git hands out clones of repositories at a ref, one for each attempt, from a
// mirror that is kept. The attempt's clone shares nothing with the mirror or with
// another attempt: what an agent does to its metadata ends with it.
type Git struct {
	Root string
	// Bin is git's executable; empty looks "git" up. Path is where git finds its own
	// programs and ssh; empty is the system's directories.
	Bin, Path string
	// Credentials resolves a credential's name; nil refuses every name. The ceiling
	// has checked that the credential is bound to the host.
	Credentials func(name string) (Credential, bool)
	// MaxPatch bounds what Patch writes; default 1 GiB.
	MaxPatch int64
	// Timeout bounds Acquire, with the wait for another attempt's fetch of the same
	// repository; default 10 minutes.
	Timeout time.Duration
	// KeepAge and KeepBytes bound the mirrors nobody works from; default 30 days and
	// 10 GiB. See Sweep.
	KeepAge   time.Duration
	KeepBytes int64

	mu      sync.Mutex // guards mirrors and bases
	mirrors map[string]lock
	bases   map[string]base
}

// base is what a clone is compared with afterwards: its commit, and the git
// directory the agent never could write.
type base struct{ commit, gitDir string }

// GitSpec asks for one clone.
type GitSpec struct {
	Name string
	vcs.Checkout
}

var _ vcs.Provider[GitSpec] = (*Git)(nil)

var commitForm = regexp.MustCompile(`^[0-9a-f]{40}([0-9a-f]{24})?$`)

// Acquire implements vcs.Provider. A repository that cannot be fetched, or not in time,
// is agent.ErrUnready; one whose server says that it, or the ref, is not there is
// agent.ErrMissing; one that may not be fetched is agent.ErrNotGranted or ErrUnsupported.
func (g *Git) Acquire(ctx context.Context, spec GitSpec) (_ vcs.Workspace, err error) {
	cred, err := g.credential(spec.Checkout)
	if err != nil {
		return vcs.Workspace{}, err
	}
	root, err := ownRoot(g.Root)
	if err != nil {
		return vcs.Workspace{}, err
	}
	timeout := cmp.Or(g.Timeout, 10*time.Minute)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it took longer than %s", timeout))
	defer cancel()
	mirror := filepath.Join(root, "mirrors", mirrorName(spec.URL))
	lock := g.lock(mirror)
	if err := lock.acquire(ctx); err != nil {
		return vcs.Workspace{}, unready("wait for another fetch of "+redact(spec.URL), err)
	}
	defer lock.release()
	commit, err := g.fetch(ctx, mirror, spec.Checkout, cred)
	if err != nil {
		return vcs.Workspace{}, err
	}
	clones, err := ownRoot(filepath.Join(root, "clones"))
	if err != nil {
		return vcs.Workspace{}, err
	}
	dir, err := os.MkdirTemp(clones, filepath.Base(spec.Name)+"-")
	if err != nil {
		return vcs.Workspace{}, unready("make checkout", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeOwn(clones, dir))
		}
	}()
	// --no-hardlinks: an agent must not share an inode with the mirror.
	// The remote is the producer's URL, so that an agent with VCS can name it.
	for _, args := range [][]string{
		{"clone", "--quiet", "--no-hardlinks", "--no-checkout", "--template=", mirror, dir},
		{"-C", dir, "remote", "set-url", "origin", spec.URL},
		{"-C", dir, "-c", "advice.detachedHead=false", "checkout", "--quiet", "--detach", commit},
	} {
		if _, err := g.run(ctx, nil, args...); err != nil {
			return vcs.Workspace{}, unready("check out "+redact(spec.URL), err)
		}
	}
	g.mu.Lock()
	if g.bases == nil {
		g.bases = make(map[string]base)
	}
	g.bases[dir] = base{commit, mirror}
	g.mu.Unlock()
	return vcs.Workspace{Dir: dir}, nil
}

// Release implements vcs.Provider. The clone goes, the mirror stays, without the commit
// that was kept for this clone alone.
func (g *Git) Release(ctx context.Context, w vcs.Workspace) error {
	g.mu.Lock()
	b, ok := g.bases[w.Dir]
	delete(g.bases, w.Dir)
	g.mu.Unlock()
	err := removeOwn(filepath.Join(g.Root, "clones"), w.Dir)
	if !ok {
		return err
	}
	// Where somebody is at it, a later release or sweep forgets this one's too.
	if lock := g.lock(b.gitDir); lock.try() {
		defer lock.release()
		err = errors.Join(err, g.forgetLocked(ctx, b.gitDir))
	}
	return err
}

// Clean removes the clones an earlier worker left. It must be called while no turn
// runs.
func (g *Git) Clean() error { return cleanRoot(filepath.Join(g.Root, "clones")) }

// Patch writes what changed in w since it was acquired, new files too, as git's
// binary diff against the commit that was checked out, and sums it up. Files the
// repository ignores are no part of it. The agent's own git directory is never read:
// the tree is compared through an index and an object directory that are made for this
// and removed, over the mirror's objects.
func (g *Git) Patch(ctx context.Context, w vcs.Workspace, out io.Writer) (c vcs.Changes, err error) {
	g.mu.Lock()
	b, ok := g.bases[w.Dir]
	g.mu.Unlock()
	if !ok {
		return c, fmt.Errorf("%s was not acquired here", w.Dir)
	}
	tmp, err := os.MkdirTemp(g.Root, "patch-")
	if err != nil {
		return c, fmt.Errorf("make patch: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	if _, err := g.run(ctx, nil, "init", "--quiet", "--bare", "--template=", tmp); err != nil {
		return c, err
	}
	env := []string{
		"GIT_DIR=" + tmp,
		"GIT_WORK_TREE=" + w.Dir,
		"GIT_ALTERNATE_OBJECT_DIRECTORIES=" + filepath.Join(b.gitDir, "objects"),
	}
	common := []string{"-C", w.Dir, "-c", "core.bare=false", "-c", "core.excludesFile=", "-c", "core.quotePath=false"}
	// Attributes of the tree name filters, but only configuration gives them commands,
	// and there is none. Nested repositories are added as what they are: names.
	for _, args := range [][]string{
		{"read-tree", b.commit},
		{"add", "--all", "--", "."},
	} {
		if _, err := g.run(ctx, env, slices.Concat(common, args)...); err != nil {
			return c, err
		}
	}
	diff := func(to io.Writer, args ...string) error {
		return g.stream(ctx, env, to, slices.Concat(common, []string{"diff", "--cached", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames"}, args, []string{b.commit})...)
	}
	if c, err = changes(diff); err != nil || c.Files == 0 {
		return c, err
	}
	return c, diff(&limited{out, cmp.Or(g.MaxPatch, 1<<30)}, "--binary")
}

const (
	maxSummary = 16 << 10 // of a summary for people
	maxNew     = 200      // new files told by name
	maxListing = 16 << 20 // of what git lists of one change
)

// changes reads git's own sums. Names are the agent's and may be anything.
func changes(diff func(io.Writer, ...string) error) (c vcs.Changes, err error) {
	var numbers, names, stat bytes.Buffer
	for _, d := range []struct {
		to   *bytes.Buffer
		args []string
	}{
		{&numbers, []string{"--numstat", "-z"}},
		{&names, []string{"--name-only", "-z", "--diff-filter=A"}},
		{&stat, []string{"--stat=100", "--stat-count=100"}},
	} {
		if err := diff(&limited{d.to, maxListing}, d.args...); err != nil {
			return vcs.Changes{}, err
		}
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(numbers.String(), "\x00"), "\x00") {
		added, rest, ok := strings.Cut(line, "\t")
		deleted, _, both := strings.Cut(rest, "\t")
		if !ok || !both {
			continue // nothing changed
		}
		c.Files++
		n, _ := strconv.Atoi(added) // "-" for a binary file
		m, _ := strconv.Atoi(deleted)
		c.Added, c.Deleted = c.Added+n, c.Deleted+m
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(names.String(), "\x00"), "\x00") {
		if name != "" && len(c.New) < maxNew {
			c.New = append(c.New, strings.ToValidUTF8(name, "\uFFFD"))
		}
	}
	c.Stat = strings.ToValidUTF8(string(stat.Bytes()[:min(stat.Len(), maxSummary)]), "\uFFFD")
	return c, nil
}

// Apply makes the changes of a patch that Patch wrote in w, which was just acquired and
// no agent has seen.
func (g *Git) Apply(ctx context.Context, w vcs.Workspace, patch string) error {
	g.mu.Lock()
	_, ok := g.bases[w.Dir]
	g.mu.Unlock()
	if !ok {
		return fmt.Errorf("%s was not acquired here", w.Dir)
	}
	_, err := g.run(ctx, nil, "-C", w.Dir, "apply", "--whitespace=nowarn", "--", patch)
	return err
}

// errLarge says that a patch is larger than is kept.
var errLarge = errors.New("the patch is larger than is kept")

type limited struct {
	w    io.Writer
	left int64
}

func (l *limited) Write(p []byte) (int, error) {
	if int64(len(p)) > l.left {
		return 0, errLarge
	}
	l.left -= int64(len(p))
	return l.w.Write(p)
}

// credential resolves the one credential a checkout names.
func (g *Git) credential(c vcs.Checkout) (*Credential, error) {
	u, err := url.Parse(c.URL)
	if err != nil || (u.Scheme != "https" && u.Scheme != "ssh" && u.Scheme != "file") || strings.HasPrefix(c.Ref, "-") {
		return nil, fmt.Errorf("repository: want a URL with scheme https, ssh or file and a ref that is one: %w", agent.ErrNotGranted)
	}
	if u.User != nil && u.Scheme != "ssh" {
		return nil, fmt.Errorf("repository: the URL holds a credential: %w", agent.ErrNotGranted)
	}
	switch {
	case len(c.Credentials) == 0:
		return nil, nil
	case u.Scheme != "https":
		return nil, fmt.Errorf("repository: credentials go with https only: %w", agent.ErrUnsupported)
	case len(c.Credentials) > 1:
		return nil, fmt.Errorf("repository: one credential is enough for one host: %w", agent.ErrUnsupported)
	case g.Credentials == nil:
		return nil, fmt.Errorf("repository: this worker has no credentials: %w", agent.ErrNotGranted)
	}
	cred, ok := g.Credentials(c.Credentials[0])
	if !ok {
		return nil, fmt.Errorf("repository: credential %q has no value on this worker: %w", c.Credentials[0], agent.ErrUnready)
	}
	return &cred, nil
}

// fetch brings the mirror up to date and gives the commit the ref names.
func (g *Git) fetch(ctx context.Context, mirror string, c vcs.Checkout, cred *Credential) (string, error) {
	if _, err := os.Stat(filepath.Join(mirror, "HEAD")); err != nil {
		if err := os.RemoveAll(mirror); err != nil {
			return "", unready("make mirror", err)
		}
		if err := os.MkdirAll(filepath.Dir(mirror), 0o700); err != nil {
			return "", unready("make mirror", err)
		}
		if _, err := g.run(ctx, nil, "init", "--quiet", "--bare", "--template=", mirror); err != nil {
			return "", unready("make mirror", err)
		}
	}
	// What it was last used by; see Sweep.
	now := time.Now()
	if err := os.Chtimes(mirror, now, now); err != nil {
		return "", unready("use mirror", err)
	}
	env := transport(cred)
	ref := c.Ref
	if ref == "" {
		ref = "HEAD"
	}
	fetch := func(refs ...string) error {
		args := slices.Concat(helper(cred), []string{"--git-dir=" + mirror, "fetch", "--quiet", "--force", "--no-auto-gc", "--no-recurse-submodules", c.URL}, refs)
		_, err := g.run(ctx, env, args...)
		return err
	}
	resolve := func(name string) string {
		out, err := g.run(ctx, nil, "--git-dir="+mirror, "rev-parse", "--verify", "--quiet", "--end-of-options", name+"^{commit}")
		if commit := strings.TrimSpace(out); err == nil && commitForm.MatchString(commit) {
			return commit
		}
		return ""
	}
	// The mirror keeps the branches, so that the next fetch is small.
	if err := fetch("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"); err != nil {
		return "", unfetched("fetch "+redact(c.URL), err)
	}
	var commit string
	if commitForm.MatchString(ref) {
		commit = resolve(ref) // not every server hands out a commit by its name
	}
	if commit == "" {
		if err := fetch(ref); err != nil {
			return "", unfetched("fetch "+ref+" of "+redact(c.URL), err)
		}
		commit = resolve("FETCH_HEAD")
	}
	if err := ctx.Err(); err != nil {
		return "", unready("resolve "+ref, context.Cause(ctx))
	}
	if commit == "" {
		return "", fmt.Errorf("resolve %s of %s: it names no commit: %w", ref, redact(c.URL), agent.ErrMissing)
	}
	// A commit that no branch holds must survive.
	if _, err := g.run(ctx, nil, "--git-dir="+mirror, "update-ref", keptRefs+commit, commit); err != nil {
		return "", unready("keep "+ref, err)
	}
	return commit, nil
}

// helper has git ask for the credential in this process's environment, where no
// other process of the host's users sees it; argv holds the names only.
func helper(c *Credential) []string {
	if c == nil {
		return nil
	}
	return []string{"-c", `credential.helper=!f() { test "$1" = get && printf 'username=%s\npassword=%s\n' "$TURNPIKE_GIT_USERNAME" "$TURNPIKE_GIT_PASSWORD"; }; f`}
}

func transport(c *Credential) []string {
	if c == nil {
		return nil
	}
	return []string{"TURNPIKE_GIT_USERNAME=" + c.Username, "TURNPIKE_GIT_PASSWORD=" + c.Password}
}

// absences is how git, in the C locale, tells that a repository or a ref is not there,
// as against out of reach. What it does not tell apart is taken for out of reach.
var absences = regexp.MustCompile(`couldn't find remote ref|not our ref|does not allow request for unadvertised object|` +
	`does not appear to be a git repository|repository '[^']*' not found`)

// unfetched says whether fetching again can help.
func unfetched(doing string, err error) error {
	if absences.MatchString(err.Error()) {
		return fmt.Errorf("%s: %w: %w", doing, err, agent.ErrMissing)
	}
	return unready(doing, err)
}

func mirrorName(u string) string {
	sum := sha256.Sum256([]byte(u))
	return hex.EncodeToString(sum[:16]) + ".git"
}

func redact(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "the repository"
	}
	return u.Redacted()
}

func (g *Git) run(ctx context.Context, env []string, args ...string) (string, error) {
	var out bytes.Buffer
	err := g.stream(ctx, env, &out, args...)
	return out.String(), err
}

// stream runs host git so that nothing but its arguments decides what it does: no
// system or global configuration, no hooks, no monitor, no helper, no prompt, no
// protocol that runs a command.
func (g *Git) stream(ctx context.Context, env []string, out io.Writer, args ...string) error {
	fixed := []string{
		"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false",
		"-c", "core.sshCommand=ssh -F /dev/null -o BatchMode=yes -o StrictHostKeyChecking=yes -o ConnectTimeout=30 -o ServerAliveInterval=15 -o ServerAliveCountMax=4",
		// A server that packs sends as little as a byte a second to stay in touch.
		"-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=60",
		"-c", "protocol.allow=never", "-c", "protocol.https.allow=always", "-c", "protocol.ssh.allow=always", "-c", "protocol.file.allow=always",
		"-c", "credential.helper=", "-c", "safe.bareRepository=explicit", "-c", "submodule.recurse=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false",
		"-c", "http.followRedirects=false", "-c", "transfer.fsckObjects=true",
	}
	cmd := exec.CommandContext(ctx, cmp.Or(g.Bin, "git"), append(fixed, args...)...)
	cmd.Env = append([]string{
		"PATH=" + cmp.Or(g.Path, "/usr/local/bin:/usr/bin:/bin"), "HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "SSH_ASKPASS=", "GIT_ATTR_NOSYSTEM=1", "GIT_OPTIONAL_LOCKS=0", "GIT_LITERAL_PATHSPECS=1",
	}, env...)
	cmd.Dir = "/"
	cmd.Stdout = out
	var errs tail
	cmd.Stderr = &errs
	// Git is asked to end, so that it takes its lock files along, and with it the
	// transport it started, which would wait for the network by itself.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			if cmd.Process != nil {
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // mostly nothing is left
			}
			return context.Cause(ctx)
		}
		return fmt.Errorf("git: %w: %s", err, strings.TrimSpace(errs.String()))
	}
	return nil
}

// tail keeps the last words of a program.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if len(t.b) > 2<<10 {
		t.b = t.b[len(t.b)-(1<<10):]
	}
	return len(p), nil
}

func (t *tail) String() string { return strings.ToValidUTF8(string(t.b), "?") }
