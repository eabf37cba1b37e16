package transcript

// claude renders an event of Claude Code's stream.
func claude(kind string, event []byte) []string {
	var e struct {
		Subtype string `json:"subtype"`
		Model   string `json:"model"`
		IsError bool   `json:"is_error"`
		Result  string `json:"result"`
		Message struct {
			Content content `json:"content"`
		} `json:"message"`
		Parent string `json:"parent_tool_use_id"`
	}
	if !decode(event, &e) {
		return nil
	}
	switch kind {
	case "system":
		if e.Subtype == "init" {
			return started(e.Model)
		}
		return nil
	case "result":
		var out []string
		if e.IsError && e.Result != "" { // else it was said before
			out = failed(e.Result)
		}
		if e.IsError && e.Subtype == "success" {
			e.Subtype = "error" // its word for a failed request
		}
		return append(out, ended(e.Subtype)...)
	}
	var out []string
	for _, b := range e.Message.Content {
		switch {
		case b.Type == "text" && kind == "assistant":
			out = append(out, said(b.Text)...)
		case b.Type == "tool_use":
			out = append(out, called(b.Name, b.Input))
		case b.Type == "tool_result":
			out = append(out, gave(b.Content.text(), b.IsError))
		}
	}
	if e.Parent != "" { // a subagent's
		for i := range out {
			out[i] = "  " + out[i]
		}
	}
	return out
}
