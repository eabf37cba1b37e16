package agent

import "slices"

var (
	vcsCommands = []string{
		"git", "scalar", "gh", "glab", "hg", "chg", "jj", "svn", "svnadmin", "svnlook", "svnserve", "svnsync",
		"bzr", "brz", "darcs", "fossil",
	}
	commandDirs = []string{
		"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/snap/bin",
		"/opt/homebrew/bin", "/opt/local/bin",
	}
	vcsTrees = []string{
		"/usr/lib/git-core", "/usr/libexec/git-core", "/usr/local/lib/git-core", "/usr/local/libexec/git-core",
	}
)

// VCSCommands are the names of version control's executables.
func VCSCommands() []string { return slices.Clone(vcsCommands) }

// CommandDirs are where executables are, beside the directories of a PATH.
func CommandDirs() []string { return slices.Clone(commandDirs) }

// VCSTrees are the directories of git's own programs, each of which would do for the
// whole.
func VCSTrees() []string { return slices.Clone(vcsTrees) }
