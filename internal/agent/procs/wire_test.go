package procs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"turnpike/internal/agent"
	"turnpike/internal/agent/procs"
)

// TestFailure: what a machine cannot do refuses a turn for good, what it is short of
// for now does not.
func TestFailure(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err, want error
	}{
		"what the kernel forbids":        {&fs.PathError{Op: "mount", Path: "/", Err: syscall.EPERM}, agent.ErrUnsupported},
		"what it does not know":          {syscall.ENOSYS, agent.ErrUnsupported},
		"too many processes":             {fmt.Errorf("fork: %w", syscall.EAGAIN), agent.ErrUnready},
		"no memory":                      {syscall.ENOMEM, agent.ErrUnready},
		"too many open files":            {&fs.PathError{Op: "open", Path: "/proc", Err: syscall.EMFILE}, agent.ErrUnready},
		"what its finder knows better":   {fmt.Errorf("%w: %w", agent.ErrPolicyChanged, syscall.ENOMEM), agent.ErrPolicyChanged},
		"what is no error of the system": {errors.New("4 descriptors"), agent.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := procs.NewFailure("step", test.err, agent.ErrUnsupported)
			for _, kind := range []error{agent.ErrUnsupported, agent.ErrUnready, agent.ErrPolicyChanged} {
				if errors.Is(f, kind) != errors.Is(test.want, kind) {
					t.Errorf("%v is %v: %v", f, kind, errors.Is(f, kind))
				}
			}
		})
	}
}
