package agenttest

import "sync"

// Gate keeps the answers that are held by it back until it is opened.
type Gate struct {
	open chan struct{}
	once sync.Once
}

// NewGate returns a closed gate.
func NewGate() *Gate { return &Gate{open: make(chan struct{})} }

// Open lets through what is held and whatever comes later.
func (g *Gate) Open() { g.once.Do(func() { close(g.open) }) }
