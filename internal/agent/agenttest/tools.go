package agenttest

import (
	"path"
	"path/filepath"
	"strings"
)

// shellTools and writeTools are the CLIs' tools by name: how each takes what it is
// to do. Which CLI asks is told by what it offers.
var (
	shellTools = []namedTool[string]{
		{"Bash", func(_ *Request, command string) any { // claude
			return object{"command": command, "description": "Run a command"}
		}},
		{"bash", func(_ *Request, command string) any { // opencode, pi
			return object{"command": command, "description": "Run a command"}
		}},
		{"exec_command", func(_ *Request, command string) any { // codex
			return object{"cmd": command}
		}},
	}
	writeTools = []namedTool[file]{
		{"Write", func(r *Request, f file) any { // claude
			return object{"file_path": f.absolute(r), "content": f.content}
		}},
		{"write", func(r *Request, f file) any { // opencode, pi
			if t, _ := r.tool("write"); strings.Contains(string(t.Schema), `"filePath"`) {
				return object{"filePath": f.absolute(r), "content": f.content}
			}
			return object{"path": f.name, "content": f.content}
		}},
		{"apply_patch", func(_ *Request, f file) any { // codex, of some models
			text, ended := strings.CutSuffix(f.content, "\n")
			if !ended {
				return nil // it would end the last line
			}
			return "*** Begin Patch\n*** Add File: " + f.name + "\n+" +
				strings.ReplaceAll(text, "\n", "\n+") + "\n*** End Patch\n"
		}},
	}
)

type namedTool[T any] struct {
	name string
	args func(*Request, T) any // nil: it cannot
}

type file struct{ name, content string }

func (f file) absolute(r *Request) string {
	if filepath.IsAbs(f.name) {
		return f.name
	}
	return filepath.Join(r.WorkDir, f.name)
}

// offered is the call of the first of the tools that the request offers.
func offered[T any](r *Request, tools []namedTool[T], what T) (Step, bool) {
	for _, t := range tools {
		if _, ok := r.tool(t.name); !ok {
			continue
		}
		if args := t.args(r, what); args != nil {
			return Call(t.name, args), true
		}
	}
	return Step{}, false
}

// Shell answers with a call of the shell tool: of whichever the CLI offers, or of
// Claude Code's where it offers none.
func Shell(command string) Step {
	return Func(func(r *Request) Step {
		if s, ok := offered(r, shellTools, command); ok {
			return s
		}
		return Call(shellTools[0].name, shellTools[0].args(r, command))
	})
}

// Write answers with a call that writes a file. A relative path is taken from
// the working directory. Like a model it writes by the shell where that is all
// the CLI offers, and calls Claude Code's tool where it offers nothing.
func Write(name, content string) Step {
	return Func(func(r *Request) Step {
		f := file{name, content}
		if s, ok := offered(r, writeTools, f); ok {
			return s
		}
		command := "mkdir -p " + quote(path.Dir(name)) + " && printf %s " + quote(content) + " > " + quote(name)
		if s, ok := offered(r, shellTools, command); ok {
			return s
		}
		return Call(writeTools[0].name, writeTools[0].args(r, f))
	})
}

// quote makes text one word of a shell's command.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// MCP answers with a call of the tool of that name, whichever server offers it. Where
// tools must be searched for, it searches first. Without such a tool it ends the turn
// with a text that says so.
func MCP(name string, args any) Step {
	return Func(func(r *Request) Step {
		if tool, ok := r.ToolWithSuffix("_" + name); ok { // the server's name goes before
			return Call(tool.Name, args)
		}
		return lookFor(r, name, Text("There is no tool "+name+"."))
	})
}

// Report answers with a call of whichever offered tool reports the outcome,
// with the first status it allows. Where tools must be searched for, it searches
// first. Without such a tool it ends the turn with a text that says so.
func Report(note string) Step { return ReportStatus("", note) }

// ReportStatus is Report with a status of the caller's choice, allowed or not.
func ReportStatus(status, note string) Step {
	const report = "report_outcome"
	return Func(func(r *Request) Step {
		tool, ok := r.ToolWithSuffix("_" + report) // the server's name goes before
		if !ok {
			return lookFor(r, report, Text("There is no tool to report the outcome with. "+note))
		}
		status := status
		if status == "" {
			status = tool.firstAllowed("status", "done")
		}
		return Call(tool.Name, object{"status": status, "note": note})
	})
}

// lookFor searches for a tool that was not offered, once and where that is
// possible, and answers with otherwise where it is not.
func lookFor(r *Request, what string, otherwise Step) Step {
	if _, ok := r.tool(searchTool); !ok {
		return otherwise
	}
	for _, result := range r.Results {
		if searched(result.CallID, r.Step) {
			return otherwise
		}
	}
	return Step{content: []block{{tool: searchTool, args: object{"query": what}, search: true}}}
}
