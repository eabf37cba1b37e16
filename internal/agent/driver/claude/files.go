package claude

import (
	"strings"

	"turnpike/internal/agent"
)

var _ agent.Conversations = Driver{}

// ConversationFile implements agent.Conversations. The CLI keeps a conversation as
// projects/DIRECTORY/ID.jsonl, and what its subagents said and its tools gave at length
// in a directory beside it, projects/DIRECTORY/ID/. What it remembers of a project and
// what it is configured by stand elsewhere.
func (Driver) ConversationFile(conversation, name string) bool {
	parts := strings.Split(name, "/")
	if !conversationID.MatchString(conversation) || len(parts) < 3 || parts[0] != "projects" {
		return false
	}
	if len(parts) == 3 {
		return parts[2] == conversation+".jsonl"
	}
	return parts[2] == conversation && len(parts) == 5 && (parts[3] == "subagents" || parts[3] == "tool-results")
}
