package procs

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
)

// markerName is the variable that marks the processes of a session.
const markerName = "TURNPIKE_SESSION"

// Marker is the environment entry that marks the processes of a session of the
// worker with this state directory. The directory is hashed: its name is nobody's
// business but the worker's, and two workers never sweep each other's turns.
func Marker(stateDir, session string) string {
	sum := sha256.Sum256([]byte(filepath.Clean(stateDir)))
	return markerName + "=" + hex.EncodeToString(sum[:12]) + "/" + session
}
