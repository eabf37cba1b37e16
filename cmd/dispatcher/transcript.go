package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"turnpike/cmd/internal/cli"
	"turnpike/internal/api"
	"turnpike/internal/job"
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

// printEvent prints a transcript: the agent's own lines as they are, or summed up
// for a person.
func printEvent(w io.Writer, raw bool) func(api.Event) error {
	attempt := 0
	return func(e api.Event) error {
		var lines []string
		switch {
		case e.End == "error":
			return fmt.Errorf("the transcript was cut off: %w", job.ErrUnavailable)
		case e.End != "" || raw && e.Line == "":
			return nil
		case raw:
			_, err := fmt.Fprintln(w, e.Line)
			return err
		case e.Dropped > 0:
			lines = []string{fmt.Sprintf("... %d lines were not streamed; the worker's session directory has them", e.Dropped)}
		default:
			lines = sumUp([]byte(e.Line))
		}
		if e.Attempt > 1 && e.Attempt != attempt {
			lines = append([]string{fmt.Sprintf("--- attempt %d", e.Attempt)}, lines...)
		}
		attempt = e.Attempt
		for _, s := range lines {
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
