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
	vcsVariables = []string{
		"GIT_*", "SSH_AUTH_SOCK", "SSH_AGENT_PID", "SSH_ASKPASS*",
		"GH_*", "GITHUB_TOKEN", "GITHUB_PAT", "GITHUB_ENTERPRISE_TOKEN", "GITHUB_API_TOKEN", "HUB_*",
		"GITLAB_TOKEN", "GITLAB_ACCESS_TOKEN", "GITLAB_PRIVATE_TOKEN", "GL_TOKEN", "GLAB_*", "CI_JOB_TOKEN",
		"GITEA_TOKEN", "FORGEJO_TOKEN", "BITBUCKET_*",
		"HG", "HGRCPATH", "HGUSER", "HGMERGE", "HGPLAIN*", "HG_*",
		"JJ_*", "SVN_*", "SVN", "BZR_*", "BRZ_*", "FOSSIL_*", "DARCS_*",
	}
)

// VCSCommands are the names of version control's executables.
func VCSCommands() []string { return slices.Clone(vcsCommands) }

// CommandDirs are where executables are, beside the directories of a PATH.
func CommandDirs() []string { return slices.Clone(commandDirs) }

// VCSTrees are the directories of git's own programs, each of which would do for the
// whole.
func VCSTrees() []string { return slices.Clone(vcsTrees) }

// VCSVariables are the names of variables that carry version control's identity,
// credentials or configuration; one that ends in "*" is a prefix.
func VCSVariables() []string { return slices.Clone(vcsVariables) }
