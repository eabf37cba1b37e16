package runner

import "time"

// clock fires once after some time during which it was running. It belongs to one
// goroutine. The zero clock never fires.
type clock struct {
	timer  *time.Timer
	left   time.Duration // what is to run yet, while it is frozen
	end    time.Time     // when it fires, while it runs
	set    bool
	frozen bool
}

// fires gives the channel to wait on; nil while the clock cannot fire.
func (c *clock) fires() <-chan time.Time {
	if c.timer == nil || !c.set || c.frozen {
		return nil
	}
	return c.timer.C
}

// after has the clock fire after d, whatever it was set to; zero never.
func (c *clock) after(d time.Duration) {
	c.stop()
	if d <= 0 {
		return
	}
	c.set, c.left = true, d
	if !c.frozen {
		c.run()
	}
}

func (c *clock) run() {
	c.end = time.Now().Add(c.left)
	if c.timer == nil {
		c.timer = time.NewTimer(c.left)
		return
	}
	c.timer.Reset(c.left)
}

// stop has the clock never fire.
func (c *clock) stop() {
	c.set = false
	if c.timer != nil {
		c.timer.Stop()
	}
}

// freeze stands the clock still.
func (c *clock) freeze() {
	if c.frozen {
		return
	}
	c.frozen = true
	if c.set {
		c.timer.Stop()
		// One that was about to fire fires when it goes on.
		c.left = max(time.Until(c.end), 1)
	}
}

// thaw lets the clock go on where it stood.
func (c *clock) thaw() {
	if !c.frozen {
		return
	}
	c.frozen = false
	if c.set {
		c.run()
	}
}
