package transcript

import "encoding/json"

// pi renders an event of pi's RPC mode.
func pi(kind string, event []byte) []string {
	var e struct {
		Command string `json:"command"`
		Success bool   `json:"success"`
		Error   string `json:"error"`
		Data    struct {
			Model struct {
				ID       string `json:"id"`
				Provider string `json:"provider"`
			} `json:"model"`
		} `json:"data"`
		Message struct {
			Role         string  `json:"role"`
			Content      content `json:"content"`
			StopReason   string  `json:"stopReason"`
			ErrorMessage string  `json:"errorMessage"`
		} `json:"message"`
		Tool    string          `json:"toolName"`
		Args    json.RawMessage `json:"args"`
		IsError bool            `json:"isError"`
		Result  struct {
			Content content `json:"content"`
		} `json:"result"`
		Aborted bool `json:"aborted"`
	}
	if !decode(event, &e) {
		return nil
	}
	switch kind {
	case "response":
		if !e.Success {
			return failed(e.Command + ": " + e.Error)
		}
		if m := e.Data.Model; m.ID != "" {
			return started(m.Provider + "/" + m.ID)
		}
	case "message_end":
		if e.Message.Role != "assistant" {
			return nil
		}
		out := said(e.Message.Content.text()) // its calls follow as they begin
		if e.Message.ErrorMessage != "" {
			out = append(out, failed(e.Message.ErrorMessage)...)
		}
		return out
	case "tool_execution_start":
		return []string{called(e.Tool, e.Args)}
	case "tool_execution_end":
		return []string{gave(e.Result.Content.text(), e.IsError)}
	case "extension_error":
		return failed(e.Error)
	case "agent_settled":
		if e.Aborted {
			return ended("aborted")
		}
		return ended("settled")
	}
	return nil
}
