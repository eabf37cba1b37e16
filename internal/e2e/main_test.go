package e2e_test

import (
	"os"
	"testing"
)

// cleaned runs the tests and then removes the programs that were built for them.
type cleaned struct {
	*testing.M
	dir string
}

func (c cleaned) Run() int {
	code := c.M.Run()
	os.RemoveAll(c.dir)
	return code
}
