// Command provider serves the scripted model provider by itself, for trying
// an agent CLI by hand and for the demo. It calls no model and needs no key.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"

	"turnpike/internal/agent/agenttest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("provider", flag.ContinueOnError)
	flags.SetOutput(errs)
	addr := flags.String("addr", "127.0.0.1:8399", "`address` to listen on")
	flags.Usage = func() {} // help was asked for, or the error says enough
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		usage(flags, out)
		return 0
	case err != nil:
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(errs, "provider: unexpected argument %q\n", flags.Arg(0))
		return 2
	}
	if err := serve(ctx, *addr, out, errs); err != nil {
		fmt.Fprintf(errs, "provider: %v\n", err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, addr string, out, errs io.Writer) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	p := &agenttest.Provider{Forget: true, Log: slog.New(slog.NewTextHandler(errs, nil))}
	for _, s := range agenttest.Scenarios() {
		p.Script(s.Name, s.Steps...)
	}
	base := "http://" + l.Addr().String()
	fmt.Fprintf(out, "The scripted provider listens on %s. Set ANTHROPIC_BASE_URL to one of these;\n"+
		"a base URL of OpenAI's APIs has /v1 after it.\n\n", base)
	scenarios(out, base)
	return p.Serve(ctx, l)
}

func usage(flags *flag.FlagSet, out io.Writer) {
	flags.SetOutput(out)
	fmt.Fprint(out, "Usage: provider [--addr HOST:PORT]\n\n",
		"Serves the Anthropic Messages API and, with /v1 after the base URL, OpenAI's\n",
		"Responses and chat completions, from scripts. The base URL's path names the\n",
		"scenario; without one it is ", agenttest.DefaultScript, ".\n\n")
	flags.PrintDefaults()
	fmt.Fprintln(out, "\nScenarios:")
	scenarios(out, "")
}

func scenarios(out io.Writer, base string) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, s := range agenttest.Scenarios() {
		fmt.Fprintf(w, "  %s/s/%s\t%s\n", base, s.Name, s.About)
	}
	w.Flush()
}
