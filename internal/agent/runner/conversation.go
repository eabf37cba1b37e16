package runner

import (
	"errors"
	"fmt"
	"io/fs"

	"turnpike/internal/agent"
	"turnpike/internal/agent/session"
)

// conversations is how the driver knows the files of a conversation; nil when it does
// not.
func (t *turn) conversations() agent.Conversations {
	c, _ := t.driver.(agent.Conversations)
	return c
}

func (t *turn) about(id string) session.About {
	return session.About{Agent: t.req.Profile.AgentName(), Conversation: id, WorkDir: t.launch.WorkDir}
}

// continueConversation puts the conversation that the request goes on with into the
// CLI's fresh home. A turn whose conversation cannot be had as it was is refused: to
// begin anew is for who asked to decide.
func (t *turn) continueConversation() error {
	id := t.req.ResumeID
	if id == "" {
		return nil
	}
	err := t.dir.RestoreConversation(t.about(id), t.partOf(id))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: conversation %.64q is not kept here", agent.ErrUnsupported, id)
	case errors.Is(err, session.ErrBundle):
		return fmt.Errorf("%w: conversation %.64q: %w", agent.ErrUnsupported, id, err)
	}
	return err
}

// keepConversation keeps the files by which the conversation can go on elsewhere.
func (u *running) keepConversation(id string) {
	if id == "" || u.conversations() == nil {
		return
	}
	err := u.dir.KeepConversation(u.about(id), u.partOf(id))
	if err != nil && !errors.Is(err, session.ErrNoConversation) {
		u.note("the conversation cannot be continued: %v", err)
	}
}

func (t *turn) partOf(id string) func(string) bool {
	return func(name string) bool { return t.conversations().ConversationFile(id, name) }
}
