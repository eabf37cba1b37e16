package pi

import (
	"path"
	"strings"

	"turnpike/internal/agent"
)

var _ agent.Conversations = Driver{}

// ConversationFile implements agent.Conversations. The CLI keeps a conversation as
// sessions/TIME_ID.jsonl.
func (Driver) ConversationFile(conversation, name string) bool {
	dir, file := path.Split(name)
	return conversationID.MatchString(conversation) && dir == sessionsDir+"/" && strings.HasSuffix(file, "_"+conversation+".jsonl")
}
