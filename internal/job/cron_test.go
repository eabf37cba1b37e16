package job_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"pgregory.net/rapid"

	"turnpike/internal/job"
)

func parsed(t *testing.T, expression, zone string) job.Cron {
	t.Helper()
	c, err := job.ParseCron(expression, zone)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func utc(t *testing.T, s string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return at.UTC()
}

func TestCronOverClockChanges(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		expression, zone, after string
		want                    []string
	}{
		"Berlin in spring: 02:30 comes when the clocks go on, at 03:00": {
			"30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z",
			[]string{"2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"},
		},
		"all that is left out comes once": {
			"*/20 2 * * *", "Europe/Berlin", "2026-03-28T20:00:00Z",
			[]string{"2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z", "2026-03-30T00:20:00Z"},
		},
		"also together with what comes at 03:00": {
			"0,30 2,3 * * *", "Europe/Berlin", "2026-03-28T20:00:00Z",
			[]string{"2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z", "2026-03-30T00:00:00Z"},
		},
		"Berlin in autumn: 02:30 comes the first time": {
			"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z",
			[]string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"},
		},
		"an hour that is there twice counts once": {
			"@hourly", "Europe/Berlin", "2026-10-24T23:30:00Z",
			[]string{"2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z"},
		},
		"asked in the second of the two hours": {
			"*/30 * * * *", "Europe/Berlin", "2026-10-25T01:10:00Z",
			[]string{"2026-10-25T02:00:00Z", "2026-10-25T02:30:00Z"},
		},
		"New York in spring": {
			"30 2 * * *", "America/New_York", "2026-03-07T12:00:00Z",
			[]string{"2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"},
		},
		"New York in autumn": {
			"30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z",
			[]string{"2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"},
		},
		"midnight that is left out": {
			"@daily", "America/Santiago", "2026-09-05T12:00:00Z",
			[]string{"2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"},
		},
		"half an hour": {
			"15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z",
			[]string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"},
		},
		"UTC has no such days": {
			"30 2 * * *", "", "2026-03-28T12:00:00Z",
			[]string{"2026-03-29T02:30:00Z", "2026-03-30T02:30:00Z"},
		},
		"a leap day": {
			"0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z",
			[]string{"2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cron := parsed(t, c.expression, c.zone)
			at := utc(t, c.after)
			for _, want := range c.want {
				at = cron.Next(at)
				if got := at.UTC().Format(time.RFC3339); got != want {
					t.Fatalf("%s, want %s", got, want)
				}
			}
		})
	}
}

func TestParseCronRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ expression, zone, want string }{
		"four fields":            {"0 3 * *", "", "cron: "},
		"six fields":             {"0 0 3 * * *", "", "cron: "},
		"nothing":                {"", "", "cron: "},
		"a zone in it":           {"CRON_TZ=UTC 0 3 * * *", "", `goes into "tz"`},
		"a zone and no more":     {"TZ=", "", `goes into "tz"`},
		"an interval":            {"@every 5m", "", "interval"},
		"an unknown word":        {"@noon", "", "cron: "},
		"minute 60":              {"60 * * * *", "", "cron: "},
		"no step":                {"*/0 * * * *", "", "cron: "},
		"backwards":              {"0 5-3 * * *", "", "cron: "},
		"a day there never is":   {"0 0 30 2 *", "", "no such day"},
		"a list of nothing":      {", * * * *", "", "lacks an element"},
		"a list that goes on":    {"1, * * * *", "", "lacks an element"},
		"a zone there is not":    {"@daily", "Europe/Bonn", "tz: "},
		"this machine's zone":    {"@daily", "Local", "tz: "},
		"a way out of the zones": {"@daily", "../../etc/passwd", "tz: "},
	} {
		if _, err := job.ParseCron(c.expression, c.zone); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// expression is a cron expression beside what it means.
type expression struct {
	text                          string
	minute, hour, dom, month, dow map[int]bool
	anyDay                        bool // one of the two day fields is a star
}

func drawExpression(t *rapid.T) expression {
	var e expression
	var fields []string
	field := func(name string, low, high int) (map[int]bool, bool) {
		set := map[int]bool{}
		fill := func(from, to, step int) {
			for v := from; v <= to; v += step {
				set[v] = true
			}
		}
		text, star := "*", false
		switch rapid.SampledFrom([]string{"star", "star", "step", "list", "range"}).Draw(t, name) {
		case "star":
			star = true
			fill(low, high, 1)
		case "step":
			step := rapid.IntRange(2, max(2, (high-low)/2)).Draw(t, name+" step")
			text = fmt.Sprintf("*/%d", step)
			fill(low, high, step)
		case "list":
			l := rapid.SliceOfNDistinct(rapid.IntRange(low, high), 1, 4, rapid.ID).Draw(t, name+" list")
			var words []string
			for _, v := range l {
				set[v] = true
				words = append(words, strconv.Itoa(v))
			}
			text = strings.Join(words, ",")
		case "range":
			from := rapid.IntRange(low, high).Draw(t, name+" from")
			to := rapid.IntRange(from, high).Draw(t, name+" to")
			text = fmt.Sprintf("%d-%d", from, to)
			fill(from, to, 1)
		}
		fields = append(fields, text)
		return set, star
	}
	var anyDom, anyDow bool
	e.minute, _ = field("minute", 0, 59)
	e.hour, _ = field("hour", 0, 23)
	e.dom, anyDom = field("day of month", 1, 31)
	e.month, _ = field("month", 1, 12)
	e.dow, anyDow = field("day of week", 0, 6)
	e.text, e.anyDay = strings.Join(fields, " "), anyDom || anyDow
	return e
}

func (e expression) fits(shown time.Time) bool {
	return e.fitsDay(shown) && e.minute[shown.Minute()] && e.hour[shown.Hour()]
}

func (e expression) fitsDay(shown time.Time) bool {
	dom, dow := e.dom[shown.Day()], e.dow[int(shown.Weekday())]
	day := dom || dow
	if e.anyDay {
		day = dom && dow
	}
	return day && e.month[int(shown.Month())]
}

// walk goes minute by minute and returns the times in (after, to] at which a clock comes
// to show, for the first time, a minute that fits, or leaves one out.
func (e expression) walk(zone *time.Location, after, to time.Time) (times []time.Time) {
	shows := func(at time.Time) time.Time {
		at = at.In(zone)
		return time.Date(at.Year(), at.Month(), at.Day(), at.Hour(), at.Minute(), 0, 0, time.UTC)
	}
	at := after.Truncate(time.Minute).Add(-48 * time.Hour)
	latest := shows(at)
	for at = at.Add(time.Minute); !at.After(to); at = at.Add(time.Minute) {
		fits := false
		for now := shows(at); latest.Before(now); {
			latest = latest.Add(time.Minute)
			fits = fits || e.fits(latest)
		}
		if fits && at.After(after) {
			times = append(times, at.UTC())
		}
	}
	return times
}

// Whatever the expression, the zone and the outage, the times acted on are those that
// walking minute by minute finds, as the policy has it.
func TestFiringAgreesWithAWalk(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		e := drawExpression(t)
		zone := rapid.SampledFrom([]string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Asia/Kathmandu", "Africa/Casablanca"}).Draw(t, "zone")
		loc, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(rapid.IntRange(0, 6*365*24*3600).Draw(t, "begin")) * time.Second)
		if _, change := begin.In(loc).ZoneBounds(); !change.IsZero() && rapid.Bool().Draw(t, "at a change of clocks") {
			begin = change.Add(-time.Duration(rapid.IntRange(0, 4*3600).Draw(t, "seconds before it")) * time.Second).UTC()
		}
		down := begin.Add(time.Duration(rapid.IntRange(0, 3*3600).Draw(t, "seconds up")) * time.Second)
		up := down.Add(time.Duration(rapid.IntRange(0, 36*3600).Draw(t, "seconds down")) * time.Second)
		end := up.Add(2 * time.Hour)
		missed := rapid.SampledFrom(job.MissedPolicies()).Draw(t, "missed")

		d := job.Due{Schedule: job.Schedule{Tenant: "default", Name: "x", Cron: e.text, Zone: zone, Missed: missed, Overlap: job.OverlapQueue, Request: []byte(minimal)}}
		table, err := d.Timetable()
		if err != nil { // then it fits no day of any year
			for day := begin.Truncate(24 * time.Hour); day.Year() < begin.Year()+5; day = day.AddDate(0, 0, 1) {
				if e.fitsDay(day) {
					t.Fatalf("%v, but it fits %s", err, day)
				}
			}
			return
		}
		times := e.walk(loc, begin, end)
		d.At = table.Next(begin)
		var got, want []time.Time
		left, wantLeft := 0, 0
		for now := begin; !now.After(end); now = now.Add(20 * time.Second) {
			if now.After(down) && now.Before(up) {
				continue
			}
			came, late := 0, 0
			for came < len(times) && !times[came].After(now) {
				if now.Sub(times[came]) >= job.MissedAfter {
					late++
				}
				came++
			}
			pick := times[:came]
			switch missed {
			case job.MissedSkip:
				pick = pick[late:]
			case job.MissedOnce:
				pick = pick[max(0, came-1):]
			case job.MissedAll:
				pick = pick[max(0, came-job.MaxMadeUp):]
			}
			want = append(want, pick...)
			wantLeft += came - len(pick)
			times = times[came:]

			if d.At.IsZero() || d.At.After(now) {
				continue
			}
			d.Now = now
			f, err := d.Firing()
			if err != nil {
				t.Fatal(err)
			}
			for _, entry := range f.Entries {
				got = append(got, entry.Request.RunAt.UTC())
			}
			left += f.Left
			if (f.Note == "") != (f.Late == 0) || f.Late != late {
				t.Fatalf("%d late, want %d: %q", f.Late, late, f.Note)
			}
			d.At = f.Next
		}
		if !slices.Equal(got, want) || left != wantLeft {
			t.Fatalf("%s in %s, missed %s:\n got %v and %d left\nwant %v and %d left", e.text, zone, missed, got, left, want, wantLeft)
		}
	})
}
