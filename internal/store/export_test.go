package store

// The statements behind Select, Claim, Beat and Offered, for tests that ask the server how it
// carries them out.
const (
	ChooseSQL  = choose
	ClaimSQL   = claim
	BeatSQL    = beat
	OfferedSQL = offered
)
