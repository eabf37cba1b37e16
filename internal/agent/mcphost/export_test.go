package mcphost

import (
	"encoding/json"
	"io"

	"turnpike/internal/agent"
)

const (
	Greeting = greeting
	Welcome  = welcome
	MaxConns = maxConns
)

func Greeted(r io.Reader, token string) bool { return greeted(r, token) }

func (r Report) Parse(arguments json.RawMessage) (agent.Outcome, error) { return r.parse(arguments) }
