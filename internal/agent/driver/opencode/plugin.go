package opencode

import (
	_ "embed" // for the plugin
	"encoding/json"
	"fmt"
	"time"
)

//go:embed plugin.js
var source string

// patience is how soon a limit must pass to be a throttled provider's and not one that
// is used up.
const patience = time.Minute

// rules are what the plugin keeps.
type rules struct {
	Turns    int      `json:"turns"`   // 0 is no limit
	Retries  int      `json:"retries"` // of one request
	Patience int64    `json:"patience"`
	Granted  []string `json:"granted"` // tools by their names, or beginnings ending in *; null is all
	Denied   []string `json:"denied"`

	Resume       string `json:"resume"`       // the conversation to go on with
	Conversation string `json:"conversation"` // the file it is kept in
	Database     string `json:"database"`     // the CLI's own
}

// needed says whether a turn must not go on without the plugin.
func (r rules) needed() bool { return r.Turns > 0 || r.Granted != nil || len(r.Denied) > 0 }

// plugin is the code that the CLI runs for the driver.
func plugin(r rules) ([]byte, error) {
	if r.Denied == nil {
		r.Denied = []string{}
	}
	r.Patience = patience.Milliseconds()
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("configure opencode: %w", err)
	}
	return fmt.Appendf(nil, "const settings = %s;\n\n%s", data, source), nil
}
