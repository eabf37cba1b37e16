package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"turnpike/cmd/internal/cli"
)

// event is what the agents' events have in common enough to sum them up in a
// line. Fields that an event lacks, or has in another form, stay empty.
type event struct {
	Type    string `json:"type"`
	Subtype string `json:"subtype"`
	Model   string `json:"model"`
	Result  string `json:"result"`
	Message struct {
		Content json.RawMessage `json:"content"`
	} `json:"message"`
}

// block is a part of a message's content.
type block struct {
	Type    string          `json:"type"`
	Text    string          `json:"text"`
	Name    string          `json:"name"`
	Input   json.RawMessage `json:"input"`
	Content json.RawMessage `json:"content"`
}

// maxShown bounds what one block shows of itself.
const maxShown = 160

// printLine prints an agent's event as it is, or summed up for a person.
func printLine(w io.Writer, raw bool) func([]byte) error {
	return func(line []byte) error {
		if raw {
			_, err := w.Write(line)
			return err
		}
		for _, s := range sumUp(line) {
			if _, err := fmt.Fprintln(w, cli.OneLine(s)); err != nil {
				return err
			}
		}
		return nil
	}
}

// sumUp says in lines what one event tells; an event of no interest says nothing,
// and a line that is no event is shown as it is.
func sumUp(line []byte) []string {
	var e event
	if err := json.Unmarshal(line, &e); err != nil {
		return []string{clip(string(bytes.TrimSpace(line)), maxShown)}
	}
	switch e.Type {
	case "system":
		if e.Subtype == "init" {
			return []string{"--- started, model " + e.Model}
		}
		return nil
	case "result":
		return []string{"--- ended: " + strings.TrimSpace(e.Subtype+" "+clip(e.Result, maxShown))}
	case "assistant", "user":
		return blocks(e.Message.Content)
	}
	return nil
}

func blocks(content json.RawMessage) []string {
	var bs []block
	if json.Unmarshal(content, &bs) != nil {
		return nil // a plain string: the prompt itself
	}
	var out []string
	for _, b := range bs {
		switch b.Type {
		case "text":
			if t := strings.TrimSpace(b.Text); t != "" {
				out = append(out, clip(t, maxShown))
			}
		case "tool_use":
			out = append(out, "> "+b.Name+" "+clip(string(b.Input), maxShown))
		case "tool_result":
			out = append(out, "< "+clip(strings.Trim(string(b.Content), `"`), maxShown))
		}
	}
	return out
}
