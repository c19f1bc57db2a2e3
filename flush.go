package kcp

// Flush sends everything that may leave now. It does nothing before the first Update or
// SetClock.
func (k *KCP) Flush() { k.m.Flush() }

// NextFlush returns when the next Flush will have something to do, if neither Input nor
// Send is called before. ok is false if the conversation is idle. Call SetClock before
// it; docs/recipes.md has a loop.
func (k *KCP) NextFlush() (at uint32, ok bool) { return k.m.NextFlush() }

// SetInterval sets the flush interval in milliseconds, 10 to 5000, default 100, which is
// also the least variance term of the RTO.
func (k *KCP) SetInterval(ms uint32) error { return k.m.SetInterval(ms) }

// SetWindow sets the send and the receive window in segments, 1 to 1048576 each, default
// 32 and 128. A receive window below 128 is raised to 128; above 65535 it is advertised
// as 65535.
func (k *KCP) SetWindow(send, receive int) error { return k.m.SetWindow(send, receive) }
