package kcp

import "github.com/arqnet/kcp/internal/streams"

// Receipts: calls of MessageOptions.Done. They run on a goroutine of the session,
// one after another and without locks, so that the application may do in them what
// it likes. It ends with them.

// receipts are those of a session that are due. Conn.mu guards it.
type receipts struct {
	streams.Receipts
	running bool // runReceipts is
}

// finish lets the receipt of t be called with err, if it was not.
func (c *session) finish(t *streams.Tag, err error) {
	if t.Awaited() {
		c.rarely().receipts.Finish(t, err)
		c.step.ready |= receivers
	}
}

// failAll lets the receipts of all messages of a be called with what f says, and
// empties it.
func (c *session) failAll(a *streams.Awaiting, f streams.Failure) {
	if !a.Empty() {
		f.At = c.kcp.micros()
		c.rarely().receipts.Fail(a, f)
		c.step.ready |= receivers
	}
}

// startReceipts starts the goroutine that calls receipts, unless it runs.
func (c *Conn) startReceipts() {
	if r := &c.rare.receipts; !r.running {
		r.running = true
		go c.runReceipts()
	}
}

// runReceipts calls the receipts that are due. It locks c.mu, but not while it calls one.
func (c *Conn) runReceipts() {
	for {
		c.mu.Lock()
		due := c.rare.receipts.Take()
		if len(due) == 0 {
			c.rare.receipts = receipts{}
			c.unlock()
			return
		}
		c.unlock()
		for _, r := range due {
			r.Done(r.Err)
		}
	}
}
