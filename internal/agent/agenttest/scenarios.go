package agenttest

import (
	"net/http"
	"time"
)

// Scenario is a script for people to try things with.
type Scenario struct {
	Name, About string
	Steps       []Step
}

// Scenarios are the scripts that the standalone provider serves.
func Scenarios() []Scenario {
	const (
		greeting = "Hello from the scripted provider."
		list     = "ls -la"
	)
	tooMany := Fail(http.StatusTooManyRequests, "rate_limit_error", "This request would exceed your rate limit")
	return []Scenario{
		{"demo", "writes a small Go program, reads it back, reports the outcome, closes with a text", demo()},
		{"text", "answers with a text", []Step{Text(greeting)}},
		{"write", "writes hello.txt, reports the outcome, closes with a text", []Step{
			Write("hello.txt", greeting+"\n"), Report("wrote hello.txt"), Text("I wrote hello.txt."),
		}},
		{"shell", "runs a shell command, then answers with a text", []Step{
			Shell(list), Text("These are the files."),
		}},
		{"loop", "runs the same shell command again and again", []Step{Shell(list).Repeat()}},
		{"slow", "answers with a word a second", []Step{
			Text("one two three four five six seven eight nine ten").Paced(time.Second),
		}},
		{"hang", "takes the request and never answers", []Step{Hang()}},
		{"hangmid", "answers with a word, then falls silent", []Step{HangMid(greeting)}},
		{"cut", "drops the connection after a word", []Step{Text(greeting).Cut()}},
		{"badjson", "breaks the stream with something that is not JSON", []Step{Text(greeting).BadJSON()}},
		{"html", "answers with a web page", []Step{HTML()}},
		{"401", "refuses the credential", []Step{Fail(http.StatusUnauthorized, "authentication_error", "invalid x-api-key")}},
		{"403", "forbids the request", []Step{Fail(http.StatusForbidden, "permission_error", "This key may not use this model")}},
		{"429", "too many requests, try again in 2 s", []Step{tooMany.WithHeader(RetryAfter(2 * time.Second))}},
		{"429unified", "a subscription's five hour limit is used up for an hour", []Step{
			Func(func(*Request) Step {
				return tooMany.WithHeader(RetryAfter(time.Hour)).
					WithHeader(SubscriptionLimit("rejected", 1, time.Now().Add(time.Hour)))
			}),
		}},
		{"429long", "too many requests, try again in an hour", []Step{tooMany.WithHeader(RetryAfter(time.Hour))}},
		{"quota", "the account's quota is used up, in OpenAI's words", []Step{
			Fail(http.StatusTooManyRequests, "insufficient_quota", "You exceeded your current quota, please check your plan"),
		}},
		{"usagelimit", "a ChatGPT plan's limit is used up for an hour", []Step{
			Func(func(*Request) Step {
				reset := time.Now().Add(time.Hour)
				return UsageLimit(reset).WithHeader(PlanLimit(1, 5*time.Hour, reset))
			}),
		}},
		{"500", "fails inside the provider", []Step{Fail(http.StatusInternalServerError, "api_error", "Internal server error")}},
		{"529", "is overloaded", []Step{Fail(529, "overloaded_error", "Overloaded")}},
	}
}

const helloGo = `package main

import "fmt"

func main() {
	fmt.Println("Hello from a confined turn.")
}
`

// demo is a coding turn as a model would go about it. It keeps to a directory
// of its own, so that it does no harm in a workspace with work in it.
func demo() []Step {
	return []Step{
		Together(Text("I'll look at what is here first."), Shell("pwd && ls -la")),
		Together(Text("I'll write a small program."),
			Write("hello/go.mod", "module hello\n\ngo 1.21\n"), Write("hello/hello.go", helloGo)),
		Together(Text("Let me check what I wrote."), Shell("cat hello/hello.go && wc -l hello/*")),
		Report("wrote hello/hello.go"),
		Text("I wrote hello/hello.go, a program that prints a greeting."),
	}
}
