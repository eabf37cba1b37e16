//go:build amd64 || arm64

package confine

import (
	"os"

	"turnpike/internal/agent"
)

// systemPaths are what programs need to start, find their libraries, resolve names,
// check certificates and tell the time. They are named one by one: /etc holds
// credentials, /run holds sockets, /var holds other programs' data.
var systemPaths = []string{
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
	"/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
	"/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/ca-certificates", "/etc/pki/tls",
	"/etc/pki/ca-trust", "/etc/crypto-policies",
	"/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/gai.conf", "/etc/nsswitch.conf",
	"/etc/services", "/etc/protocols",
	"/etc/passwd", "/etc/group", "/etc/localtime", "/etc/timezone", "/etc/os-release", "/etc/mime.types",
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
