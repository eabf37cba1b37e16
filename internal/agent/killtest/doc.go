// Package killtest kills turns of the four real CLIs at random moments, and looks at
// what the runner makes of each: the result, the transcript, turns and cost so far, and
// whether anything is left. It holds tests only.
//
// A moment is the arrival of the nth event of the turn's stream, n chosen at random
// between the start and the last event of a whole turn. The seed is printed:
//
//	go test ./internal/agent/killtest -run TestKills/pi/7 -seed 42
//
// kills the same agent in the same way after the same event again.
package killtest
