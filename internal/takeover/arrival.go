package takeover

import (
	"errors"
	"fmt"
	"net"
)

// maxPredecessors is how many predecessors an offer may have.
const maxPredecessors = 100

// Arrival is a handover, at the end that begins: what it has got from the predecessor.
type Arrival struct {
	Sockets []net.PacketConn // the caller's
	State   State
	Before  Retained // the predecessor, and those whose sessions it passes on

	link *Link
}

// Arrive runs the successor's part of the exchange, until it has the sockets. agrees
// returns an error if this process does not treat packets as the offer says.
func Arrive(link *Link, agrees func(*Offer) error) (*Arrival, error) {
	var offer Offer
	if err := await(link, OfferKind, &offer); err != nil {
		return nil, err
	}
	if err := offer.check(); err != nil {
		return nil, err
	}
	if err := agrees(&offer); err != nil {
		return nil, err
	}
	if err := link.Send(AgreeKind, nil); err != nil {
		return nil, err
	}
	a := &Arrival{link: link}
	if err := await(link, StateKind, &a.State); err != nil {
		return nil, err
	}
	files, err := link.TakeFiles(offer.Files())
	if err != nil {
		return nil, err
	}
	if files, err = a.open(files, &offer); err != nil {
		CloseFiles(files)
		for _, pc := range a.Sockets {
			_ = pc.Close()
		}
		a.Close()
		return nil, err
	}
	return a, nil
}

// await waits for a message, and decodes it.
func await(link *Link, kind Kind, v any) error {
	_, payload, err := link.Receive(kind)
	if err != nil {
		return err
	}
	return Decode(payload, v)
}

// check returns an error if o is not what this end understands.
func (o *Offer) check() error {
	if o.Sockets < 1 || o.Predecessors < 0 || o.Predecessors > maxPredecessors {
		return errors.New("malformed message")
	}
	if o.Version != Version {
		return fmt.Errorf("the old process hands over by version %d of the exchange, the new one by %d", o.Version, Version)
	}
	return nil
}

// open opens the descriptors that have come with State. If it fails, it returns those
// that it has not taken.
func (a *Arrival) open(files []int, offer *Offer) (rest []int, err error) {
	next := func() int {
		fd := files[0]
		files = files[1:]
		return fd
	}
	for range offer.Sockets {
		pc, err := OpenSocket(next())
		if err != nil {
			return files, err
		}
		a.Sockets = append(a.Sockets, pc)
	}
	for i := range 1 + offer.Predecessors {
		p := &Predecessor{locals: i < len(offer.Locals) && offer.Locals[i]}
		a.Before = append(a.Before, p)
		for range offer.Sockets {
			feed, err := OpenFeed(next())
			if err != nil {
				return files, err
			}
			p.feeds = append(p.feeds, feed)
		}
		if p.notes, err = OpenPipe(next()); err != nil {
			return files, err
		}
	}
	return nil, nil
}

// Learn learns what sessions the predecessors have, and confirms. When it returns nil, no
// other process reads the sockets. inherit is called for each session that has ended, and
// each id that was used, now and after Predecessors.Start.
func (a *Arrival) Learn(inherit func(Note)) error {
	for _, p := range a.Before {
		p.inherit = inherit
	}
	if err := a.link.Send(ReadyKind, nil); err != nil {
		return err
	}
	for {
		kind, notes, err := a.link.Receive(NotesKind, CommitKind)
		if err != nil {
			return err
		}
		if kind == CommitKind {
			break
		}
		if !a.Before.apply(notes) {
			return errors.New("malformed message, or too many sessions")
		}
	}
	a.link.Wait()
	err := a.link.Send(ConfirmKind, nil)
	if err == nil {
		_, _, err = a.link.Receive(FinalKind)
	}
	// If the predecessor has died, no other process reads the sockets.
	if err != nil && !(IsGone(err) && a.Before[0].isDead()) {
		return err
	}
	return nil
}

// apply applies notes to the predecessors that they are of. It reports false if one is
// malformed, or of nobody, or if there are too many sessions.
func (r Retained) apply(notes []byte) bool {
	for len(notes) > 0 {
		n, rest, ok := CutNote(notes)
		if !ok || uint64(n.Of) >= uint64(len(r)) || !r[n.Of].apply(n) {
			return false
		}
		notes = rest
	}
	return true
}

// Close lets go of the predecessors. It does not close Sockets.
func (a *Arrival) Close() { a.Before.close() }
