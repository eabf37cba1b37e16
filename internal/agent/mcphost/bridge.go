package mcphost

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// bridgeArg as the first argument makes a program that calls Entry the bridge.
const bridgeArg = "mcp-bridge"

// The bridge's first line is the greeting and the token, the host's answer the
// welcome. What follows is MCP.
const (
	greeting    = "turnpike-tools/1 "
	welcome     = "ok\n"
	maxGreeting = 256
)

// Entry belongs first in the main of every program that starts turns, and first in
// TestMain where a test does. If the process was started as a bridge it copies its
// standard streams to the socket and from it, and exits; else Entry returns at once.
func Entry() {
	if len(os.Args) < 2 || os.Args[1] != bridgeArg {
		return
	}
	if err := bridge(os.Args[2:], os.Getenv(TokenEnv), os.Stdin, os.Stdout); err != nil { //nolint:forbidigo // this is main, of the bridge
		fmt.Fprintf(os.Stderr, "%s: %v\n", bridgeArg, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// bridge copies between in and out and the socket that args name, until the host
// ends it. It may leave a read of in behind.
func bridge(args []string, token string, in io.Reader, out io.Writer) error {
	if len(args) != 1 || !filepath.IsAbs(args[0]) {
		return errors.New("takes the absolute path of a turn's tool socket; agents start it, people do not")
	}
	if token == "" {
		return fmt.Errorf("%s is not set", TokenEnv)
	}
	// A socket's address is shorter than a path may be. This process does
	// nothing else, so it can afford to change its directory.
	if err := os.Chdir(filepath.Dir(args[0])); err != nil {
		return fmt.Errorf("reach the turn's tools: %w", err)
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: filepath.Base(args[0])})
	if err != nil {
		return fmt.Errorf("reach the turn's tools: %w", err)
	}
	defer func() { _ = conn.Close() }() // the process ends with it
	if _, err := io.WriteString(conn, greeting+token+"\n"); err != nil {
		return fmt.Errorf("greet the turn's tools: %w", err)
	}
	answer := make([]byte, len(welcome))
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != welcome {
		return errors.New("the turn's tools refused the connection: another turn's token, or the turn is over")
	}
	go func() {
		if _, err := io.Copy(conn, in); err != nil {
			_ = conn.Close() // ends the copy below as well
			return
		}
		_ = conn.CloseWrite() // the host ends the session, which ends the copy below
	}()
	if _, err := io.Copy(out, conn); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("copy from the turn's tools: %w", err)
	}
	return nil
}

// greeted reads the first line and says whether it is the greeting with the token.
// It reads byte by byte, so that what follows the line stays unread.
func greeted(r io.Reader, token string) bool {
	line := make([]byte, 0, maxGreeting)
	var b [1]byte
	for len(line) < maxGreeting {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return false
		}
		if b[0] == '\n' {
			given, ok := strings.CutPrefix(string(line), greeting)
			return ok && token != "" && subtle.ConstantTimeCompare([]byte(given), []byte(token)) == 1
		}
		line = append(line, b[0])
	}
	return false
}
