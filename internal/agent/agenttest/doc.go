// Package agenttest holds what tests and the demo need to run a real agent
// CLI without a model: a scripted provider, and the pinned CLIs themselves
// (scripts/agents.sh installs them). It leaves everything about driving a CLI
// to the drivers, and is never linked into the programs.
//
// A test writes a script and points a CLI at it:
//
//	p := agenttest.NewProvider(t)
//	s := p.Script("writes", agenttest.Write("out.txt", "hello\n"), agenttest.Text("Done."))
//	cmd.Env = append(cmd.Env, "ANTHROPIC_BASE_URL="+s.URL())
//
// A CLI of OpenAI's APIs, Responses or chat completions, gets s.URL() + "/v1".
// The same script serves all of them: its steps say what the model does, such as
// run a command or report the outcome, and which tool and arguments that takes is
// told by what the request offers. The tests of this package start each CLI, with
// the settings that keep it to the provider.
//
// # Which step a request gets
//
// The provider keeps no conversation. A request carries the whole of it, so
// the request itself says how far its turn has come: the step follows the
// last one whose tool results stand after the newest prompt. Tool call ids
// bear the number of the step that made the call, so several calls in one
// step count once. A repeated request gets the same step again, and a resumed
// conversation, which opens with a new prompt, starts the script anew.
//
// Only a step with Times is counted here: it answers that often, and then
// gives way to the step behind it.
//
// # Waiting
//
// Tests wait for signals instead of sleeping: Script.Wait returns when a
// request has arrived, a Gate keeps its answer back until the test opens it,
// and Request.Done tells that the answer ended or the CLI hung up.
package agenttest
