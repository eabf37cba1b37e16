package transcript

import (
	"encoding/json"
	"fmt"
	"strings"
)

// codex renders a notification of Codex' app server.
func codex(method string, event []byte) []string {
	var e struct {
		Params struct {
			Item      codexItem    `json:"item"`
			Error     codexFailure `json:"error"`
			WillRetry bool         `json:"willRetry"`
			Turn      struct {
				Status string       `json:"status"`
				Error  codexFailure `json:"error"`
			} `json:"turn"`
		} `json:"params"`
	}
	if !decode(event, &e) {
		return nil
	}
	switch method {
	case "item/started":
		return e.Params.Item.started()
	case "item/completed":
		return e.Params.Item.completed()
	case "error":
		if e.Params.WillRetry {
			return failed("tries again: " + e.Params.Error.Message)
		}
		return failed(e.Params.Error.Message)
	case "turn/completed":
		return ended(e.Params.Turn.Status)
	}
	return nil
}

type codexFailure struct {
	Message string `json:"message"`
}

type codexItem struct {
	Type   string `json:"type"`
	Text   string `json:"text"`
	Status string `json:"status"`

	Command string  `json:"command"`
	Output  string  `json:"aggregatedOutput"`
	Exit    float64 `json:"exitCode"`

	Changes []struct {
		Path string `json:"path"`
	} `json:"changes"`

	Server    string          `json:"server"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
	Result    struct {
		Content content `json:"content"`
	} `json:"result"`
	Error codexFailure `json:"error"`

	Query string `json:"query"`
}

// started is a call, which is of interest before its result is.
func (i codexItem) started() []string {
	switch i.Type {
	case "commandExecution":
		return []string{"> " + fold(i.Command)}
	case "fileChange":
		var paths []string
		for _, c := range i.Changes {
			paths = append(paths, c.Path)
		}
		return []string{"> edit " + fold(strings.Join(paths, ", "))}
	case "mcpToolCall":
		return []string{called(i.Server+"."+i.Tool, i.Arguments)}
	case "webSearch":
		return []string{"> search " + fold(i.Query)}
	}
	return nil
}

func (i codexItem) completed() []string {
	bad := i.Status != "completed"
	switch i.Type {
	case "agentMessage":
		return said(i.Text)
	case "commandExecution":
		if i.Exit != 0 {
			return []string{fmt.Sprintf("< exit %v: %s", i.Exit, fold(i.Output))}
		}
		return []string{gave(i.Output, bad)}
	case "fileChange":
		return []string{gave(i.Status, bad)}
	case "mcpToolCall":
		if i.Error.Message != "" {
			return []string{gave(i.Error.Message, true)}
		}
		return []string{gave(i.Result.Content.text(), bad)}
	}
	return nil
}
