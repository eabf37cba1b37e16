package job

import (
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Cron is a cron expression in a time zone.
type Cron struct {
	times cron.Schedule // of clocks that never change
	zone  *time.Location
}

// ParseCron reads an expression of five fields, or one of @hourly, @daily, @weekly,
// @monthly and @yearly, and the name of an IANA time zone; "" is UTC. Its error is a
// *FieldError for "cron" or "tz".
func ParseCron(expression, zone string) (Cron, error) {
	if zone == "Local" { // of whichever machine reads it
		return Cron{}, badZone(zone)
	}
	loc, err := time.LoadLocation(zone)
	if err != nil {
		return Cron{}, badZone(zone)
	}
	bad := func(why string) error {
		return &FieldError{Field: "cron", Problem: fmt.Sprintf(`%q: %s; want minute, hour, day of month, month and day of week, such as "0 3 * * 1-5", or @hourly, @daily, @weekly, @monthly, @yearly`, clip(expression), why)}
	}
	switch {
	case strings.Contains(expression, "="):
		return Cron{}, bad(`the time zone goes into "tz"`)
	case strings.HasPrefix(expression, "@every"):
		return Cron{}, bad("an interval has no times of its own")
	}
	for _, field := range strings.Fields(expression) {
		if strings.Contains(","+field+",", ",,") {
			return Cron{}, bad("a list lacks an element")
		}
	}
	times, err := cron.ParseStandard(expression)
	if err != nil {
		return Cron{}, bad(clip(err.Error()))
	}
	// An expression without a zone is one of the clock it is asked with, and that is
	// always UTC's: no change of clocks confuses the library.
	c := Cron{times, loc}
	if c.times.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return Cron{}, bad("there is no such day")
	}
	return c, nil
}

func badZone(zone string) error {
	return &FieldError{Field: "tz", Problem: fmt.Sprintf("%q is no time zone; want an IANA name, such as Europe/Berlin or UTC", clip(zone))}
}

// Next is the first time after another. A time of day that the clocks leave out comes as
// soon as they go on, one that they show twice comes the first time only.
func (c Cron) Next(after time.Time) time.Time {
	for shown := onClock(after.In(c.zone)); ; {
		shown = c.times.Next(shown)
		if shown.IsZero() {
			return shown
		}
		if at := c.reaches(shown); at.After(after) {
			return at
		}
	}
}

// onClock is what a clock shows, as if it were one in UTC.
func onClock(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
}

// reaches is when a clock of the zone shows a time, or one later than it, first.
func (c Cron) reaches(shown time.Time) time.Time {
	t := shown.Add(-48 * time.Hour).In(c.zone) // no clock is that far off
	for {
		_, end := t.ZoneBounds()
		_, offset := t.Zone()
		at := shown.Add(-time.Duration(offset) * time.Second)
		switch {
		case at.Before(t): // the clocks left it out
			return t
		case end.IsZero() || at.Before(end):
			return at.In(c.zone)
		}
		t = end
	}
}
