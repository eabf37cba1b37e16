package worker

// Point is a moment in an attempt's life at which a crash must lose nothing.
type Point string

// The points, in order.
const (
	AfterClaim  Point = "after-claim"  // the lease is ours, nothing is written here
	AfterMark   Point = "after-mark"   // the mark is here, nothing was started
	AfterStart  Point = "after-start"  // the agent runs
	AfterTurn   Point = "after-turn"   // it ended, nothing is reported
	BeforeSpool Point = "before-spool" // the report exists in memory
	AfterSpool  Point = "after-spool"  // it is durable here
	AfterSettle Point = "after-settle" // it is in Postgres and still here
)

// Points lists every point.
func Points() []Point {
	return []Point{AfterClaim, AfterMark, AfterStart, AfterTurn, BeforeSpool, AfterSpool, AfterSettle}
}

// Hooks let a test stop the process at a Point. The zero value does nothing.
type Hooks struct{ At func(Point) }

func (h Hooks) at(p Point) {
	if h.At != nil {
		h.At(p)
	}
}
