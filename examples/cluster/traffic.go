package cluster

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/arqnet/kcp"
)

// What a datagram is, in its first byte.
const (
	datagramPacket  = 'P' // a packet of memberlist
	datagramMessage = 'M' // a message of the application
)

// What a stream is for, in its first byte.
const (
	streamMemberlist = 'L' // a stream of memberlist
	streamPacket     = 'P' // one packet of memberlist that is too large for a datagram
	streamMessages   = 'M' // messages of the application
	streamGoodbye    = 'G' // the node leaves
)

// Codes with which streams are reset.
const (
	codeUnknown = 1 + iota // nobody takes a stream of that kind
	codeBusy               // too many streams, or nobody has taken it in time
	codeBroken             // what has arrived breaks the rules, or is too large
)

// maxInboxes is how many streams of messages are received from a session at once. One is
// in use; another may replace it.
const maxInboxes = 2

// receive takes the datagrams of a session until it ends.
func (s *session) receive() {
	defer s.end()
	c := &s.t.counters
	for {
		b, err := s.conn.ReceiveDatagram(s.t.ctx)
		switch {
		case err != nil:
			return
		case len(b) < 2:
			c.malformed.Add(1)
		case b[0] == datagramPacket:
			s.packet(b[1:])
		case b[0] == datagramMessage && s.t.handlers.datagram != nil:
			s.t.handlers.datagram(s.name, b[1:])
		default:
			c.malformed.Add(1)
		}
	}
}

// packet hands a packet to memberlist, or drops it if too many wait.
func (s *session) packet(b []byte) {
	p := &memberlist.Packet{Buf: b, From: s.conn.RemoteAddr(), Timestamp: time.Now()}
	select {
	case s.t.packets <- p:
	default:
		s.t.counters.packetsDropped.Add(1)
	}
}

// accept takes the streams that the peer opens. kcp.Config.MaxStreams bounds their
// number, and with that the goroutines.
func (s *session) accept() {
	for {
		st, err := s.conn.AcceptStream(s.t.ctx)
		if err != nil {
			return // receive ends the session
		}
		s.t.running.Go(func() { s.serve(st) })
	}
}

// serve hands a stream to whom it is for.
func (s *session) serve(st *kcp.Stream) {
	var kind [1]byte
	_ = st.SetReadDeadline(time.Now().Add(kindTimeout)) // Read has the error
	if _, err := io.ReadFull(st, kind[:]); err != nil {
		s.refuse(st, codeBroken)
		return
	}
	_ = st.SetReadDeadline(time.Time{})
	switch kind[0] {
	case streamMemberlist:
		s.handOff(st)
	case streamPacket:
		s.largePacket(st)
	case streamMessages:
		s.serveMessages(st)
	case streamGoodbye:
		s.serveGoodbye(st)
	default:
		s.refuse(st, codeUnknown)
	}
}

// refuse resets a stream of the peer, and counts it.
func (s *session) refuse(st *kcp.Stream, code uint64) {
	s.t.counters.streamsRefused.Add(1)
	_ = st.Reset(code) // fails if the session has ended
}

// handOff waits for memberlist to take a stream.
func (s *session) handOff(st *kcp.Stream) {
	timer := time.NewTimer(handOffLimit)
	defer timer.Stop()
	select {
	case s.t.streams <- st:
	case <-timer.C:
		s.refuse(st, codeBusy)
	case <-s.t.ctx.Done():
		s.refuse(st, codeBusy)
	}
}

// largePacket receives a packet that did not fit into a datagram.
func (s *session) largePacket(st *kcp.Stream) {
	_ = st.SetReadDeadline(time.Now().Add(packetTimeout)) // Read has the error
	b, err := io.ReadAll(io.LimitReader(st, maxLargePacket+1))
	if err != nil || len(b) == 0 || len(b) > maxLargePacket {
		s.refuse(st, codeBroken)
		return
	}
	s.packet(b)
	_ = st.Close() // fails if the session has ended
}

// serveMessages hands a stream of messages to the application.
func (s *session) serveMessages(st *kcp.Stream) {
	if s.t.handlers.messages == nil {
		s.refuse(st, codeUnknown)
		return
	}
	defer s.inboxes.Add(-1)
	if s.inboxes.Add(1) > maxInboxes {
		s.refuse(st, codeBusy)
		return
	}
	s.t.handlers.messages(s.name, st)
}

// serveGoodbye closes the stream once the application knows that the node leaves.
func (s *session) serveGoodbye(st *kcp.Stream) {
	if s.t.handlers.goodbye == nil {
		s.refuse(st, codeUnknown)
		return
	}
	s.t.handlers.goodbye(s.name)
	_ = st.Close() // fails if the session has ended
}

// open opens a stream of that kind.
func (s *session) open(ctx context.Context, kind byte) (*kcp.Stream, error) {
	st, err := s.conn.OpenStream(ctx, nil)
	if err != nil {
		return nil, err
	}
	if _, err := st.Write([]byte{kind}); err != nil { // one byte does not block
		_ = st.Reset(codeBroken)
		return nil, err
	}
	return st, nil
}

// send sends b as a datagram. A packet that does not fit goes by stream. It does not
// wait. An error means that the session has ended.
func (s *session) send(b []byte) error {
	err := s.conn.SendDatagram(b)
	if !errors.Is(err, kcp.ErrDatagramTooLarge) {
		return err
	}
	if b[0] != datagramPacket || s.large.Add(1) > maxLargePackets {
		if b[0] == datagramPacket {
			s.large.Add(-1)
		}
		s.t.counters.packetsUnsent.Add(1)
		return nil
	}
	err = s.t.start(func() {
		defer s.large.Add(-1)
		if s.sendLarge(b[1:]) != nil {
			s.t.counters.packetsUnsent.Add(1)
		}
	})
	if err != nil {
		s.large.Add(-1)
	}
	return err
}

// sendLarge sends a packet on a stream of its own.
func (s *session) sendLarge(b []byte) error {
	ctx, cancel := context.WithTimeout(s.t.ctx, packetTimeout)
	defer cancel()
	st, err := s.open(ctx, streamPacket)
	if err != nil {
		return err
	}
	_ = st.SetWriteDeadline(time.Now().Add(packetTimeout)) // Write has the error
	if _, err := st.Write(b); err != nil {
		_ = st.Reset(codeBroken)
		return err
	}
	s.t.counters.packetsByStream.Add(1)
	return st.Close()
}
