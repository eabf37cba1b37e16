package mcphost

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnpike/internal/agent"
)

const (
	Greeting = greeting
	Welcome  = welcome
	MaxConns = maxConns
)

func Greeted(r io.Reader, token string) bool { return greeted(r, token) }

func (r Report) Parse(arguments json.RawMessage) (agent.Outcome, error) { return r.parse(arguments) }

// Glob is the regular expression a glob is taken as.
var Glob = globPattern

const (
	MaxText    = maxText
	MaxMatches = maxMatches
	MaxDepth   = maxDepth
)

// ReadTools are the tools of a read server without the server, by number.
func ReadTools(f *testing.F, dir string) func(tool int, arguments []byte) string {
	root, err := os.OpenRoot(dir)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = root.Close() })
	s := &reader{tree: tree{root: root, shown: "/workspace"}, over: context.Background(), turns: make(chan struct{}, 1)}
	tools := []func(context.Context, json.RawMessage) (*answer, error){s.readFile, s.listDirectory, s.findFiles, s.searchFiles}
	return func(tool int, arguments []byte) string {
		var all string
		for _, c := range s.call(context.Background(), arguments, tools[tool]).Content {
			all += c.(*mcp.TextContent).Text
		}
		return all
	}
}

// Announcement reads the port of a line that announces one.
var Announcement = announcement
