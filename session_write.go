package kcp

import (
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/udp"
)

// outgoing is the output side of a session: packets are collected under the
// session's lock, and encoded and written to the socket without it. One
// goroutine at a time does so, so that they leave in order.
type outgoing struct {
	sender      packetSealer
	current     *buffer // of the packet under construction in the state machine
	probe       []byte  // of the path MTU, to be sent besides packets; nil: none
	sending     bool    // somebody is at it; fecData and fecParity are theirs, and of outbox spare and batch
	noFECHeader bool    // no FEC header for this batch
	noParity    bool    // no parity for this batch
	*outbox             // nil while nothing is sent

	fecData, fecParity uint64 // packets encoded so far
}

// outbox holds what is on its way to the socket.
type outbox struct {
	packets []packet // to be sent
	spare   []packet // space for the next
	batch   []udp.Datagram
}

// add puts a packet behind those to be sent.
func (o *outgoing) add(p packet) {
	if o.outbox == nil {
		o.outbox = new(outbox)
	}
	o.packets = append(o.packets, p)
}

// waiting returns how many packets are to be sent.
func (o *outgoing) waiting() int {
	if o.outbox == nil {
		return 0
	}
	return len(o.packets)
}

const (
	// sendRounds is how many batches in a row one goroutine writes to the
	// socket before it leaves the rest to the timer.
	sendRounds = 16
	// maxOutgoing bounds the packets that datagrams may pile up.
	maxOutgoing = 4096
)

func (o *outgoing) init(e *Endpoint) {
	o.sender = packetSealer{overhead: e.config.overhead()}
	if f := e.config.FEC; f.enabled() {
		// The ratio has passed Validate.
		o.sender.encoder, _ = fec.NewEncoder(f.Data, f.Parity)
	}
}

// compact gives spare memory back.
func (o *outgoing) compact() {
	if !o.sending {
		o.outbox = nil
		if o.sender.encoder != nil {
			o.sender.encoder.Compact()
		}
	}
}

// packetBuffer gives the state machine space for a packet of n bytes.
func (c *Conn) packetBuffer(n int) []byte {
	room := &c.outgoing.sender.overhead
	p := c.ep.packet(room.total() + n)
	c.outgoing.current = p.pooled
	return p.buf[room.head() : room.head()+n : room.head()+n]
}

// collect takes a packet that the state machine has put out.
func (c *Conn) collect(data []byte) {
	o := &c.outgoing
	b, room := o.current, &o.sender.overhead
	o.current = nil
	if c.overdrawn() {
		c.ep.packets.Put(b)
		return
	}
	size := room.total() + len(data)
	p := packet{buf: b.b[:min(size, cap(b.b))], pooled: b}
	if &data[0] != &b.b[room.head()] { // larger than the MTU: not in the space given
		p = c.ep.packet(size)
		copy(p.buf[room.head():], data)
	}
	o.add(p)
}

// queueSegment takes a packet in the buffer of its segment. A cipher would change what
// may have to be sent again, so this is for sessions without.
func (c *Conn) queueSegment(s *sendSegment) {
	if c.overdrawn() {
		c.kcp.releaseSegment(s)
		return
	}
	c.outgoing.add(packet{buf: c.kcp.segmentPacket(s), segment: s})
}

// overdrawn reports whether the packet that the state machine has just put out
// exceeds what may be sent to the peer's address. The state machine sees to it
// that none does; this is for what it may overlook.
func (c *Conn) overdrawn() bool {
	if !c.kcp.overdrawn() {
		return false
	}
	c.ep.counters.dropCredit.Add(1)
	return true
}

// writePackets encodes and writes the collected packets, without holding the lock
// meanwhile. Where another goroutine is at it, that one takes them along.
func (c *Conn) writePackets() {
	o := &c.outgoing
	if o.sending {
		return
	}
	o.sending = true
	var failed error
	for round := 0; o.waiting() > 0; round++ {
		if round == sendRounds && c.closing.state != stateEnded {
			c.wake(c.ep.now())
			break
		}
		if probe := o.probe; probe != nil {
			o.probe = nil
			if failed = c.sendProbe(probe); failed != nil {
				break
			}
		}
		packets := o.packets
		o.packets = o.spare[:0]
		data, shard := len(packets), int(c.path.shard)
		to, numbers := c.origin(), c.in.numbers.sender()
		// An address that is not validated is answered in the form that it uses,
		// and gets no parity.
		o.noParity = o.sender.encoder == nil || c.hs.unvalidated.Load()
		o.noFECHeader = o.noParity && (o.sender.encoder == nil || !c.hs.openedFEC)
		var err error
		c.unlocked(func() {
			packets, err = c.encode(packets, to, numbers)
			c.ep.send(shard, packets, o.batch)
		})
		if !o.noFECHeader {
			o.fecData += uint64(data)
			o.fecParity += uint64(len(packets) - data)
		}
		clear(o.batch)
		for i := range packets {
			if s := packets[i].segment; s != nil {
				c.kcp.releaseSegment(s)
			}
		}
		clear(packets)
		o.spare = packets[:0]
		if err != nil {
			failed = err
			break
		}
	}
	o.sending = false
	if failed != nil {
		c.end(failed)
	}
	if c.closing.state == stateEnded {
		c.retire()
	}
}

// encode runs packets through the pipeline into the batch, and adds the parity
// packets that belong between them. On an error nothing is left to be sent.
func (c *Conn) encode(packets []packet, to source, numbers *packetNumbers) ([]packet, error) {
	o := &c.outgoing
	o.batch = o.batch[:0]
	now := uint32(0)
	if o.sender.encoder != nil {
		now = clock(c.ep.now())
	}
	n := len(packets)
	for i := range n {
		p := &packets[i]
		if o.noFECHeader && !p.datagram {
			p.buf = p.buf[o.sender.overhead.fecHead:]
		}
		parity := o.sender.encode(p, now, o.noFECHeader)
		if err := c.seal(p, to, numbers); err != nil {
			o.batch = o.batch[:0]
			return packets, err
		}
		if o.noParity {
			parity = nil
		}
		for _, shard := range parity {
			q := c.ep.packet(o.sender.overhead.cipherHead + len(shard) + o.sender.overhead.tail)
			copy(q.buf[o.sender.overhead.cipherHead:], shard)
			packets = append(packets, q)
			if err := c.seal(&q, to, numbers); err != nil {
				o.batch = o.batch[:0]
				return packets, err
			}
		}
	}
	return packets, nil
}

// seal encrypts p and appends it to the batch.
func (c *Conn) seal(p *packet, to source, numbers *packetNumbers) error {
	o := &c.outgoing
	if err := c.ep.seal(p.buf, numbers); err != nil {
		return err
	}
	o.batch = append(o.batch, udp.Datagram{Buf: p.buf, Addr: to.addr, Peer: to.peer})
	return nil
}

// datagramHeader is what an out-of-band datagram has between cipher and
// payload: an FEC header, and the conversation id.
const datagramHeader = fec.HeaderSize + 4

// packet is a datagram on its way out. Its buffer is one of the endpoint's, or
// that of a segment.
type packet struct {
	buf      []byte
	pooled   *buffer
	segment  *sendSegment
	datagram bool // out of band: past the state machine and FEC
}

// buffer is a packet's buffer in the endpoint's pool.
type buffer struct{ b []byte }

// overhead is the room that a packet needs around what the state machine, or a
// datagram, puts into it.
type overhead struct {
	cipherHead int
	fecHead    int // 0 without FEC
	tail       int
}

func (o overhead) head() int { return o.cipherHead + o.fecHead }

func (o overhead) total() int { return o.head() + o.tail }

// packetSealer is the outgoing half of a session's pipeline. It is used by the one
// goroutine at a time that writes the session's packets to the socket.
type packetSealer struct {
	encoder  *fec.Encoder // nil: none
	overhead overhead
}

// encode adds the error correction to p, unless that is to go plain, and returns
// the parity packets that it completes a group with; they are valid until the
// next call.
func (s *packetSealer) encode(p *packet, now uint32, plain bool) [][]byte {
	inner := p.buf[s.overhead.cipherHead : len(p.buf)-s.overhead.tail]
	switch {
	case p.datagram:
		fec.PutOOB(inner)
	case !plain:
		return s.encoder.Encode(inner, now)
	}
	return nil
}
