package takeover

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/stretchr/testify/require"
)

// server is an endpoint of two sockets, without sessions of its own that could answer.
type server struct {
	Departure
	sockets []syscall.Conn
	owns    []Note      // what Leave tells of it
	told    []Note      // what it has heard of sessions that have ended
	stopped atomic.Bool // calls do not read
	readers sync.WaitGroup
	piped   chan *Inbox // what its readers have got from Park; nil: the socket
	closed  chan struct{}
}

func newServer(t *testing.T, sockets ...net.PacketConn) *server {
	s := &server{piped: make(chan *Inbox, 100), closed: make(chan struct{})}
	for range 2 - len(sockets) {
		pc, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		sockets = append(sockets, pc)
	}
	for _, pc := range sockets {
		s.sockets = append(s.sockets, pc.(*net.UDPConn))
		t.Cleanup(func() { _ = pc.Close() })
	}
	t.Cleanup(func() {
		close(s.closed)
		s.readers.Wait()
		s.Before.Close()
		if s.passing != nil {
			s.passing.closePipes()
			s.passing.before.close()
		}
	})
	return s
}

func (s *server) Sockets() []syscall.Conn { return s.sockets }
func (s *server) Offer() *Offer           { return &Offer{Version: Version, Sockets: 2, LegacySetting: "a"} }
func (s *server) State() *State           { return &State{ResetSecret: []byte("reset")} }
func (s *server) Resume()                 { s.stopped.Store(false) }
func (s *server) Closed() <-chan struct{} { return s.closed }

func (s *server) Interrupt() {
	s.stopped.Store(true)
	h := s.Gate.Load()
	for i := range s.sockets {
		s.readers.Go(func() { s.piped <- h.Park(i) })
	}
}

func (s *server) Leave(h *Handover) ([]Note, error) {
	return h.Leave().AppendOwned(slices.Clone(s.owns)), nil
}

// inherit is told of sessions that have ended in another process.
func (s *server) inherit(n Note) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, n)
}

// heard returns what it was told.
func (s *server) heard() []Note {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.told)
}

// serves checks that the process reads its sockets, and may hand over.
func (s *server) serves(t *testing.T) {
	t.Helper()
	require.Equal(t, Serves, s.stage)
	require.False(t, s.stopped.Load())
	require.Nil(t, s.Gate.Load())
	require.False(t, s.IsAway())
}

// bothLinks returns the two ends of an exchange.
func bothLinks(t *testing.T) (a, b *Link) {
	t.Helper()
	a, other := links(t, context.Background())
	b, err := NewLink(context.Background(), other.(*net.UnixConn), "the old process")
	require.NoError(t, err)
	t.Cleanup(b.Close)
	return a, b
}

// handsOver hands the sockets of s over to a new server.
func (s *server) handsOver(t *testing.T) (next *server, h *Handover) {
	t.Helper()
	a, b := bothLinks(t)
	h = s.Begin(s)
	require.NotNil(t, h)
	require.Nil(t, s.Begin(s), "one at a time")
	done := make(chan error, 1)
	go func() { done <- h.Exchange(t.Context(), a) }()
	arrival, err := Arrive(b, func(o *Offer) error {
		require.Equal(t, 2, o.Sockets)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, "reset", string(arrival.State.ResetSecret))
	next = newServer(t, arrival.Sockets...)
	require.NoError(t, arrival.Learn(next.inherit))
	require.NoError(t, <-done)
	require.True(t, s.IsAway())
	s.mu.Lock()
	first := s.wake == nil
	s.mu.Unlock()
	require.Equal(t, first, h.Proceed())
	next.Before.Start(arrival.Before)
	return next, h
}

// inboxes returns what the readers of s read after a handover.
func (s *server) inboxes(t *testing.T) (all [2]*Inbox) {
	t.Helper()
	for i := range all {
		all[i] = <-s.piped
		require.NotNil(t, all[i])
	}
	return all
}

// The successor gets the sockets and the secrets, hears of all sessions, and forwards to
// each process before it. Those say which end, and at last that none is left.
func TestExchange(t *testing.T) {
	first := newServer(t)
	first.owns = []Note{{Kind: Owns, Addr: v4, Conv: 1, Extended: true}, {Kind: Ended, Addr: v6, Conv: 2, End: End{Una: 5}}}
	second, h := first.handsOver(t)
	in := first.inboxes(t)
	require.Equal(t, first.owns[1:], second.heard())
	require.Equal(t, 1, second.Before.Sessions())
	second.owns = []Note{{Kind: Owns, Addr: elsewhere, Conv: 3}, {Kind: Used, Conv: 9}}
	third, _ := second.handsOver(t)
	second.inboxes(t)
	require.Equal(t, second.owns[1:], third.heard())
	require.Equal(t, 2, third.Before.Sessions())
	require.False(t, second.Before.Any())

	f := NewForwarder(0)
	d := &udp.Datagram{Addr: v4, Buf: []byte("packet")}
	require.Equal(t, Theirs, f.Forward(&third.Before, d, &Packet{Addr: v4, Conv: 1, Sort: Sealed}))
	f.Flush(&third.Before)
	got := make([]udp.Datagram, 1)
	for i, x := range in { // Park returns in any order
		if x.pipe == h.pipes[0] {
			_, err := in[i].ReadBatch(got)
			require.NoError(t, err)
		}
	}
	require.Equal(t, "packet", string(got[0].Buf))

	for _, s := range []*server{first, second} {
		end := s.owns[0]
		s.Tell(Note{Kind: Ended, Addr: end.Addr, Conv: end.Conv})
		require.False(t, s.writeNotes())
		s.leaveSuccessor()
	}
	testenv.Await(t, func() bool { return !third.Before.Any() })
	require.Len(t, third.heard(), 3)
}

// The successor dies. Readers return one by one; what was passed on is forwarded to
// again, and another handover waits for the last of them.
func TestSuccessorDies(t *testing.T) {
	first := newServer(t)
	first.owns = []Note{{Kind: Owns, Addr: v4, Conv: 1}}
	second, _ := first.handsOver(t)
	third, h := second.handsOver(t)
	in := second.inboxes(t)
	third.Before.list()[0].feeds[0].Close() // the first of what its end closes
	_, err := NewInbox(h.pipes[0]).ReadBatch(make([]udp.Datagram, 1))
	require.Error(t, err)
	h.Lose()
	for _, x := range in {
		_, err := x.ReadBatch(make([]udp.Datagram, 1))
		require.Error(t, err, "each reader notices")
	}
	require.Equal(t, Resumes, second.stage)
	require.Equal(t, 1, second.Before.Sessions())
	require.False(t, second.IsAway())
	require.Nil(t, second.Begin(second))
	require.NotNil(t, second.Gate.Load())
	h.Free()
	h.Lose()
	require.Nil(t, second.Begin(second))
	go h.Free()
	second.AwaitResumed()
	second.stopped.Store(false) // the readers are back
	second.serves(t)
	next, _ := second.handsOver(t)
	require.Equal(t, 1, next.Before.Sessions())
}

// Whichever message the other end sends in place of the next one, or if it goes, all is
// as before, and sessions of processes before are forwarded.
func TestExchangeFails(t *testing.T) {
	first := newServer(t)
	first.owns = []Note{{Kind: Owns, Addr: v4, Conv: 1}}
	s, _ := first.handsOver(t)
	s.Before.list()[0].locals = false
	for _, answers := range [][]Kind{{}, {RefuseKind}, {ReadyKind}, {AgreeKind}, {AgreeKind, RefuseKind}, {AgreeKind, ReadyKind}, {AgreeKind, ReadyKind, RefuseKind}, {AgreeKind, ReadyKind, AgreeKind}} {
		a, b := bothLinks(t)
		h := s.Begin(s)
		require.NotNil(t, h)
		for _, kind := range answers {
			require.NoError(t, b.Send(kind, []byte("no")))
		}
		require.NoError(t, b.conn.CloseWrite())
		require.Error(t, h.Exchange(t.Context(), a), answers)
		s.readers.Wait()
		s.serves(t)
		require.Equal(t, 1, s.Before.Sessions())
		for len(s.piped) > 0 {
			require.Nil(t, <-s.piped, "readers go on with the sockets")
		}
		var offer Offer
		require.NoError(t, await(b, OfferKind, &offer))
		require.Equal(t, []bool{true, false}, offer.Locals)
		if len(answers) > 1 {
			saysOver(t, b, &offer)
		}
	}
	next, _ := s.handsOver(t)
	require.Equal(t, 1, next.Before.Sessions())
}

// saysOver checks that the predecessor, which has given up, is not to be taken for dead.
func saysOver(t *testing.T, b *Link, offer *Offer) {
	require.NoError(t, await(b, StateKind, new(State)))
	files, err := b.TakeFiles(offer.Files())
	require.NoError(t, err)
	notes, err := OpenPipe(files[4]) // after two sockets, and two pipes for datagrams
	require.NoError(t, err)
	defer notes.Close()
	CloseFiles(slices.Delete(files, 4, 5))
	message := make([]byte, 1000)
	n, err := notes.Read(message)
	require.NoError(t, err)
	note, _, _ := CutNote(message[:n])
	require.Equal(t, Over, note.Kind)
	_, err = notes.Read(message)
	require.ErrorIs(t, err, io.EOF)
}

// More descriptors than a message takes are not passed.
func TestTooManyDescriptors(t *testing.T) {
	s := newServer(t)
	a, _ := bothLinks(t)
	h := s.Begin(&wide{s})
	require.ErrorContains(t, h.Exchange(t.Context(), a), "261 descriptors to pass, more than 250")
	s.serves(t)
}

// wide is a server of many sockets.
type wide struct{ *server }

func (s *wide) Offer() *Offer { return &Offer{Version: Version, Sockets: 130} }

// A reader that does not come ends the exchange, as do the context and the end of the
// endpoint. Readers that have come go on.
func TestPauseFails(t *testing.T) {
	for name, want := range map[string]error{"context": context.Canceled, "closed": net.ErrClosed, "reader": nil} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{sockets: make([]syscall.Conn, 2), closed: make(chan struct{})}
			h := s.Begin(&stuck{s})
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			switch name {
			case "context":
				cancel()
			case "closed":
				close(s.closed)
			}
			begin := time.Now()
			went := make(chan *Inbox, 1)
			go func() { went <- h.Park(0) }()
			err := h.pause(ctx)
			if want != nil {
				require.ErrorIs(t, err, want)
			} else {
				require.EqualError(t, err, "a reader of the sockets does not pause")
				require.Equal(t, PauseTimeout, time.Since(begin))
			}
			h.abort()
			require.Nil(t, <-went)
			s.serves(t)
		})
	}
}

// stuck is a server whose readers do not pause.
type stuck struct{ *server }

func (s *stuck) Interrupt() { s.stopped.Store(true) }

// The successor does not trust what it is told, and lets go of all that it has opened.
func TestArriveFails(t *testing.T) {
	no := errors.New("no")
	for name, test := range map[string]struct {
		change func(o *Offer)
		agrees error
	}{
		"version":            {func(o *Offer) { o.Version++ }, nil},
		"no socket":          {func(o *Offer) { o.Sockets = 0 }, nil},
		"many predecessors":  {func(o *Offer) { o.Predecessors = maxPredecessors + 1 }, nil},
		"minus predecessors": {func(o *Offer) { o.Predecessors = -1 }, nil},
		"disagrees":          {func(*Offer) {}, no},
	} {
		a, b := bothLinks(t)
		offer := (&server{}).Offer()
		test.change(offer)
		require.NoError(t, a.Send(OfferKind, Encode(offer)))
		_, err := Arrive(b, func(*Offer) error { return test.agrees })
		want := cmp.Or(test.agrees, offer.check())
		require.Error(t, want, name)
		require.Equal(t, want, err, name)
	}
	require.NoError(t, (&server{}).Offer().check())
}

// The notes of a predecessor that there is not are refused.
func TestNotesOfNobody(t *testing.T) {
	list := Retained{{}, {}}
	for of, want := range map[uint32]bool{0: true, 1: true, 2: false, 1 << 31: false, 1<<32 - 1: false} {
		n := Note{Kind: Owns, Addr: v4, Conv: 7, Of: of}
		require.Equal(t, want, list.apply(n.Append(nil)), of)
	}
	require.False(t, list.apply([]byte("malformed")))
	require.Equal(t, 1, list[0].owned.Len())
}

// Only a predecessor whose end of the pipe is closed is dead. One that hangs, or has
// given up, may read the sockets.
func TestIsDead(t *testing.T) {
	one := func() (p *Predecessor, theirs *Pipe) {
		theirs, mine := pipes(t)
		return &Predecessor{notes: mine}, theirs
	}
	p, theirs := one()
	theirs.Close()
	require.True(t, p.isDead())
	p, theirs = one()
	theirs.TryWrite((&Note{Kind: Over}).Append(nil))
	theirs.Close()
	require.False(t, p.isDead())
	p, _ = one()
	p.notes.Interrupt() // as after Timeout
	require.False(t, p.isDead())
}

// What the predecessor has to tell is not lost while its successor does not read.
func TestNotesWaitForTheSuccessor(t *testing.T) {
	pipe, other := pipes(t)
	d := at(Left)
	d.passing = &Handover{notes: pipe}
	told := uint32(0)
	tell := func(n int) {
		for range n {
			d.Tell(Note{Kind: Used, Conv: told})
			told++
		}
	}
	for tell(1000); !d.writeNotes(); tell(1000) {
		require.Less(t, told, uint32(1_000_000), "the pipe is never full")
	}
	tell(500) // behind what waits
	read := uint32(0)
	for read < told {
		d.writeNotes()
		message := make([]byte, 64<<10)
		n, err := other.Read(message)
		require.NoError(t, err)
		for b := message[:n]; len(b) > 0; read++ {
			note, rest, ok := CutNote(b)
			require.True(t, ok)
			require.Equal(t, read, note.Conv, "in order, each once")
			b = rest
		}
	}
	require.False(t, d.writeNotes())
}

// Of predecessors that end while they pause nothing is kept, nor after the endpoint is
// closed.
func TestPredecessorsEnd(t *testing.T) {
	one := func() (*Predecessor, *Pipe) {
		theirs, mine := pipes(t)
		from, _ := feed(t)
		return &Predecessor{feeds: []*Feed{from}, notes: mine, inherit: func(Note) {}}, theirs
	}
	gone, theirs := one()
	stays, other := one()
	var s Predecessors
	s.Start(Retained{gone, stays})
	note := Note{Kind: Owns, Addr: netip.MustParseAddrPort("10.0.0.1:1"), Conv: 1}
	require.True(t, other.TryWrite(note.Append(nil)))
	testenv.Await(t, func() bool { return s.Sessions() == 1 })
	theirs.Close()
	<-gone.stopped
	kept := s.Pause()
	require.Equal(t, Retained{stays}, kept)
	require.True(t, other.TryWrite((&Note{Kind: Over}).Append(nil)))
	require.True(t, s.Any(), "nothing is heard")
	s.Start(kept)
	testenv.Await(t, func() bool { return !s.Any() })
	require.ErrorIs(t, stays.notes.SetReadDeadline(time.Time{}), net.ErrClosed)
	late, _ := one()
	s.Close()
	s.Start(Retained{late})
	require.False(t, s.Any())
	require.ErrorIs(t, late.notes.SetReadDeadline(time.Time{}), net.ErrClosed)
}

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	const takeover, forwarding = "| Socket takeover", "| Forwarding"
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{takeover, "4 s", Timeout},
		{takeover, "1 s", PauseTimeout},
		{takeover, "10 µs", noteTime},
		{forwarding, "64 datagrams", maxDatagrams},
		{forwarding, "32 KiB", maxMessage},
		{forwarding, "4 MiB", pipeBuffer},
		{forwarding, "1048576 sessions", MaxOwned},
	})
}
