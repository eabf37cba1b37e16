package codex

import (
	"path"
	"strings"

	"turnpike/internal/agent"
)

var _ agent.Conversations = Driver{}

// ConversationFile implements agent.Conversations. The CLI keeps a conversation as
// sessions/YEAR/MONTH/DAY/rollout-TIME-ID.jsonl.
func (Driver) ConversationFile(conversation, name string) bool {
	dir, file := path.Split(name)
	return conversationID.MatchString(conversation) && strings.HasPrefix(name, "sessions/") && strings.Count(dir, "/") == 4 &&
		strings.HasPrefix(file, "rollout-") && strings.HasSuffix(file, "-"+conversation+".jsonl")
}
