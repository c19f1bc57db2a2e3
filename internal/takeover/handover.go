package takeover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Host is an endpoint that hands its sockets over, as the exchange needs it.
type Host interface {
	// Sockets returns the sockets. Offer says how packets of them are treated, without
	// Predecessors and Locals.
	Sockets() []syscall.Conn
	Offer() *Offer
	// State returns the secrets of the endpoint, at the present time.
	State() *State
	// Interrupt makes all readers pause, which call Handover.Park then.
	Interrupt()
	// Resume undoes Interrupt.
	Resume()
	// Leave calls Handover.Leave, and returns the notes of all sessions, in the same
	// critical section of the lock under which sessions begin and end.
	Leave(h *Handover) ([]Note, error)
	// Closed returns a channel that is closed when the endpoint is.
	Closed() <-chan struct{}
}

// Handover is one handover of an endpoint's sockets, at the end that runs already.
type Handover struct {
	of     *Departure
	host   Host
	pipes  []*Pipe  // this end's, one for each socket; immutable once readers pause
	notes  *Pipe    // this end's; immutable once readers pause
	before Retained // passed on to the successor, and used again if it dies

	readers   int
	running   atomic.Int32  // readers that have not paused yet
	paused    chan struct{} // closed when all have
	decided   chan struct{} // closed when the readers may go on
	committed bool          // whether to read the pipes then; written before decided is closed

	lost  sync.Once
	freed atomic.Int32  // readers that read their sockets again after lost
	over  chan struct{} // closed when all of them do
}

// Begin reserves the endpoint for one handover. It returns nil if another is under way,
// or was committed.
func (d *Departure) Begin(host Host) *Handover {
	h := &Handover{of: d, host: host, paused: make(chan struct{}), decided: make(chan struct{}), over: make(chan struct{})}
	h.readers = len(host.Sockets())
	h.running.Store(int32(h.readers))
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.moveLocked(begins) {
		return nil
	}
	d.passing = h
	return h
}

// Exchange passes everything on, until the successor has confirmed. The caller calls
// Proceed then. If it fails, all is as before.
func (h *Handover) Exchange(ctx context.Context, link *Link) error {
	err := h.agree(link)
	if err == nil {
		err = h.pause(ctx)
	}
	if err == nil {
		err = h.commit(link)
	}
	if err != nil {
		h.abort()
	}
	return err
}

// agree offers the sockets, and passes them, the pipes and the secrets. Predecessors
// pause, so that none of them ends during the exchange.
func (h *Handover) agree(link *Link) error {
	h.before = h.of.Before.Pause()
	offer := h.host.Offer()
	offer.Predecessors = len(h.before)
	offer.Locals = []bool{true}
	for _, p := range h.before {
		offer.Locals = append(offer.Locals, p.locals)
	}
	if n := offer.Files(); n > MaxFiles {
		return fmt.Errorf("%d descriptors to pass, more than %d: too many shards and predecessors", n, MaxFiles)
	}
	if err := link.Send(OfferKind, Encode(offer)); err != nil {
		return err
	}
	if _, _, err := link.Receive(AgreeKind); err != nil {
		return err
	}
	files, err := h.descriptors()
	defer func() { CloseFiles(files) }()
	if err != nil {
		return err
	}
	if err := link.Send(StateKind, Encode(h.host.State()), files...); err != nil {
		return err
	}
	_, _, err = link.Receive(ReadyKind)
	return err
}

// descriptors returns what goes with State: the sockets, then the pipes.
func (h *Handover) descriptors() (files []int, err error) {
	add := func(fd int, err error) error {
		if err == nil {
			files = append(files, fd)
		}
		return err
	}
	for _, socket := range h.host.Sockets() {
		if err := add(Duplicate(socket)); err != nil {
			return files, err
		}
	}
	pipe := func() (*Pipe, error) {
		p, fd, err := NewPipe()
		return p, add(fd, err)
	}
	for range h.readers {
		p, err := pipe()
		if err != nil {
			return files, err
		}
		h.pipes = append(h.pipes, p)
	}
	if h.notes, err = pipe(); err != nil {
		return files, err
	}
	for _, p := range h.before {
		for _, feed := range p.feeds {
			if err := add(feed.Duplicate()); err != nil {
				return files, err
			}
		}
		if err := add(p.notes.Duplicate()); err != nil {
			return files, err
		}
	}
	return files, nil
}

// pause makes the readers pause, and waits until they have.
func (h *Handover) pause(ctx context.Context) error {
	h.of.Gate.Store(h)
	h.host.Interrupt()
	limit := time.NewTimer(scaled(ctx, PauseTimeout))
	defer limit.Stop()
	select {
	case <-h.paused:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-limit.C:
		return errors.New("a reader of the sockets does not pause")
	case <-h.host.Closed():
		return net.ErrClosed
	}
}

// Park keeps a reader waiting until it is decided who reads its socket, or the endpoint
// is closed. in is what it reads from then on; nil: the socket.
func (h *Handover) Park(socket int) (in *Inbox) {
	if h.running.Add(-1) == 0 {
		close(h.paused)
	}
	select {
	case <-h.decided:
		if h.committed {
			in = NewInbox(h.pipes[socket])
		}
	case <-h.host.Closed():
	}
	return in
}

// Leave lets no session begin here any more. It returns the predecessors that are passed
// on, to which nothing is forwarded now.
func (h *Handover) Leave() Retained {
	h.of.Before.forget()
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	h.of.moveLocked(leaves)
	h.of.notes = nil
	return h.before
}

// commit names all sessions to the successor, and waits until it has confirmed. From then
// on the successor reads.
func (h *Handover) commit(link *Link) error {
	notes, err := h.host.Leave(h)
	if err != nil {
		return err
	}
	link.Limit(PauseTimeout + time.Duration(len(notes))*noteTime)
	for len(notes) > 0 {
		var message []byte
		message, notes = encodeNotes(notes)
		if err := link.Send(NotesKind, message); err != nil {
			return err
		}
	}
	if err := link.Send(CommitKind, nil); err != nil {
		return err
	}
	if _, _, err := link.Receive(ConfirmKind); err != nil {
		return err
	}
	return link.Send(FinalKind, nil)
}

// noteTime is how much longer the exchange may take for each note.
const noteTime = 10 * time.Microsecond

// abort undoes all that the exchange has done so far.
func (h *Handover) abort() {
	if h.notes != nil {
		h.notes.TryWrite((&Note{Kind: Over}).Append(nil)) // not to be taken for dead
	}
	h.closePipes()
	h.of.reclaim(h.before)
	h.of.Gate.CompareAndSwap(h, nil)
	h.host.Resume()
	h.of.move(ends)
	close(h.decided)
}

func (h *Handover) closePipes() {
	for _, p := range h.pipes {
		p.Close()
	}
	if h.notes != nil {
		h.notes.Close()
	}
}

// Proceed makes the readers read the pipes. It reports whether the caller is to run
// Drain: this is the first handover of the endpoint.
func (h *Handover) Proceed() (first bool) {
	d := h.of
	d.mu.Lock()
	defer d.mu.Unlock()
	d.moveLocked(commits)
	if d.wake == nil {
		first = true
		d.wake, d.drained = make(chan struct{}, 1), make(chan struct{})
	}
	d.wakeLocked()
	h.committed = true
	close(h.decided)
	return first
}

// Lose is called by each reader that notices that the successor has gone. When it
// returns, packets are forwarded to the predecessors again, and sessions may begin.
func (h *Handover) Lose() {
	h.lost.Do(func() {
		h.closePipes() // so that the other readers notice
		h.of.reclaim(h.before)
	})
}

// Free is called by each reader after Lose, when it reads its socket again. After the
// last another handover may begin.
func (h *Handover) Free() {
	if int(h.freed.Add(1)) < h.readers {
		return
	}
	h.of.Gate.Store(nil)
	h.of.move(ends)
	close(h.over)
}
