package e2e_test

import (
	"fmt"
	"os"
	"testing"
)

// cleaned runs the tests, with an eye on every command line there is, and then removes the
// programs that were built for them.
type cleaned struct {
	*testing.M
	dir string
}

func (c cleaned) Run() int {
	stop := watchArguments()
	code := c.M.Run()
	for _, seen := range stop() {
		fmt.Fprintln(os.Stderr, "a credential was in a command line:", seen)
		code = 1
	}
	os.RemoveAll(c.dir)
	return code
}
