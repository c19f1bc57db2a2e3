package kcp

// Receipts: calls of MessageOptions.Done. They run on a goroutine of the session,
// one after another and without locks, so that the application may do in them what
// it likes. It ends with them.

// awaited is a message of which the application awaits a receipt. Those of a stream
// that are not delivered form a ring, and so do those of the session itself. So many of
// them fail at once without being touched. Conn.mu guards it.
type awaited struct {
	done       func(error) // nil: none is to come
	tag        *streamTag
	next, prev *awaited
}

// append adds a to the ring that begins behind *ring, which it makes.
func (a *awaited) append(ring **awaited) {
	r := *ring
	if r == nil {
		r = new(awaited)
		r.next, r.prev = r, r
		*ring = r
	}
	a.next, a.prev = r, r.prev
	a.prev.next, r.prev = a, a
}

// receipts are those of a session that are due. Conn.mu guards it.
type receipts struct {
	due     []receipt
	failed  []failedMessages
	running bool // runReceipts is
}

// receipt is a call of MessageOptions.Done that is due.
type receipt struct {
	done func(error)
	err  error
}

// failedMessages are messages that will not be delivered.
type failedMessages struct {
	ring *awaited
	err  error // why
	at   int64 // since when, on the machine's clock
	// What was given up by then: the messages whose lifetime was over of which
	// something was sent, and those of which nothing was.
	begun, unsent bool
}

// receiptBatch is how many failed messages are looked at with Conn.mu held.
const receiptBatch = 128

// finish lets the receipt of a be called with err, if it was not.
func (c *Conn) finish(a *awaited, err error) {
	if a.done == nil {
		return
	}
	r := &c.rarely().receipts
	r.due = append(r.due, receipt{a.done, err})
	a.done = nil
	a.next.prev, a.prev.next = a.prev, a.next
	a.next, a.prev = nil, nil
	c.startReceipts()
}

// failAll lets the receipts of all messages in ring be called with what f says, and
// empties it. They may be many: runReceipts looks at them, a few at a time.
func (c *Conn) failAll(ring **awaited, f failedMessages) {
	if f.ring = *ring; f.ring == nil || f.ring.next == f.ring {
		return
	}
	*ring = nil
	f.at = c.kcp.micros()
	r := &c.rarely().receipts
	r.failed = append(r.failed, f)
	c.startReceipts()
}

// startReceipts starts the goroutine that calls receipts, unless it runs.
func (c *Conn) startReceipts() {
	if r := &c.rare.receipts; !r.running {
		r.running = true
		go c.runReceipts()
	}
}

// runReceipts locks c.mu, and calls the receipts that are due without it.
func (c *Conn) runReceipts() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for due := c.takeReceipts(); len(due) > 0; due = c.takeReceipts() {
		c.unlocked(func() {
			for _, r := range due {
				r.done(r.err)
			}
		})
	}
	c.rare.receipts = receipts{}
}

// takeReceipts returns receipts that are due; none if there are none.
func (c *Conn) takeReceipts() []receipt {
	r := &c.rare.receipts
	for len(r.due) < receiptBatch && len(r.failed) > 0 {
		f := &r.failed[0]
		a := f.ring.next
		if a == f.ring {
			r.failed = r.failed[1:]
			continue
		}
		err := f.err
		if t := a.tag; t.deadline > 0 && f.at >= t.deadline && (t.begun && f.begun || !t.begun && f.unsent) {
			err = ErrMessageAbandoned
		}
		c.finish(a, err)
	}
	due := r.due
	r.due = nil
	return due
}
