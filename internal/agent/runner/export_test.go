package runner

// Clock lets the tests turn a turn's clocks.
type Clock = clock

var (
	After  = (*clock).after
	Fires  = (*clock).fires
	Freeze = (*clock).freeze
	Thaw   = (*clock).thaw
	Stop   = (*clock).stop
)
