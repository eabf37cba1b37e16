package job

// TranscriptChunk is a piece of an attempt's transcript as it was streamed. What was
// dropped on the way is whole in the session directory.
type TranscriptChunk struct {
	Attempt int
	// Seq orders the chunks of a job; it grows, with gaps. A reader continues after it.
	Seq uint64
	// Lines are whole lines, each with its newline.
	Lines []byte
	// Dropped lines are missing before Lines.
	Dropped int
	// End says that the attempt's worker closed the transcript.
	End bool
}
