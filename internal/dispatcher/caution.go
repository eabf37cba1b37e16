package dispatcher

import "time"

// caution decides when the reaper may believe that a lapsed lease means a dead worker.
// While Postgres is away nobody can renew, so that after an outage every lease has
// lapsed and none means anything. It therefore lets the reaper act only after one full
// lease of unbroken ticks against this database, in which every living worker had the
// time to renew. A start, a tick that failed, a gap of more than half a lease and a
// jump of the database's clock (another server, a restored snapshot) begin the wait
// anew. It has no clock of its own.
type caution struct {
	lease time.Duration

	since  time.Time // the first of the unbroken ticks; zero: none yet
	last   time.Time // the latest, by this process's monotonic clock
	lastDB time.Time // and by the database's
}

// tick tells that the database answered at now with its own time db, and asks whether
// the reaper may act.
func (c *caution) tick(now, db time.Time) bool {
	broken := c.since.IsZero()
	if !broken {
		passed, passedDB := now.Sub(c.last), db.Sub(c.lastDB)
		broken = passed > c.lease/2 || (passedDB-passed).Abs() > c.lease/4
	}
	if broken {
		c.since = now
	}
	c.last, c.lastDB = now, db
	return now.Sub(c.since) >= c.lease
}

// broke tells that a tick failed.
func (c *caution) broke() { c.since = time.Time{} }
