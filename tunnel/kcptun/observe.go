package kcptun

import (
	"fmt"
	"sync"

	engine "github.com/arqnet/kcp"
)

// observed gives the endpoints of sessions and listeners names for Config.Observe. There
// are no more names than endpoints at a time.
type observed struct {
	mu    sync.Mutex
	taken map[int]bool
}

// add shows an endpoint until the function that it returns is called.
func (o *observed) add(config *Config, kind string, e *engine.Endpoint) (forget func()) {
	if config.Observe == nil {
		return func() {}
	}
	o.mu.Lock()
	n := 1
	for o.taken[n] {
		n++
	}
	if o.taken == nil {
		o.taken = make(map[int]bool)
	}
	o.taken[n] = true
	o.mu.Unlock()
	remove := config.Observe(fmt.Sprintf("%s %d", kind, n), e)
	return func() {
		remove()
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.taken, n)
	}
}
