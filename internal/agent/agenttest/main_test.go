package agenttest_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"turnpike/internal/agent/procs"
)

func TestMain(m *testing.M) {
	procs.Entry()
	if slices.Equal(os.Args[1:], reportServer) {
		if err := serveReports(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// reportServer are the arguments that make this test binary an MCP server on its
// standard streams.
var reportServer = []string{"report-server"}

type report struct {
	Status string `json:"status"`
	Note   string `json:"note"`
}

func serveReports(ctx context.Context) error {
	s := mcp.NewServer(&mcp.Implementation{Name: "turnpike", Version: "1"}, nil)
	tool := &mcp.Tool{Name: "report_outcome", Description: "Report how the work ended", InputSchema: map[string]any{
		"type": "object",
		"properties": map[string]any{
			"status": map[string]any{"type": "string", "enum": []string{"merged", "stuck"}},
			"note":   map[string]any{"type": "string"},
		},
		"required": []string{"status"},
	}}
	mcp.AddTool(s, tool, func(_ context.Context, _ *mcp.CallToolRequest, r report) (*mcp.CallToolResult, any, error) {
		said := fmt.Sprintf("%s: %s (%s)", r.Status, r.Note, os.Getenv("SEEN_BY_SERVER"))
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: said}}}, nil, nil
	})
	return s.Run(ctx, &mcp.StdioTransport{})
}
