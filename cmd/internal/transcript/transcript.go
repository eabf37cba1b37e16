// Package transcript puts what an agent printed into lines for a person: what it said,
// whole, and each tool call and its result on a line of their own. It knows the events
// of all four agents, which never look alike, and so asks nobody which one it was.
//
// It only reads. What a turn proves is the drivers' to say, and what it cost stands in
// its attempt.
package transcript

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"turnpike/cmd/internal/cli"
)

// most bounds what is shown of a tool call or its result, in characters.
const most = 160

// Lines says what one line of an agent's output tells. An event of no interest says
// nothing, and what is no event is shown as it is. Nothing of it can steer a terminal.
func Lines(event []byte) []string {
	var e struct {
		Type   string `json:"type"`
		Method string `json:"method"`
		Result struct {
			Model string `json:"model"`
		} `json:"result"`
	}
	if !decode(event, &e) {
		if s := fold(string(event)); s != "" {
			return []string{s}
		}
		return nil
	}
	switch e.Type {
	case "system", "assistant", "user", "result":
		return claude(e.Type, event)
	case "turnpike", "text", "tool_use", "error":
		return openCode(e.Type, event)
	case "response", "message_end", "tool_execution_start", "tool_execution_end", "extension_error", "agent_settled":
		return pi(e.Type, event)
	case "":
		if e.Method != "" {
			return codex(e.Method, event)
		}
		if e.Result.Model != "" {
			return started(e.Result.Model)
		}
	}
	return nil
}

// decode reads a JSON object; a member of another type than expected is left out.
func decode(data []byte, into any) bool {
	err := json.Unmarshal(data, into)
	mismatch := (*json.UnmarshalTypeError)(nil)
	return (err == nil || errors.As(err, &mismatch)) && bytes.HasPrefix(bytes.TrimSpace(data), []byte("{"))
}

func started(model string) []string { return []string{"--- started, model " + fold(model)} }

// ended is the agent's own word for how the turn ended.
func ended(how string) []string { return []string{"--- ended: " + fold(how)} }

func failed(what string) []string { return []string{"! " + fold(what)} }

// said is text of the agent, whole.
func said(text string) []string {
	text = strings.TrimSpace(strings.ReplaceAll(text, "\t", "    "))
	if text == "" {
		return nil
	}
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		out = append(out, strings.TrimRight(cli.OneLine(line), " "))
	}
	return out
}

// called is a tool call by what matters most of its input.
func called(tool string, input json.RawMessage) string {
	return "> " + strings.TrimSpace(fold(tool)+" "+gist(input))
}

func gave(result string, isError bool) string {
	if isError {
		return "< failed: " + fold(result)
	}
	return "< " + fold(result)
}

// gist is the one member of a tool's input that says what the call is about, or all of
// the input.
func gist(input json.RawMessage) string {
	var known struct {
		Command  string `json:"command"`
		FilePath string `json:"file_path"` // Claude Code
		Camel    string `json:"filePath"`  // opencode
		Path     string `json:"path"`
		Pattern  string `json:"pattern"`
		URL      string `json:"url"`
		Query    string `json:"query"`
	}
	if decode(input, &known) {
		for _, s := range []string{known.Command, known.FilePath, known.Camel, known.Pattern, known.Path, known.URL, known.Query} {
			if s != "" {
				return fold(s)
			}
		}
	}
	if s := string(bytes.TrimSpace(input)); s != "{}" && s != "null" {
		return fold(s)
	}
	return ""
}

// fold is the first line of a text, and how many more there are.
func fold(text string) string {
	text = strings.TrimSpace(text)
	first, rest, _ := strings.Cut(text, "\n")
	first = strings.TrimSpace(cli.OneLine(first))
	if r := []rune(first); len(r) > most {
		first = string(r[:most-1]) + "…"
	}
	if rest == "" {
		return first
	}
	return fmt.Sprintf("%s (+%d lines)", first, strings.Count(rest, "\n")+1)
}

// content is what a message or a result holds: blocks, or a bare text.
type content []block

// block is one part of it, in any agent's words.
type block struct {
	Type string `json:"type"`
	Text string `json:"text"`
	// A call of Claude Code's or of pi's.
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	Arguments json.RawMessage `json:"arguments"`
	// A result of Claude Code's.
	Content content `json:"content"`
	IsError bool    `json:"is_error"`
}

// UnmarshalJSON takes what it understands.
func (c *content) UnmarshalJSON(data []byte) error {
	if bytes.HasPrefix(data, []byte(`"`)) {
		*c = content{{Type: "text"}}
		return json.Unmarshal(data, &(*c)[0].Text)
	}
	err := json.Unmarshal(data, (*[]block)(c))
	if mismatch := (*json.UnmarshalTypeError)(nil); errors.As(err, &mismatch) {
		return nil
	}
	return err
}

// text is the text of all blocks.
func (c content) text() string {
	var parts []string
	for _, b := range c {
		if b.Type == "text" {
			parts = append(parts, b.Text)
		}
	}
	return strings.Join(parts, "\n")
}
