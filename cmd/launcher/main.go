// Command launcher starts turns for the worker that lies beside it. The worker could
// do so itself, and does where this program is missing or of another build. But a turn
// begins with an execution of its launcher, and all that a program links is set up
// each time.
package main

import (
	"fmt"
	"os"

	"turnpike/internal/agent/confine"
	"turnpike/internal/buildinfo"
)

func main() {
	confine.Entry()
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println(buildinfo.String())
		return
	}
	fmt.Fprintln(os.Stderr, "launcher: started by the worker, not by people")
	os.Exit(2)
}
