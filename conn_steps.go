package kcp

import "time"

// What endpoints and timers have sessions do: lock, do it, and carry out what it brings
// about.

func (c *Conn) handshakeFromNewAddress(p *inPacket, now time.Duration) (mine, moved bool) {
	c.mu.Lock()
	defer c.unlock()
	return c.session.handshakeFromNewAddress(p, now)
}

func (c *Conn) helloFromNewAddress(token uint32, from source, shown bool, now time.Duration) (mine, moved bool) {
	c.mu.Lock()
	defer c.unlock()
	return c.session.helloFromNewAddress(token, from, shown, now)
}

func (c *Conn) packetFromNewAddress(p *inPacket, numbered bool, now time.Duration) (mine, moved bool) {
	c.mu.Lock()
	defer c.unlock()
	return c.session.packetFromNewAddress(p, numbered, now)
}

func (c *Conn) rerouted(moved bool) {
	c.mu.Lock()
	defer c.unlock()
	c.session.rerouted(moved)
}

func (c *Conn) welcomeElsewhere(p *inPacket, hello signal) bool {
	c.mu.Lock()
	defer c.unlock()
	return c.session.welcomeElsewhere(p, hello)
}

func (c *Conn) onWake() {
	c.mu.Lock()
	defer c.unlock()
	c.session.onWake()
}

func (c *Conn) shedMemory() bool {
	c.mu.Lock()
	defer c.unlock()
	return c.session.shedMemory()
}

func (c *Conn) statelessReset(now time.Duration) {
	c.mu.Lock()
	defer c.unlock()
	c.session.statelessReset(now)
}

func (c *Conn) closeForShutdown() {
	c.mu.Lock()
	defer c.unlock()
	c.session.closeForShutdown()
}

func (c *Conn) unreachable() {
	c.mu.Lock()
	defer c.unlock()
	c.session.unreachable()
}

func (c *Conn) discard(err error) {
	c.mu.Lock()
	defer c.unlock()
	c.session.discard(err)
}

func (c *Conn) endDraining() {
	c.mu.Lock()
	defer c.unlock()
	c.session.endDraining()
}

func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.unlock()
	c.session.fail(err)
}

func (c *Conn) keepQuiet() {
	c.mu.Lock()
	defer c.unlock()
	c.session.keepQuiet()
}

func (c *Conn) opening() bool {
	c.mu.Lock()
	defer c.unlock()
	return c.session.opening()
}

func (c *Conn) wasOffered() bool {
	c.mu.Lock()
	defer c.unlock()
	return c.session.wasOffered()
}
