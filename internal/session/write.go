package session

import (
	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/netpath"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/stats"
)

// outgoing is the output side of a session. Packets are collected with Conn.mu
// held, and encoded and written to the socket without it. One goroutine at a
// time writes, so they leave in order: the one that has set sending. Until it
// clears that, it alone uses encoder, fec, outbox.spare, batch, hold and parity, with and
// without Conn.mu. Conn.mu guards the rest.
type outgoing struct {
	encoder *fec.Encoder // nil: none
	current *buffer      // of the packet that the state machine is building; nil: none
	sending bool         // a goroutine is writing packets
	batched bool         // they are in a sendBatch
	fec     fecUse       // of this batch
	grains  uint32       // the session's part of Load.Written
	*outbox              // nil until the first packet, and once compacted

	sent, bytes uint64 // packets, but for probes of the MTU, and bytes of all
	askAt       uint64 // sent from which data takes COUNT along
	unseen      uint64 // of sent, those that left before the peer had the session

	fecData, fecParity uint64 // packets encoded so far, as in stats.FEC
}

// fecUse is what forward error correction adds to packets.
type fecUse uint8

const (
	noFEC      fecUse = iota // nothing
	onlyHeader               // a header
	withParity               // a header, and parity
)

// outbox holds packets on their way to the socket.
type outbox struct {
	probe   []byte         // path MTU probe to send before the packets; nil: none
	packets []Packet       // collected, to be sent
	spare   []Packet       // empty, to collect the next packets in
	batch   []udp.Datagram // the encoded packets that are being written
	whole   int            // bytes; larger packets may be fragmented
	hold    bool           // Encode leaves parity in parity: the rate is capped
	parity  []Packet       // that Encode has left there
}

// add appends p to the packets to be sent.
func (o *outgoing) add(p Packet) {
	if o.outbox == nil {
		o.outbox = new(outbox)
	}
	o.packets = append(o.packets, p)
	o.sent++
}

// seen returns how many packets the peer would have got if none was lost.
func (o *outgoing) seen() uint64 { return o.sent - o.unseen }

// open returns the outbox, which it allocates if there is none.
func (o *outgoing) open() *outbox {
	if o.outbox == nil {
		o.outbox = new(outbox)
	}
	return o.outbox
}

// dropProbe drops a probe that was not sent yet.
func (o *outgoing) dropProbe() {
	if o.outbox != nil {
		o.probe = nil
	}
}

// waiting returns the number of packets to be sent.
func (o *outgoing) waiting() int {
	if o.outbox == nil {
		return 0
	}
	return len(o.packets)
}

const (
	// sendRounds is how many batches in a row one goroutine writes to the
	// socket before it leaves the rest to the session's next wake-up.
	sendRounds = 16
	// maxOutgoing is the number of collected packets from which SendDatagram
	// drops datagrams.
	maxOutgoing = 4096
)

// init sets up o for a session.
func (o *outgoing) init(e *Shared) {
	o.askAt = netpath.AskAfter
	if f := e.Config.FEC; f != (stats.Ratio{}) {
		// The ratio has passed Validate.
		o.encoder, _ = fec.NewEncoder(f.Data, f.Parity)
	}
}

// compact releases spare memory, unless a goroutine is writing, or has something to.
func (o *outgoing) compact() {
	if !o.sending && o.waiting() == 0 {
		o.outbox = nil
		if o.encoder != nil {
			o.encoder.Compact()
		}
	}
}

// packetBuffer is the state machine's hook that returns space for a packet of n
// bytes, with headroom and tailroom for FEC and the cipher around it.
func (c *Session) packetBuffer(n int) []byte {
	room := &c.shared.Overhead
	p := c.shared.Packet(room.Total + n)
	c.outgoing.current = p.pooled
	return p.Buf[room.head : room.head+n : room.head+n]
}

// collect is the state machine's output hook: it queues a packet to be sent.
func (c *Session) collect(data []byte) {
	o := &c.outgoing
	b, room := o.current, &c.shared.Overhead
	o.current = nil
	if c.hs.securing || c.hs.unvalidated.Load() && c.overdrawn() {
		packetBuffers.Put(b)
		return
	}
	size := room.Total + len(data)
	p := Packet{Buf: b.b[:min(size, cap(b.b))], pooled: b}
	if &data[0] != &b.b[room.head] { // larger than the MTU: not in the space given
		p = c.shared.Packet(size)
		copy(p.Buf[room.head:], data)
	}
	o.add(p)
}

// queueSegment is the state machine's hook that queues a packet in the buffer
// of its segment, without a copy. A cipher has to leave that as it is, since it
// may have to be retransmitted: see Shared.sealsFrom. Sessions with other
// ciphers do not use queueSegment.
func (c *Session) queueSegment(s *machine.Segment, data []byte) {
	if c.hs.securing || c.hs.unvalidated.Load() && c.overdrawn() {
		c.kcp.ReleaseSegment(s)
		return
	}
	c.outgoing.add(Packet{Buf: data, segment: s})
}

// overdrawn reports whether the packet that the state machine has just output
// exceeds the anti-amplification limit (RFC 9000 §8.1), and counts it. The
// state machine keeps the limit itself; this is a second line of defence.
func (c *Session) overdrawn() bool {
	if !c.kcp.Validation().Overdrawn() {
		return false
	}
	c.shared.Counters.DropCredit.Add(1)
	return true
}

// WriteClaim is who writes the packets that wait.
type WriteClaim uint8

const (
	Nobody  WriteClaim = iota
	Caller             // calls NextWrite, until that reports false
	Batcher            // calls NextWrite once, and Wrote; a session that has ended is not for it
)

// ToWrite reports whether packets wait, or a session that has ended is to be retired, and
// no goroutine writes. by is who does from now on.
func (c *Session) ToWrite(by WriteClaim) bool {
	o, waits := &c.outgoing, false
	if o.outbox != nil {
		waits = len(o.packets) > 0 && !(by == Batcher && o.probe != nil)
	}
	if o.sending || !waits && (by == Batcher || c.closing.Phase < closing.Ended || c.closing.Phase == closing.Retired) {
		return false
	}
	o.sending, o.batched = by != Nobody, by == Batcher
	return true
}

// origin returns the addresses that packets of the peer have.
func (c *Session) origin() Source {
	ends := c.ends.Load()
	o := Source{Addr: c.entry.Addr, Local: ends.local}
	if c.entry.Peer != "" {
		o.Peer = ends.remote
	}
	return o
}

// Encode adds FEC to the packets of w and encrypts them into w.Datagrams, with the
// parity packets between them. Those are appended to w.Packets; with o.hold they are in
// o.parity instead, and not encrypted. With an error there are no datagrams. The
// goroutine that has claimed the write calls it, without Conn.mu.
func (c *Session) Encode(w *Written) {
	o := &c.outgoing
	if w.probe != nil {
		w.sealProbe()
		return
	}
	o.batch = o.batch[:0]
	now := uint32(0)
	if o.encoder != nil {
		now = clock(c.host.Now())
	}
	n := len(w.Packets)
	for i := 0; i < n && w.err == nil; i++ {
		p := &w.Packets[i]
		var parity [][]byte
		if !p.ready && !p.parity {
			if o.fec == noFEC && !p.datagram {
				p.Buf = p.Buf[c.shared.Overhead.fecHead:]
			} else {
				parity = c.addFEC(p, now)
			}
		}
		if w.err = c.seal(p, w); o.fec == withParity && w.err == nil {
			c.encodeParity(w, parity)
		}
	}
	if w.err != nil {
		o.batch = o.batch[:0]
	}
	w.Datagrams = o.batch
}

// encodeParity is Encode for the parity packets of a group.
func (c *Session) encodeParity(w *Written, parity [][]byte) {
	o := &c.outgoing
	for _, shard := range parity {
		q := c.shared.Packet(c.shared.Overhead.CipherHead + len(shard) + c.shared.Overhead.Tail)
		copy(q.Buf[c.shared.Overhead.CipherHead:], shard)
		if o.hold {
			q.parity = true
			o.parity = append(o.parity, q)
			continue
		}
		w.Packets = append(w.Packets, q)
		if w.err = c.seal(&q, w); w.err != nil {
			return
		}
	}
}

// repeatsWhole is how many transmissions of a packet of a TLS handshake leave whole.
// All may be fragmented if these were lost, since such packets cannot be smaller.
const repeatsWhole = 3

// seal encrypts p, unless that was done, and appends it to the batch. Content in the
// buffer of a segment that has to stay as it is goes to a buffer of its own, but the
// segment has yet to be released. Packets of a handshake that leave again are not merged:
// the system may not be able to. Like Encode, it runs without Conn.mu.
func (c *Session) seal(p *Packet, w *Written) error {
	if !p.ready {
		var content []byte
		if p.segment != nil && c.shared.sealsFrom() {
			content = p.Buf
			sealed := c.shared.Packet(c.shared.Overhead.Total + len(content))
			p.Buf, p.pooled = sealed.Buf, sealed.pooled
		}
		if err := w.by.Seal(p.Buf, content); err != nil {
			return err
		}
	}
	o := &c.outgoing
	d := w.to.Datagram(p.Buf)
	d.Cut = len(p.Buf) > o.whole || p.repeats >= repeatsWhole && len(p.Buf) > netpath.FloorMTU
	d.Alone = p.repeats > 0
	o.batch = append(o.batch, d)
	return nil
}

// DatagramHeader is the size of the header of an out-of-band datagram, between
// cipher and payload: an FEC header and the conversation id.
const DatagramHeader = fec.HeaderSize + 4

// addFEC adds the FEC header to p, unless the batch has none. It returns the
// parity packets if p completes a group; they are valid until the next call. now
// is in milliseconds. Like Encode, it runs without Conn.mu.
func (c *Session) addFEC(p *Packet, now uint32) [][]byte {
	inner := p.Buf[c.shared.Overhead.CipherHead : len(p.Buf)-c.shared.Overhead.Tail]
	switch {
	case p.datagram:
		fec.PutOOB(inner)
	case c.outgoing.fec != noFEC:
		return c.outgoing.encoder.Encode(inner, now)
	}
	return nil
}

// Written is packets of a session on their way to the socket. The goroutine that has
// claimed the write has it.
type Written struct {
	Datagrams []udp.Datagram // the packets, encoded
	Shard     int            // the socket
	Refused   bool           // the system has refused some as too large
	Packets   []Packet
	data      int // of Packets, those that are not parity
	taken     int // of Packets, without those that Encode has added
	to        Source
	by        protect.Protection
	err       error      // of Encode
	probe     *sentProbe // that leaves alone; nil: packets do
}

// NextWrite records that w was written, unless round is 0, and takes what is to be
// written in this round. It reports false if that is nothing: then other goroutines may
// write. over reports whether the session has ended then, and is to be retired.
func (c *Session) NextWrite(w *Written, round int) (more, over bool) {
	if round > 0 {
		c.endWrite(w)
	}
	o, failed := &c.outgoing, w.err
	if failed == nil && o.outbox != nil && len(o.packets) > 0 {
		if round < sendRounds || c.closing.Phase >= closing.Ended {
			c.beginWrite(w)
			return true, false
		}
		c.Wake(c.host.Now())
	}
	if o.sending, o.batched = false, false; failed != nil {
		c.end(failed)
	}
	return false, c.closing.Phase >= closing.Ended && c.closing.Phase != closing.Retired
}

// Wrote records that w, which was written beside packets of other sessions, has left. w
// is nil if code of the application's has panicked meanwhile.
func (c *Session) Wrote(w *Written) {
	if w != nil {
		c.endWrite(w)
	}
	c.outgoing.sending, c.outgoing.batched = false, false
	switch {
	case w == nil:
		c.Unwind()
	case w.err != nil:
		c.end(w.err)
	}
}

// beginWrite takes the collected packets, or the probe before them, to be encoded and
// written.
func (c *Session) beginWrite(w *Written) {
	o := &c.outgoing
	*w = Written{Shard: int(c.path.shard), to: c.origin(), by: (*c.in.protection.Load()).Sender()}
	if o.probe != nil {
		w.probe = c.takeProbe()
		return
	}
	w.Packets, w.data, w.taken = o.packets, len(o.packets), len(o.packets)
	o.packets = o.spare[:0]
	o.spare = nil
	// A peer whose address is not validated gets the packet format that it
	// uses, and no parity.
	switch unvalidated := c.hs.unvalidated.Load(); {
	case o.encoder == nil, unvalidated && !c.hs.openedFEC:
		o.fec = noFEC
	case unvalidated:
		o.fec = onlyHeader
	default:
		o.fec = withParity
	}
	o.hold = c.capped != nil
	if o.whole = MaxUDPPayload; c.plpmtu != nil {
		o.whole = c.plpmtu.Whole(MaxUDPPayload)
	}
	if o.encoder != nil {
		w.data -= countParity(w.Packets)
	}
}

// endWrite records that w was written.
func (c *Session) endWrite(w *Written) {
	o := &c.outgoing
	if w.probe != nil {
		c.endProbe(w)
		return
	}
	if o.fec != noFEC {
		o.fecData += uint64(w.data)
		o.fecParity += uint64(len(w.Packets) - w.data)
	}
	o.sent += uint64(len(w.Packets) - w.taken)
	for i := range o.batch {
		if o.batch[i].TooLarge {
			o.sent--
		} else {
			o.bytes += uint64(len(o.batch[i].Buf))
		}
	}
	if w.Refused {
		c.sizeRefused(smallestRefused(o.batch))
	}
	clear(o.batch)
	for i := range w.Packets {
		if s := w.Packets[i].segment; s != nil {
			c.kcp.ReleaseSegment(s)
		}
	}
	clear(w.Packets)
	o.spare = w.Packets[:0]
	if o.hold {
		c.holdParity()
	}
}

// smallestRefused returns the size of the smallest datagram that the system has
// refused as too large, in bytes.
func smallestRefused(batch []udp.Datagram) int {
	least := MaxUDPPayload
	for i := range batch {
		if batch[i].TooLarge {
			least = min(least, len(batch[i].Buf))
		}
	}
	return least
}
