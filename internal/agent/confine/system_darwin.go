package confine

import (
	"os"

	"turnpike/internal/agent"
)

// systemPaths are what programs need to start, find their libraries, check certificates
// and tell the time. They are named one by one: /Library and /private hold the data of
// services, and a package manager's var and etc that of its own.
var systemPaths = []string{
	"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/libexec", "/usr/share",
	"/System/Library", "/System/Cryptexes", "/Library/Apple/usr",
	"/System/Volumes/Preboot/Cryptexes", // where the dynamic loader keeps the system's libraries
	"/Library/Developer/CommandLineTools",
	"/usr/local/bin", "/usr/local/lib", "/usr/local/opt", "/usr/local/share", "/usr/local/Cellar",
	"/opt/homebrew/bin", "/opt/homebrew/lib", "/opt/homebrew/opt", "/opt/homebrew/share", "/opt/homebrew/Cellar",
	"/private/etc/ssl", "/private/etc/hosts", "/private/etc/resolv.conf", "/private/etc/services", "/private/etc/protocols",
	"/private/etc/localtime", "/private/etc/shells", "/private/etc/paths", "/private/etc/paths.d",
	"/private/etc/profile", "/private/etc/bashrc", "/private/etc/zshrc", "/private/etc/passwd", "/private/etc/group",
	"/private/var/select", "/private/var/db/timezone", "/private/var/run/resolv.conf",
}

// DefaultSystemPaths are the system paths this machine has, read-only.
func DefaultSystemPaths() []agent.Mount {
	var out []agent.Mount
	for _, p := range systemPaths {
		if _, err := os.Lstat(p); err == nil {
			out = append(out, agent.Mount{Path: p, Access: agent.ReadOnly})
		}
	}
	return out
}
