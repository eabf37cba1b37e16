package worker

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestJournal(t *testing.T) {
	lines := func(t *testing.T, dir string) (all []string) {
		t.Helper()
		if err := (&journal{dir: dir}).recover(func(line []byte) error { all = append(all, string(line)); return nil }); err != nil {
			t.Fatal(err)
		}
		slices.Sort(all)
		return all
	}
	put := func(t *testing.T, j *journal, line string) int {
		t.Helper()
		volume, err := j.put([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		return volume
	}

	t.Run("gives a successor every line that was put and not begun over", func(t *testing.T) {
		dir := t.TempDir()
		j := &journal{dir: dir}
		var all sync.WaitGroup
		var want []string
		for n := range 50 {
			line := fmt.Sprintf(`{"n":%02d}`, n)
			want = append(want, line)
			all.Go(func() { _, _ = j.put([]byte(line)) })
		}
		all.Wait()
		if got := lines(t, dir); !slices.Equal(got, want) {
			t.Errorf("got %v", got)
		}
		if got := lines(t, dir); len(got) != 0 {
			t.Errorf("the second time: %v", got)
		}
	})

	t.Run("begins over once nothing in it is of use", func(t *testing.T) {
		dir := t.TempDir()
		j := &journal{dir: dir}
		first := put(t, j, "one")
		put(t, j, "two")
		j.forget(first)
		j.forget(first)
		put(t, j, "three")
		if got := lines(t, dir); !slices.Equal(got, []string{"three"}) {
			t.Errorf("got %v", got)
		}
	})

	t.Run("takes the other volume when one is full and still of use", func(t *testing.T) {
		dir := t.TempDir()
		j := &journal{dir: dir}
		long := strings.Repeat("x", volumeBytes)
		first := put(t, j, long)
		if second := put(t, j, "two"); second == first {
			t.Error("the full one was taken")
		}
		put(t, j, long)
		// Now both are in use: neither may begin over.
		put(t, j, "four")
		if got := lines(t, dir); !slices.Equal(got, []string{"four", "two", long, long}) {
			t.Errorf("got %d lines", len(got))
		}
	})

	t.Run("leaves out the line a crash cut short", func(t *testing.T) {
		dir := t.TempDir()
		j := &journal{dir: dir}
		volume := put(t, j, "one")
		f, err := os.OpenFile(j.path(volume), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(`{"n":`); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if got := lines(t, dir); !slices.Equal(got, []string{"one"}) {
			t.Errorf("got %v", got)
		}
	})

	t.Run("leaves nothing behind when it is closed with nothing of use in it", func(t *testing.T) {
		dir := t.TempDir()
		j := &journal{dir: dir}
		j.forget(put(t, j, "one"))
		if err := j.close(); err != nil {
			t.Fatal(err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
			t.Errorf("left %v, %v", entries, err)
		}
		put(t, j, "late")
		if got := lines(t, dir); !slices.Equal(got, []string{"late"}) {
			t.Errorf("got %v", got)
		}
	})

	t.Run("keeps what recovery could not keep", func(t *testing.T) {
		dir := t.TempDir()
		put(t, &journal{dir: dir}, "one")
		j := &journal{dir: dir}
		if err := j.recover(func([]byte) error { return os.ErrPermission }); err == nil {
			t.Error("want to hear of it")
		}
		j.forget(put(t, j, "two"))
		put(t, j, "three")
		if got := lines(t, dir); !slices.Equal(got, []string{"one", "three", "two"}) {
			t.Errorf("got %v", got)
		}
	})

	t.Run("sets aside what is no report", func(t *testing.T) {
		s := spool{t.TempDir(), t.TempDir()}
		if err := s.keepFromJournal([]byte(`{"version":99}`)); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(s.rejected)
		if err != nil || len(entries) != 1 || !strings.HasPrefix(entries[0].Name(), "journal-") {
			t.Errorf("set aside %v, %v", entries, err)
		}
		if b, err := os.ReadFile(s.rejected + "/" + entries[0].Name()); err != nil || !bytes.Contains(b, []byte("99")) {
			t.Errorf("it says %q, %v", b, err)
		}
	})
}
