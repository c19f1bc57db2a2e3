package kcp

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/udp"
)

// The packet pipeline: what happens to a packet between the state machine and
// the socket. Out: forward error correction, then the cipher. In: the reverse.
// Everything is done in the packet's own buffer, which has room in front for
// the headers and behind for the cipher's tag; WIRE.md §4 has the layout.

// inPacket is an incoming packet without cipher: where it belongs, and whether
// forward error correction is to look at it.
type inPacket struct {
	data []byte
	conv uint32
	kind packetKind
	from source
	size int // of the UDP payload

	nonce []byte // nil with a cipher that takes no packet numbers:
	mark  uint64 // then what the replay filter knows the packet by
}

// segments returns what is for the state machine; ok is false where that is
// nothing.
func (p *inPacket) segments() (data []byte, ok bool) {
	switch p.kind {
	case plainPacket:
		return p.data, true
	case fecPacket:
		return p.data[fec.HeaderSize:], true
	}
	return nil, false
}

// source is where a packet has come from.
type source struct {
	addr netip.AddrPort
	peer net.Addr // where addr is not a UDP address
}

// netAddr returns the address as applications know it.
func (o source) netAddr() net.Addr {
	if o.peer != nil {
		return o.peer
	}
	return net.UDPAddrFromAddrPort(o.addr)
}

type packetKind uint8

const (
	plainPacket  packetKind = iota // of the state machine
	fecPacket                      // data in an FEC header
	parityPacket                   // of no conversation: the address tells
	datagramPacket
)

// classify reads what kind of packet data is and of which conversation. It
// reports false if data is not long enough, or not as long as it claims to be.
func classify(data []byte, p *inPacket) bool {
	p.data = data
	if !fec.IsFEC(data) {
		if len(data) < headerSize {
			return false
		}
		p.conv = binary.LittleEndian.Uint32(data)
		return true
	}
	switch binary.LittleEndian.Uint16(data[4:]) {
	case fec.TypeParity:
		p.kind = parityPacket
		return len(data) > fec.HeaderSize
	case fec.TypeOOB:
		p.kind = datagramPacket
		if len(data) < datagramHeader || int(binary.LittleEndian.Uint16(data[6:])) != len(data)-6 {
			return false
		}
	default:
		p.kind = fecPacket
		if len(data) < fec.HeaderSize+headerSize {
			return false
		}
	}
	p.conv = binary.LittleEndian.Uint32(data[fec.HeaderSize:])
	return true
}

// readLoop reads a socket while no call of a session does.
func (e *Endpoint) readLoop(s *shard) {
	for {
		roused, ok := e.readOnce(s, nil)
		if !ok {
			return
		}
		if roused && s.lead.possible && e.single() && s.lead.handOver() {
			if c := s.lead.await(); c != nil {
				c.respond(e.now())
			}
		}
	}
}

// readOnce reads a batch of a socket, feeds all of it to the sessions, and then
// lets each session that got something answer once; that of the call that leads
// does so by itself. roused is true if that has woken a call that waited, ok
// false if the socket is not to be read any more.
func (e *Endpoint) readOnce(s *shard, leader *Conn) (roused, ok bool) {
	n, err := s.sock.ReadBatch(s.batch)
	if err != nil && !e.interrupted(s, err) {
		s.failures++
		return false, e.survives(err, s.failures)
	}
	s.failures = 0
	if err == nil {
		roused = e.take(s.batch[:n], &s.in, leader)
		e.sendReplies(s.in.shard)
	}
	return roused, true
}

// readState is what a reader works with on a batch.
type readState struct {
	shard   int // which reader it is
	packets []routedPacket
	touched []*Conn // sessions that have to answer

	// The session of an earlier packet of the batch, and how it was found.
	last     *Conn
	lastFrom source
	lastConv uint32
}

// sameSession reports whether a packet is of the session that last names.
func (in *readState) sameSession(p *inPacket) bool {
	return in.last != nil && p.kind == plainPacket && p.conv == in.lastConv &&
		p.from.addr == in.lastFrom.addr && p.from.peer == nil && in.lastFrom.peer == nil
}

// routedPacket is a packet that has found its session.
type routedPacket struct {
	conn *Conn
	inPacket
}

// take feeds a batch to the sessions, those packets of one session together
// that come together, and lets each answer once.
func (e *Endpoint) take(batch []udp.Datagram, in *readState, leader *Conn) (roused bool) {
	now := e.now()
	bytes := 0
	for i := range batch {
		d := &batch[i]
		bytes += len(d.Buf)
		in.packets = append(in.packets, routedPacket{})
		if last := len(in.packets) - 1; !e.receive(d, in, &in.packets[last], now) {
			in.packets[last] = routedPacket{}
			in.packets = in.packets[:last]
		}
	}
	e.counters.packetsReceived.Add(uint64(len(batch)))
	e.counters.bytesReceived.Add(uint64(bytes))
	for rest := in.packets; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].conn == rest[0].conn {
			n++
		}
		if c := rest[0].conn; c.input(rest[:n], in.shard, now) {
			in.touched = append(in.touched, c)
		}
		rest = rest[n:]
	}
	for _, c := range in.touched {
		if c != leader {
			roused = c.respond(now) || roused
		}
	}
	e.relieve(now)
	clear(in.packets)
	clear(in.touched)
	in.packets, in.touched, in.last = in.packets[:0], in.touched[:0], nil
	return roused
}

// manyFailures is how many errors in a row make a socket suspect.
const manyFailures = 8

// survives deals with a read error. Most concern one packet, such as an ICMP
// answer to something sent before, and the socket goes on working; only a
// closed socket is final. Errors in a row are met with growing patience.
func (e *Endpoint) survives(err error, failures int) bool {
	select {
	case <-e.socket.done:
		return false
	default:
	}
	if errors.Is(err, net.ErrClosed) {
		e.shut(opError("read", nil, e.LocalAddr(), err))
		return false
	}
	e.counters.readErrors.Add(1)
	e.refused(err)
	e.warn("socket read failed", err)
	if failures < manyFailures {
		return true
	}
	pause := time.NewTimer(min(time.Millisecond<<min(failures-manyFailures, 8), 100*time.Millisecond))
	defer pause.Stop()
	select {
	case <-pause.C:
		return true
	case <-e.socket.done:
		return false
	}
}

// receive takes one datagram through the pipeline to a, and finds its session.
// It reports false for what is dropped, which it counts.
func (e *Endpoint) receive(d *udp.Datagram, in *readState, a *routedPacket, now time.Duration) bool {
	data, mark := d.Buf, uint64(0)
	if cipher := e.config.Cipher; cipher != nil {
		if e.protection.authentic && e.protection.nonces == nil {
			mark = e.protection.replays.Mark(data) // of what Open overwrites
		}
		var err error
		if data, err = cipher.Open(data); err != nil {
			if errors.Is(err, crypt.ErrShort) {
				e.counters.dropShort.Add(1)
			} else {
				e.counters.dropCipher.Add(1)
			}
			return false
		}
	}
	if !classify(data, &a.inPacket) {
		e.counters.dropShort.Add(1)
		return false
	}
	a.from, a.size, a.mark = source{d.Addr, d.Peer}, len(d.Buf), mark
	if e.protection.nonces != nil {
		a.nonce = d.Buf[:min(e.protection.nonces.NonceSize(), len(d.Buf))]
	}
	if in.sameSession(&a.inPacket) {
		a.conn = in.last
		return true
	}
	a.conn = e.demultiplex(d, &a.inPacket, now)
	if a.conn != nil && a.kind == plainPacket {
		in.last, in.lastFrom, in.lastConv = a.conn, a.from, a.conv
	}
	return a.conn != nil
}

// demultiplex finds the session of a packet, or opens one where the listener
// wants it. It returns nil for what is dropped, which it counts.
func (e *Endpoint) demultiplex(d *udp.Datagram, p *inPacket, now time.Duration) *Conn {
	key := makeKey(d.Addr, d.Peer, p.conv)
	e.mu.RLock()
	c := e.table.sessions[key]
	if p.kind == parityPacket {
		if all := e.table.fecByAddr[key]; len(all) == 1 {
			c = all[0]
		}
	}
	coded := c != nil && c.path.fecBound
	e.mu.RUnlock()
	if c == nil {
		c = e.handleUnknown(key, d, p, now)
	}
	if c != nil && p.kind == fecPacket && !coded {
		e.bindFEC(c)
	}
	return c
}
