// Package cli is what the two programs share towards the person who types:
// settings from file, environment and flags, output formats, exit codes, logging
// and stopping on a signal. It knows no command.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"turnpike/internal/agent"
	"turnpike/internal/buildinfo"
	"turnpike/internal/job"
	"turnpike/internal/store"
)

// Exit codes, for scripts.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitNotFound    = 3
	ExitRefused     = 4
	ExitUnavailable = 5
)

// ErrUsage marks an error of the command line or of the settings.
var ErrUsage = errors.New("usage")

// Usagef is an ErrUsage that says what to do.
func Usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

type usageError struct{ err error }

func (e *usageError) Error() string   { return e.err.Error() }
func (e *usageError) Unwrap() []error { return []error{e.err, ErrUsage} }

// ErrFailed is an error whose message was already shown; only the exit code is left.
var ErrFailed = errors.New("failed")

// exits maps kinds to exit codes; the first that fits decides.
var exits = []struct {
	kind error
	code int
}{
	{ErrUsage, ExitUsage},
	{job.ErrInvalid, ExitUsage},
	{job.ErrNotFound, ExitNotFound},
	{agent.ErrNotGranted, ExitRefused},
	{agent.ErrUnsupported, ExitRefused},
	{agent.ErrPolicyChanged, ExitRefused},
	{agent.ErrMissing, ExitRefused},
	{job.ErrFinished, ExitRefused},
	{job.ErrConflict, ExitRefused},
	{job.ErrDenied, ExitRefused},
	{job.ErrCeiling, ExitRefused},
	{job.ErrLeaseLength, ExitRefused},
	{job.ErrQueueFull, ExitRefused},
	{agent.ErrUnready, ExitUnavailable},
	{job.ErrUnavailable, ExitUnavailable},
	{store.ErrSchema, ExitUnavailable},
}

// ExitCode is the code a program ends with for err.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	for _, e := range exits {
		if errors.Is(err, e.kind) {
			return e.code
		}
	}
	return ExitFailed
}

// Prepare has root leave its errors to whoever runs it, those of flags as ones of usage.
func Prepare(root *cobra.Command) {
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return Usagef("%w (see %s --help)", err, cmd.CommandPath())
	})
}

// Main runs root and returns the exit code. SIGINT and SIGTERM end the command's
// context; a second one ends the program at once.
func Main(root *cobra.Command) int {
	root.Version = buildinfo.String()
	Prepare(root)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the default action is back for a second signal
	err := root.ExecuteContext(ctx)
	if err != nil && !errors.Is(err, ErrFailed) {
		complain(root.ErrOrStderr(), root.Name(), err)
	}
	return ExitCode(err)
}

// complain writes err for a person, one problem of a request a line.
func complain(w io.Writer, program string, err error) {
	if v, ok := errors.AsType[job.Invalid](err); ok && len(v) > 1 {
		fmt.Fprintf(w, "%s: the request has %d problems:\n", program, len(v))
		for _, fe := range v {
			fmt.Fprintf(w, "  %v\n", fe)
		}
		return
	}
	fmt.Fprintf(w, "%s: %v\n", program, err)
}

// Args wraps a cobra argument check so that its error is one of usage.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return Usagef("%w\nusage: %s", err, cmd.UseLine())
		}
		return nil
	}
}

// Group is the Run of a command that only holds others: it shows its help, and
// refuses a subcommand that does not exist.
func Group(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usagef("no command %q; see %s --help", args[0], cmd.CommandPath())
	}
	return cmd.Help()
}

// Logger writes to w: text for a person at a terminal, JSON otherwise, unless
// format says which.
func Logger(w io.Writer, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, Usagef("log level %q: want debug, info, warn or error", level)
	}
	o := &slog.HandlerOptions{Level: l}
	switch {
	case format == "text", format == "" && IsTerminal(w):
		return slog.New(slog.NewTextHandler(w, o)), nil
	case format == "json", format == "":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, Usagef("log format %q: want text or json", format)
}

// IsTerminal says whether w is a terminal.
func IsTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Colour says whether output to w may be coloured.
func Colour(w any) bool {
	return IsTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// ReadInput reads a file, or standard input for "-", up to one byte over most.
func ReadInput(cmd *cobra.Command, name string, most int64) ([]byte, error) {
	if name == "-" {
		b, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), most+1))
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		return b, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, Usagef("%w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, Usagef("read %s: %w", name, err)
	}
	return b, nil
}

// Secret gives the value of a setting that is a secret: the value itself, from
// the environment or the settings file, or the content of the file that
// <name>-file names. Never a flag: every user sees the arguments of a program.
func (s *Settings) Secret(name string) (string, error) {
	file := s.String(name + "-file")
	if file == "" {
		return s.String(name), nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", Usagef("%s-file: %w", name, err)
	}
	return strings.TrimSpace(string(b)), nil
}
