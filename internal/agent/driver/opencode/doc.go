// Package opencode drives opencode, headless: the command line and configuration of one
// turn, and what its stream of events proves. It starts nothing, and knows neither where
// the turn runs nor what holds it there.
//
// # A plugin of our own
//
// What "opencode run" prints leaves out what a worker must know: that a tool began, that
// a request is being repeated, that it will be for ever, what subagents cost, that a
// server did not start, and that the run is over. A small plugin (plugin.js) tells it
// from inside, on lines of its own among the CLI's. It also keeps what has to be kept
// between two requests or before a tool: the list of tools, to the letter, the limit of
// turns, and how often one request is repeated, for whatever reason. A turn that depends
// on the plugin and finds it missing is given up.
//
// # What holds the tools
//
// What a turn may do is decided before it starts: by the operating system where the
// placement confines, and by the list of tools everywhere. The model is offered what the
// CLI's permissions, which are coarser, let through; a call of anything else fails.
//
// # The workspace is not the turn's owner
//
// The CLI has directories of its own beneath the turn's home, reads no configuration,
// plugin, agent, command or skill of the project's, and starts no language server or
// formatter, which come from the workspace as well. One way in is left open by the CLI
// itself: it imports plugins of the workspace whatever it is told. Our plugin, which is
// imported first, keeps it from importing anything after that. The project's AGENTS.md is followed
// when the turn may read files, since that only ever speaks to the model.
//
// # A conversation in another home
//
// The CLI keeps conversations in a database that also holds accounts, whose configuration
// it fetches and believes. So the database never leaves the turn's home: the plugin keeps
// the conversation's own rows in a file, as steps end, and puts them into the fresh
// database of a later turn.
//
// # What the stream proves
//
// A turn ended well when its last step stopped with "stop" and nothing was said of an
// error after it. There is no word for the end but the plugin's. A step that stopped for
// an unknown reason is a broken answer, which the CLI asks for again without end; so is
// a step that starts again and again. Usage and cost come with every step and are those
// of this run. The CLI prices by its configuration, and a model it has no price for at
// nothing; its cost is unknown.
package opencode
