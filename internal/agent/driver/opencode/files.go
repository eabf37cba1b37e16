package opencode

import "turnpike/internal/agent"

var _ agent.Conversations = Driver{}

// ConversationFile implements agent.Conversations. It is a file of the plugin's: the
// CLI's own database also holds what configures it.
func (Driver) ConversationFile(conversation, name string) bool {
	return conversationID.MatchString(conversation) && name == conversationFile
}
