//go:build linux

package procs_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"turnpike/internal/agent/procs"
)

func TestFamily(t *testing.T) {
	type table = []procs.Kin
	program := procs.Kin{PID: 10, Parent: 5, Group: 10, Start: 100}
	stranger := procs.Kin{PID: 3, Parent: 1, Group: 3, Start: 1}
	for name, c := range map[string]struct {
		tables []table
		want   [][]int
	}{
		"children and theirs": {
			[]table{{program, stranger, {PID: 12, Parent: 11, Group: 12, Start: 102}, {PID: 11, Parent: 10, Group: 10, Start: 101}}},
			[][]int{{10, 12, 11}},
		},
		"a daemon in the program's group": {
			[]table{{program, {PID: 11, Parent: 1, Group: 10, Start: 101}, stranger}},
			[][]int{{10, 11}},
		},
		"a daemon that was seen before it left": {
			[]table{
				{program, {PID: 11, Parent: 10, Group: 10, Start: 101}},
				{program, {PID: 11, Parent: 1, Group: 11, Start: 101}, stranger},
				{{PID: 11, Parent: 1, Group: 11, Start: 101}, {PID: 13, Parent: 11, Group: 13, Start: 103}, stranger},
			},
			[][]int{{10, 11}, {10, 11}, {11, 13}},
		},
		"a daemon that left at once but bears the marker": {
			[]table{{program, {PID: 11, Parent: 1, Group: 11, Start: 101, Marked: true}, stranger}},
			[][]int{{10, 11}},
		},
		"the marker of one that has a parent proves nothing": { // another turn's, of the same session
			[]table{{program, {PID: 11, Parent: 3, Group: 11, Start: 101, Marked: true}, stranger}},
			[][]int{{10}},
		},
		"a number that came round is somebody else's": {
			[]table{
				{program, {PID: 11, Parent: 10, Group: 11, Start: 101}},
				{program},
				{program, {PID: 11, Parent: 1, Group: 11, Start: 900}},
			},
			[][]int{{10, 11}, {10}, {10}},
		},
		"the same number at another start is somebody else's": {
			[]table{
				{program, {PID: 11, Parent: 10, Group: 10, Start: 101}},
				{program, {PID: 11, Parent: 3, Group: 3, Start: 900}, stranger},
			},
			[][]int{{10, 11}, {10}},
		},
		"the program is gone and its group lives": {
			[]table{
				{program, {PID: 11, Parent: 10, Group: 10, Start: 101}},
				{{PID: 11, Parent: 1, Group: 10, Start: 101}, {PID: 12, Parent: 1, Group: 10, Start: 102}},
			},
			[][]int{{10, 11}, {11, 12}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, procs.Family(c.tables...)); diff != "" {
				t.Errorf("found (-want +got):\n%s", diff)
			}
		})
	}
}
