package transcript

import (
	"cmp"
	"encoding/json"
)

// openCode renders an event of opencode's stream, or of the plugin that turns bring.
func openCode(kind string, event []byte) []string {
	var e struct {
		Part struct {
			Text  string `json:"text"`
			Tool  string `json:"tool"`
			State struct {
				Status string          `json:"status"`
				Input  json.RawMessage `json:"input"`
				Output string          `json:"output"`
				Error  string          `json:"error"`
			} `json:"state"`
		} `json:"part"`
		Error struct {
			Name string `json:"name"`
			Data struct {
				Message string `json:"message"`
			} `json:"data"`
		} `json:"error"`
		Model struct {
			Name string `json:"name"`
		} `json:"model"`
		Stop struct {
			Why     string `json:"why"`
			Message string `json:"message"`
		} `json:"stop"`
		Exit *struct {
			Code float64 `json:"code"`
		} `json:"exit"`
	}
	if !decode(event, &e) {
		return nil
	}
	switch kind {
	case "text":
		return said(e.Part.Text)
	case "tool_use": // comes once the call is over
		s := e.Part.State
		return []string{called(e.Part.Tool, s.Input), gave(cmp.Or(s.Error, s.Output), s.Status == "error")}
	case "error":
		return failed(e.Error.Name + ": " + e.Error.Data.Message)
	}
	switch {
	case e.Model.Name != "":
		return started(e.Model.Name)
	case e.Stop.Why != "":
		return failed("stopped: " + cmp.Or(e.Stop.Message, e.Stop.Why))
	case e.Exit != nil && e.Exit.Code == 0:
		return ended("exit")
	case e.Exit != nil:
		return ended("exit with an error")
	}
	return nil
}
