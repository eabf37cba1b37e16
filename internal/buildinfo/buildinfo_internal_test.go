package buildinfo

import (
	"runtime/debug"
	"testing"
)

func TestDescribe(t *testing.T) {
	const revision = "0123456789abcdef0123456789abcdef01234567"
	vcs := []debug.BuildSetting{{Key: "vcs.revision", Value: revision}}
	for name, c := range map[string]struct {
		version, commit string
		info            debug.BuildInfo
		want            string
	}{
		"as the linker was told": {version: "v1.2.0", commit: "abc", info: debug.BuildInfo{Settings: vcs}, want: "v1.2.0 (abc)"},
		"a plain build":          {info: debug.BuildInfo{Settings: vcs}, want: "(devel) (0123456789ab)"},
		"a pseudo-version": {
			info: debug.BuildInfo{Main: debug.Module{Version: "v0.0.0-20260101000000-0123456789ab"}, Settings: vcs},
			want: "v0.0.0-20260101000000-0123456789ab",
		},
		"a commit without a tag": {version: "0123456-dirty", commit: revision, want: "0123456-dirty"},
		"nothing recorded":       {want: "(devel)"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := describe(c.version, c.commit, &c.info); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
