package job

// Conversation names what an agent CLI knows as one conversation. It belongs to its
// tenant: no other can continue it.
type Conversation struct {
	Tenant string
	Agent  string
	ID     string // the CLI's own
	// Job is whose copy of it is meant: as that job's last attempt left it. Empty is the
	// newest. Jobs that continue the same one each keep their own.
	Job ID
	// Restricted says that it is of read-only turns: they alone continue it.
	Restricted bool
}

// Patch is what a turn changed in a workspace with a history.
type Patch struct {
	// Bytes is the size of the patch; zero is no change.
	Bytes int64 `json:"bytes"`
	Files int   `json:"files"` // changed, new and deleted ones
	// Added and Deleted count lines of text.
	Added   int `json:"lines_added"`
	Deleted int `json:"lines_deleted"`
	// Stat is git's summary of it, and New the files the repository did not have;
	// both may be cut.
	Stat string   `json:"stat,omitempty"`
	New  []string `json:"new_files,omitempty"`
	// Problem says why the patch cannot be had from the server; the worker's session
	// directory then has it, or the workspace itself.
	Problem string `json:"problem,omitempty"`
}
