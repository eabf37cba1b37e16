package mcphost

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnpike/internal/agent"
)

// The names of the tools that read the workspace.
const (
	ReadFileTool      = "read_file"
	ListDirectoryTool = "list_directory"
	FindFilesTool     = "find_files"
	SearchTool        = "search_files"
)

// What one call gives and looks at.
const (
	maxText       = 128 << 10 // bytes of what a call gives
	maxLines      = 2_000     // lines of a file in one call
	maxLine       = 4 << 10   // bytes of one of them
	maxSkip       = 64 << 20  // bytes of a file that are read past to come to a line
	maxListed     = 1_000     // entries of a directory
	maxFound      = 500       // files found by name
	maxMatches    = 200       // lines found by content
	maxMatch      = 400       // bytes of one of them
	maxSearched   = 8 << 20   // bytes of a file that is searched at all
	maxSearchAll  = 256 << 20 // bytes of all of them
	binaryHead    = 8 << 10   // bytes by which a binary file is told
	callTime      = 30 * time.Second
	callsTogether = 2
)

// Read says what the read server shows.
type Read struct {
	// Dir is the directory: absolute and without links. Shown is the path it has
	// where the agent runs, by which the agent may name things in it.
	Dir, Shown string
	// Bridge is the executable whose main calls Entry; empty is this program's own.
	Bridge string
}

// StartRead serves tools that read one directory, and can do nothing else, until Close
// is called or ctx ends. The socket is made as Start makes it, in another directory.
func StartRead(ctx context.Context, dir string, r Read) (*Host, error) {
	if !filepath.IsAbs(r.Dir) {
		return nil, fmt.Errorf("serve the workspace to read: %w: %q is not absolute", agent.ErrUnready, r.Dir)
	}
	root, err := openRoot(r.Dir)
	if err != nil {
		kind := agent.ErrUnready
		if errors.Is(err, syscall.ELOOP) {
			kind = agent.ErrPolicyChanged
		}
		return nil, fmt.Errorf("serve the workspace to read: %w: %w", kind, err)
	}
	ctx, stop := context.WithCancel(ctx)
	s := &reader{tree: tree{root: root, shown: r.Shown}, over: ctx, turns: make(chan struct{}, callsTogether)}
	server := mcp.NewServer(&mcp.Implementation{Name: ReadServerName, Version: "1"}, nil)
	s.addTo(server)
	h := &Host{name: ReadServerName, server: server, cleanUp: sync.OnceValue(s.close)}
	if err := h.open(ctx, filepath.Join(dir, readDir), r.Bridge); err != nil {
		stop()
		return nil, errors.Join(err, h.cleanUp())
	}
	hangUp := h.stop
	h.stop = func() {
		stop() // what still runs, which is waited for
		hangUp()
	}
	return h, nil
}

// reader are the tools of one read server.
type reader struct {
	tree tree
	over context.Context //nolint:containedctx // the server's life, which a call's own context does not know
	// turns has room for the calls that may run at one time.
	turns chan struct{}
}

// close waits for the calls that still run; no other comes through after it.
func (s *reader) close() error {
	for range cap(s.turns) {
		s.turns <- struct{}{}
	}
	return s.tree.root.Close()
}

func (s *reader) addTo(server *mcp.Server) {
	type object = map[string]any
	text := func(description string) object {
		return object{"type": "string", "description": description}
	}
	add := func(name, description string, required []string, properties object, call func(context.Context, json.RawMessage) (*answer, error)) {
		server.AddTool(&mcp.Tool{
			Name: name, Description: description,
			InputSchema: object{"type": "object", "required": required, "additionalProperties": false, "properties": properties},
			Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true},
		}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return s.call(ctx, r.Params.Arguments, call), nil
		})
	}
	add(ReadFileTool, fmt.Sprintf("Read a text file of the workspace, at most %d lines at a time.", maxLines), []string{"path"}, object{
		"path":   text("The file, relative to the workspace."),
		"offset": object{"type": "integer", "minimum": 1, "description": "The first line to read; 1 is the first of the file."},
		"limit":  object{"type": "integer", "minimum": 1, "maximum": maxLines, "description": "How many lines to read."},
	}, s.readFile)
	add(ListDirectoryTool, "List a directory of the workspace: a size beside each file, a / behind each directory.", []string{}, object{
		"path": text("The directory, relative to the workspace; the workspace itself when left out."),
	}, s.listDirectory)
	add(FindFilesTool, "Find files of the workspace by name, with a glob such as *.go or src/**/*.{ts,tsx}.", []string{"pattern"}, object{
		"pattern": text("The glob. With a / in it, it is matched against the path below the directory, else against the name."),
		"path":    text("The directory to look in; the workspace itself when left out."),
	}, s.findFiles)
	add(SearchTool, "Search the text files of the workspace line by line with a regular expression (RE2 syntax; (?i) ignores case).", []string{"pattern"}, object{
		"pattern": text("The regular expression."),
		"path":    text("The directory to search in; the workspace itself when left out."),
		"glob":    text("A glob that narrows the files, as find_files takes it."),
		"limit":   object{"type": "integer", "minimum": 1, "maximum": maxMatches, "description": "How many lines to give at most."},
	}, s.searchFiles)
}

// call runs one call in its turn, and ends it when its time or the server is over.
func (s *reader) call(ctx context.Context, arguments json.RawMessage, do func(context.Context, json.RawMessage) (*answer, error)) *mcp.CallToolResult {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	defer context.AfterFunc(s.over, cancel)()
	select {
	case s.turns <- struct{}{}:
	case <-ctx.Done():
		return toolError(errors.New("too many calls at one time; call again"))
	}
	defer func() { <-s.turns }()
	a, err := do(ctx, arguments)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return toolError(fmt.Errorf("stopped after %s; look in a smaller part of the workspace", callTime))
	case err != nil:
		return toolError(errors.New(clean([]byte(err.Error()))))
	}
	return a.result()
}

// answer gathers what a call gives, within bounds.
type answer struct {
	text  strings.Builder
	notes []string
	full  bool
}

// line adds one, and says whether it found room.
func (a *answer) line(text string) bool {
	if a.text.Len()+len(text)+1 > maxText {
		a.full = true
		return false
	}
	a.text.WriteString(text)
	a.text.WriteByte('\n')
	return true
}

func (a *answer) note(format string, args ...any) {
	a.notes = append(a.notes, fmt.Sprintf(format, args...))
}

// result gives the text, and in a piece of its own what is to be said about it.
func (a *answer) result() *mcp.CallToolResult {
	r := &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: a.text.String()}}}
	if len(a.notes) > 0 {
		r.Content = append(r.Content, &mcp.TextContent{Text: "[" + strings.Join(a.notes, "; ") + "]"})
	}
	return r
}

func (s *reader) readFile(ctx context.Context, arguments json.RawMessage) (*answer, error) {
	var in struct {
		Path   string `json:"path"`
		Offset int    `json:"offset"`
		Limit  int    `json:"limit"`
	}
	if err := decode(arguments, &in); err != nil {
		return nil, err
	}
	first, most := max(in.Offset, 1), in.Limit
	if most <= 0 || most > maxLines {
		most = maxLines
	}
	f, info, err := s.tree.file(in.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	a := &answer{}
	r := bufio.NewReaderSize(f, binaryHead)
	if binary(r) {
		a.note("%s is a binary file of %d bytes, which is not shown", shown(in.Path), info.Size())
		return a, nil
	}
	var skipped int64
	for n := 1; ; n++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		line, long, err := nextLine(ctx, r, maxLine)
		switch {
		case errors.Is(err, io.EOF):
			if n <= first {
				a.note("the file has %d lines", n-1)
			}
			return a, nil
		case errors.Is(err, errEnough) && n >= first:
			a.line(cut(line, long))
			a.note("line %d is longer than the %d MiB that are read past", n, maxSkip>>20)
			return a, nil
		case err != nil && !errors.Is(err, errEnough):
			return nil, err
		case n < first:
			if skipped += long; skipped > maxSkip {
				return nil, fmt.Errorf("line %d lies beyond the %d MiB that are read past; search for what you need", first, maxSkip>>20)
			}
		case n >= first+most || !a.line(cut(line, long)):
			a.note("the file goes on: read from offset %d", n)
			return a, nil
		}
	}
}

// nextLine gives the head of the next line, without its end, and how long the line is.
// The last one needs no end. It returns errEnough once it has read past enough of one.
// The slice is valid until the next call.
func nextLine(ctx context.Context, r *bufio.Reader, most int) (head []byte, length int64, err error) {
	for {
		part, more, err := r.ReadLine()
		if err != nil {
			if length > 0 && errors.Is(err, io.EOF) {
				return head, length, nil
			}
			return nil, 0, err
		}
		if head == nil && !more {
			return part[:min(len(part), most)], int64(len(part)), nil
		}
		head = append(head, part[:min(len(part), most-len(head))]...)
		length += int64(len(part))
		if !more {
			return head, length, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		if length > maxSkip {
			return head, length, errEnough
		}
	}
}

// cut makes a line's head fit to be shown, and says what is missing.
func cut(head []byte, length int64) string {
	text := clean(head)
	if more := length - int64(len(head)); more > 0 {
		text += fmt.Sprintf(" [%d more bytes]", more)
	}
	return text
}

// clean keeps out what neither JSON nor Postgres can hold.
func clean(b []byte) string {
	return strings.ReplaceAll(strings.ToValidUTF8(string(b), "\uFFFD"), "\x00", "\uFFFD")
}

// shown is a path on a line of its own: one that could be taken for something else is
// quoted.
func shown(name string) string {
	if name == "" {
		return "."
	}
	if strings.ContainsFunc(name, func(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}

// binary says whether a file is no text, by what it begins with.
func binary(r *bufio.Reader) bool {
	head, _ := r.Peek(binaryHead) // a shorter file, and one that cannot be read, are seen to by who reads on
	return bytes.IndexByte(head, 0) >= 0
}

func (s *reader) listDirectory(ctx context.Context, arguments json.RawMessage) (*answer, error) {
	var in struct {
		Path string `json:"path"`
	}
	if err := decode(arguments, &in); err != nil {
		return nil, err
	}
	name, err := s.tree.local(in.Path)
	if err != nil {
		return nil, err
	}
	dir, err := s.tree.root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // it was only read
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list, more, err := names(f, maxListed)
	if err != nil {
		return nil, err
	}
	a := &answer{}
	for _, name := range list {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		info, err := dir.Lstat(name)
		if err != nil {
			continue // gone again
		}
		if !a.line(entry(dir, name, info)) {
			break
		}
	}
	if more || a.full {
		a.note("there are more; find files by name instead")
	}
	if len(list) == 0 {
		a.note("%s is empty", shown(in.Path))
	}
	return a, nil
}

func entry(dir *os.Root, name string, info fs.FileInfo) string {
	switch m := info.Mode(); {
	case m.IsDir():
		return shown(name) + "/"
	case m.IsRegular():
		return fmt.Sprintf("%s\t%d bytes", shown(name), info.Size())
	case m&fs.ModeSymlink != 0:
		target, err := dir.Readlink(name)
		if err != nil {
			target = "?"
		}
		return fmt.Sprintf("%s\tlink to %s", shown(name), shown(target))
	default:
		return fmt.Sprintf("%s\t%s", shown(name), kindOf(m))
	}
}

func (s *reader) findFiles(ctx context.Context, arguments json.RawMessage) (*answer, error) {
	var in struct {
		Pattern string `json:"pattern"`
		Path    string `json:"path"`
	}
	if err := decode(arguments, &in); err != nil {
		return nil, err
	}
	match, err := s.matcher(in.Pattern, in.Path)
	if err != nil {
		return nil, fmt.Errorf("pattern: %w", err)
	}
	a, found := &answer{}, 0
	w := &walk{visit: func(_ *os.Root, _, rel string, _ fs.FileInfo) error {
		if !match(rel) {
			return nil
		}
		if found == maxFound || !a.line(shown(rel)) {
			a.note("there are more; narrow the pattern")
			return errEnough
		}
		found++
		return nil
	}}
	if err := w.over(ctx, s.tree, in.Path); err != nil {
		return nil, err
	}
	a.notes = append(a.notes, w.notes...)
	if found == 0 {
		a.note("no file matches")
	}
	return a, nil
}

// matcher says which files a glob names, by their path below dir.
func (s *reader) matcher(glob, dir string) (func(rel string) bool, error) {
	if glob == "" {
		return nil, errors.New("is missing")
	}
	re, err := globPattern(glob)
	if err != nil {
		return nil, err
	}
	start, err := s.tree.local(dir)
	if err != nil {
		return nil, err
	}
	return func(rel string) bool {
		switch {
		case rel == start: // it was a file that was named
			rel = path.Base(rel)
		case start != ".":
			rel = strings.TrimPrefix(rel, start+"/")
		}
		return re.MatchString(rel)
	}, nil
}

func (s *reader) searchFiles(ctx context.Context, arguments json.RawMessage) (*answer, error) {
	var in struct {
		Pattern string `json:"pattern"`
		Path    string `json:"path"`
		Glob    string `json:"glob"`
		Limit   int    `json:"limit"`
	}
	if err := decode(arguments, &in); err != nil {
		return nil, err
	}
	if in.Pattern == "" || len(in.Pattern) > maxPattern {
		return nil, fmt.Errorf("pattern: must have between 1 and %d bytes", maxPattern)
	}
	re, err := regexp.Compile(in.Pattern)
	if err != nil {
		return nil, fmt.Errorf("pattern: %w", err)
	}
	match := func(string) bool { return true }
	if in.Glob != "" {
		if match, err = s.matcher(in.Glob, in.Path); err != nil {
			return nil, fmt.Errorf("glob: %w", err)
		}
	}
	q := &search{re: re, most: in.Limit, buffer: bufio.NewReaderSize(nil, 64<<10)}
	if q.most <= 0 || q.most > maxMatches {
		q.most = maxMatches
	}
	w := &walk{visit: func(dir *os.Root, name, rel string, info fs.FileInfo) error {
		if !match(rel) {
			return nil
		}
		return q.file(ctx, dir, name, rel, info)
	}}
	if err := w.over(ctx, s.tree, in.Path); err != nil {
		return nil, err
	}
	q.answer.notes = append(q.answer.notes, w.notes...)
	if q.large > 0 {
		q.answer.note("%d files of more than %d MiB were not searched", q.large, maxSearched>>20)
	}
	if q.found == 0 {
		q.answer.note("nothing matches")
	}
	return &q.answer, nil
}

// search is one search on its way through the files.
type search struct {
	re     *regexp.Regexp
	most   int
	buffer *bufio.Reader
	answer answer
	found  int
	large  int
	bytes  int64
}

func (q *search) file(ctx context.Context, dir *os.Root, name, rel string, info fs.FileInfo) error {
	if info.Size() > maxSearched {
		q.large++
		return nil
	}
	if q.bytes += info.Size(); q.bytes > maxSearchAll {
		q.answer.note("stopped after %d MiB; name a directory to search in", maxSearchAll>>20)
		return errEnough
	}
	f, _, err := open(dir, name)
	if err != nil {
		return nil // a file that cannot be read has no line that matches
	}
	defer f.Close()
	// It may have grown since.
	q.buffer.Reset(io.LimitReader(f, maxSearched))
	if binary(q.buffer) {
		return nil
	}
	for n := 1; ; n++ {
		line, long, err := nextLine(ctx, q.buffer, 64<<10)
		if cause := ctx.Err(); cause != nil {
			return cause
		}
		if err != nil {
			return nil // the end of the file, or of what can be read of it
		}
		if !q.re.Match(line) {
			continue
		}
		text := fmt.Sprintf("%s:%d: %s", shown(rel), n, cut(line[:min(len(line), maxMatch)], long))
		if q.found == q.most || !q.answer.line(text) {
			q.answer.note("there are more; narrow the search")
			return errEnough
		}
		q.found++
	}
}
