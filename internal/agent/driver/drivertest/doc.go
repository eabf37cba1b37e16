// Package drivertest is the suite that every driver passes: it runs the real CLI as
// the driver says, against the scripted provider, and looks at what reached the
// provider and what the driver made of the stream. Nothing confines the CLI here and
// the runner has no part in it; what a placement holds is for others to test.
//
//	func TestMain(m *testing.M) { mcphost.Entry(); goleak.VerifyTestMain(m) }
//
//	func TestDriver(t *testing.T) {
//		drivertest.Exercise(t, drivertest.Subject{Driver: claude.Driver{}, Bin: agenttest.ClaudeBin(t), ...})
//	}
//
// CLIs differ, and rightly. What differs is a field of Subject, not a case that is
// left out: a case asks for what the field promises, and where a CLI cannot do a
// thing its field says so.
package drivertest
