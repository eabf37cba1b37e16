package pi

import (
	"fmt"
	"path/filepath"
	"regexp"

	"turnpike/internal/agent"
)

// What the CLI fetches packages from. Shorthands that leave the host out are not among it:
// where code comes from is to be read in its source.
var (
	npmSource = regexp.MustCompile(`^npm:((?:@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*)(?:@[A-Za-z0-9^~][A-Za-z0-9.^~+_-]*)?$`)
	gitSource = regexp.MustCompile(`^(?:(?:git:)?(?:https?|ssh|git)://(?:[a-z][a-z0-9_-]*@)?|git:(?:git@)?)` +
		`([a-z0-9-]+(?:\.[a-z0-9-]+)+|localhost)(?::[0-9]+)?[/:]((?:[A-Za-z0-9_.-]+/)+[A-Za-z0-9_.-]+?)(?:\.git)?` +
		`(?:@[A-Za-z0-9][A-Za-z0-9._/+-]*)?$`)
)

// fetched is a package that the CLI fetches as it starts, into some directory beneath Store
// of its own for such packages.
type fetched struct {
	Source string `json:"source"`
	Store  string `json:"store"`
	Path   string `json:"path"`
}

// packages gives the profile's packages as the CLI is to be told of them, and those that it
// will fetch. It does so inside whatever holds the turn.
func packages(l agent.Launch) (sources []string, fetches []fetched, err error) {
	for _, source := range l.Request.Profile.PiPackages {
		refuse := func(kind error, why string) ([]string, []fetched, error) {
			return nil, nil, fmt.Errorf("pi: package %.128q: %w: %s", source, kind, why)
		}
		npm, git := npmSource.FindStringSubmatch(source), gitSource.FindStringSubmatch(source)
		switch {
		case filepath.IsAbs(source) && filepath.Clean(source) == source:
			if l.Turn.Binds == nil { // or it lies elsewhere on the host
				if source, err = filepath.EvalSymlinks(source); err != nil {
					return nil, nil, unready("find a package of pi", err)
				}
			}
		case npm != nil:
			fetches = append(fetches, fetched{source, "npm", "node_modules/" + npm[1]})
		case git != nil && !l.Turn.VCS:
			return refuse(agent.ErrNotGranted, "git fetches it, which the turn is not granted: vcs_access and grants.vcs")
		case git != nil:
			fetches = append(fetches, fetched{source, "git-" + git[1], git[2]})
		default:
			return refuse(agent.ErrUnsupported, "it is npm:NAME@VERSION, git:HOST/PATH@REF, a URL of a git repository, or an absolute path")
		}
		if c := l.Turn.Confinement; (npm != nil || git != nil) && c != nil && !c.Network.Open && (!c.Network.Proxied || c.Network.Domains != nil && len(c.Network.Domains) == 0) {
			return refuse(agent.ErrUnsupported, "the turn has no network to fetch it by; put it into a directory and name that")
		}
		sources = append(sources, source)
	}
	return sources, fetches, nil
}

// offline is the CLI's switch for what it fetches by itself. Of its parts only the one that
// fetches packages reads what the variable says; to the others it is enough that it is set.
func offline(fetches []fetched) string {
	if len(fetches) > 0 {
		return "PI_OFFLINE=0"
	}
	return "PI_OFFLINE=1"
}
