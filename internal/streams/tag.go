package streams

// Tag is what the segments of one message have in common. The message is one of a
// stream, or of the session itself (partial reliability, RFC 3758).
type Tag struct {
	Deadline  int64  // on the machine's clock, in microseconds; 0: none
	Limit     uint32 // transmissions of one segment; 0: any number
	InFlight  int32  // segments queued in the machine, or in flight
	Abandoned bool   // what of it is sent again is sent without content
	OfSession bool   // of the session itself, not of a stream
	Begun     bool   // a segment of it was sent

	message    *message    // nil: of no stream
	done       func(error) // the receipt that the application awaits; nil: none
	next, prev *Tag        // in a ring of those that await one
}

// Spent reports whether a transmission at the time now, the xmit-th of its
// segment, may not carry the message any more.
func (t *Tag) Spent(now int64, xmit uint32) bool {
	return t.Abandoned || t.Deadline > 0 && now >= t.Deadline || t.Limit > 0 && xmit > t.Limit
}

// Awaited reports whether the application awaits a receipt.
func (t *Tag) Awaited() bool { return t.done != nil }

// Awaiting is the messages of a stream, or of a session, whose receipts are to
// come. So many of them fail at once without being touched. The zero value is
// empty.
type Awaiting struct{ ring *Tag }

// Add lets done be called at the end of t.
func (a *Awaiting) Add(t *Tag, done func(error)) {
	r := a.ring
	if r == nil {
		r = new(Tag)
		r.next, r.prev = r, r
		a.ring = r
	}
	t.done = done
	t.next, t.prev = r, r.prev
	t.prev.next, r.prev = t, t
}

// Empty reports whether there are none.
func (a *Awaiting) Empty() bool { return a.ring == nil || a.ring.next == a.ring }

// Len returns the number of messages, which it counts.
func (a *Awaiting) Len() (n int) {
	if a.Empty() {
		return 0
	}
	for t := a.ring.next; t != a.ring; t = t.next {
		n++
	}
	return n
}

// Receipts is the receipts of a session that are due. The zero value has none.
type Receipts struct {
	due    []Receipt
	failed []failedMessages
}

// Receipt is a call that is due: Done with Err.
type Receipt struct {
	Done func(error)
	Err  error
}

// Failure says how messages have failed.
type Failure struct {
	Err error // why
	At  int64 // since when, on the machine's clock
	// What was given up by then: the messages whose lifetime was over of which
	// something was sent, and the ones of which nothing was.
	Begun, Unsent bool
}

// failedMessages are messages that will not be delivered.
type failedMessages struct {
	Awaiting
	Failure
}

// receiptBatch is how many failed messages Take looks at.
const receiptBatch = 128

// Finish lets the receipt of t be called with err, if it was not.
func (r *Receipts) Finish(t *Tag, err error) {
	if t.done == nil {
		return
	}
	r.due = append(r.due, Receipt{t.done, err})
	t.done = nil
	t.next.prev, t.prev.next = t.prev, t.next
	t.next, t.prev = nil, nil
}

// Fail lets the receipts of all messages of a be called with what f says, and
// empties it. They may be many: Take looks at them, a few at a time.
func (r *Receipts) Fail(a *Awaiting, f Failure) {
	if !a.Empty() {
		r.failed = append(r.failed, failedMessages{*a, f})
		a.ring = nil
	}
}

// Take returns receipts that are due; none if there are none.
func (r *Receipts) Take() []Receipt {
	for len(r.due) < receiptBatch && len(r.failed) > 0 {
		f := &r.failed[0]
		t := f.ring.next
		if t == f.ring {
			r.failed = r.failed[1:]
			continue
		}
		err := f.Err
		if t.Deadline > 0 && f.At >= t.Deadline && (t.Begun && f.Begun || !t.Begun && f.Unsent) {
			err = ErrAbandoned
		}
		r.Finish(t, err)
	}
	due := r.due
	r.due = nil
	return due
}

// Len returns how many receipts are due, or of messages that have failed.
func (r *Receipts) Len() int {
	n := len(r.due)
	for i := range r.failed {
		n += r.failed[i].Len()
	}
	return n
}
