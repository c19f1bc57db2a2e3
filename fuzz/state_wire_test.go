package fuzz_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"net/netip"
	"time"

	"github.com/arqnet/kcp/crypt"
)

// What sessions say beyond the segments of script_test.go: signals (WIRE.md
// §5) and the header of error correction (§4.2). It is written down here a
// second time, independent of the package under test.

// Codes of signals.
const (
	sigHello   = 1
	sigInfo    = 2
	sigConfirm = 3
	sigFin     = 4
	sigClose   = 5
	sigPing    = 6
	sigCookie  = 7
	sigReset   = 8
	sigAbort   = 9
	sigProbe   = 10
	sigToken   = 11
	sigTie     = 15
	sigAnswer  = 0x80
)

// Types of packets with the header of error correction.
const (
	shardHeader   = 8
	shardData     = 0x00f1
	shardParity   = 0x00f2
	shardDatagram = 0x00f3
)

// signal is a signal with its arguments.
type signal struct {
	code   byte
	sn, ts uint32
}

// answer returns the signal that answers s.
func (s signal) answer() signal { return signal{s.code | sigAnswer, s.sn, s.ts} }

// cmd returns the command that s travels in.
func (s signal) cmd() byte {
	switch s.code {
	case sigHello, sigConfirm, sigFin, sigClose, sigPing, sigProbe:
		return cmdWask
	}
	return cmdWins
}

// isSignal reports whether a segment carries a signal.
func (g segment) isSignal() bool { return g.frg != 0 && (g.cmd == cmdWask || g.cmd == cmdWins) }

// signal returns the signal that g carries.
func (g segment) signal() signal { return signal{g.frg, g.sn, g.ts} }

// put writes g, with its payload, behind p. The size is that of the header,
// unless it is 0: then that of the payload.
func (g segment) put(p []byte) []byte {
	if g.size == 0 {
		g.size = uint32(len(g.payload))
	}
	p = le.AppendUint32(p, g.conv)
	p = append(p, g.cmd, g.frg)
	p = le.AppendUint16(p, g.wnd)
	p = le.AppendUint32(p, g.ts)
	p = le.AppendUint32(p, g.sn)
	p = le.AppendUint32(p, g.una)
	p = le.AppendUint32(p, g.size)
	return append(p, g.payload...)
}

// shard puts the header of error correction in front of content, which for
// parity is all that follows the type.
func shard(seqid uint32, kind uint16, content []byte) []byte {
	p := le.AppendUint32(nil, seqid)
	p = le.AppendUint16(p, kind)
	if kind != shardParity {
		p = le.AppendUint16(p, uint16(2+len(content)))
	}
	return append(p, content...)
}

// shardOf returns seqid and type of a packet with the header of error
// correction; false if it has none.
func shardOf(p []byte) (seqid uint32, kind uint16, ok bool) {
	if len(p) < shardHeader {
		return 0, 0, false
	}
	kind = le.Uint16(p[4:])
	return le.Uint32(p), kind, kind == shardData || kind == shardParity || kind == shardDatagram
}

// wire seals and opens packets as the endpoints do. A nil cipher is none.
type wire struct {
	cipher crypt.Cipher
	gcm    cipher.AEAD // of cipher, to number packets; nil: they are not numbered
	tls    *keyLog     // nil: no TLS
}

// newGCM returns a wire with AES-GCM.
func newGCM(key []byte) wire {
	c, _ := crypt.AESGCM(key)
	block, _ := aes.NewCipher(key)
	gcm, _ := cipher.NewGCM(block)
	return wire{cipher: c, gcm: gcm}
}

// nonceBase returns that of the packet numbers of an end of c (WIRE.md §4.1).
func (c *conversationSeen) nonceBase(end int) []byte {
	b := le.AppendUint32([]byte("kcp packet number"), c.conv)
	b = le.AppendUint32(b, c.ends[end].token)
	b = le.AppendUint32(b, c.ends[other(end)].token)
	sum := sha256.Sum256(b)
	return sum[:12]
}

// seesNumber takes note of the packet number of an end of c.
func (c *conversationSeen) seesNumber(end int, packet []byte) {
	base := c.nonceBase(end)
	if len(packet) < 12 || !bytes.Equal(packet[:8], base[:8]) {
		return
	}
	s := &c.ends[end]
	s.numbered, s.number = true, max(s.number, (le.Uint32(base[8:])^le.Uint32(packet[8:]))+1)
}

// sealNumbered seals the next packet of an end of c.
func (w wire) sealNumbered(c *conversationSeen, end int, content []byte) []byte {
	s, nonce := &c.ends[end], c.nonceBase(end)
	s.number = max(s.number, c.lead)
	le.PutUint32(nonce[8:], le.Uint32(nonce[8:])^s.number)
	s.number++
	return w.gcm.Seal(nonce, nonce, content, nil)
}

func (w wire) seal(content []byte) []byte {
	if w.cipher == nil {
		return content
	}
	head, tail := w.cipher.Overhead()
	p := append(make([]byte, head, head+len(content)+tail), content...)
	p = p[:head+len(content)+tail]
	if w.cipher.Seal(p) != nil {
		return nil
	}
	return p
}

// open returns a copy of the content of a packet; nil if it is none.
func (w wire) open(packet []byte) []byte {
	p := bytes.Clone(packet)
	if w.cipher == nil {
		return p
	}
	content, err := w.cipher.Open(p)
	if err != nil {
		return nil
	}
	return content
}

// recorded is a packet that was seen on its way.
type recorded struct {
	from, to netip.AddrPort
	data     []byte
}

// conversationSeen is what can be known of a session from its packets.
type conversationSeen struct {
	conv uint32
	ends [2]speaker // 0 has dialled
	past []recorded // the last packets of both
	at   time.Time  // when the last was seen

	lead    uint32   // first packet number that is used in the name of an end
	mute    int      // end whose own packets do not arrive; -1: none
	secrets *secrets // of TLS; nil: not known
	chacha  bool     // the cipher suite is TLS_CHACHA20_POLY1305_SHA256
}

// speaker is what one end of a session has said.
type speaker struct {
	addr     netip.AddrPort
	token    uint32
	next     uint32 // behind the highest sn it has sent
	una, ts  uint32
	wnd      uint16
	final    uint32
	asked    []signal // the last questions
	seqid    uint32   // of error correction
	hasShard bool
	segments uint64 // said in all
	streams  []*streamSeen
	numbered bool   // with an AEAD: packets have numbers
	number   uint32 // behind the highest, seen or used
	tls      [levels]*protection
	crypto   []segment // the last CRYPTO
	resetKey *segment  // the last RESETKEY
}

// sees takes note of one packet, opened, that the end has sent.
func (s *speaker) sees(content []byte) {
	if seqid, kind, ok := shardOf(content); ok {
		s.seqid, s.hasShard = seqid, true
		if kind != shardData {
			return
		}
		content = content[shardHeader:]
	}
	for _, g := range segments(content) {
		s.segments++
		s.una, s.wnd = g.una, g.wnd
		switch {
		case g.isSignal():
			s.hears(g.signal())
			s.seesTLS(g)
		case g.cmd == cmdPush || g.cmd == cmdPiece || g.cmd == cmdStream || g.cmd == cmdStreamPiece:
			if g.cmd == cmdStream {
				s.seesStream(g.payload)
			}
			s.ts = g.ts
			if ahead(g.sn+1, s.next) > 0 {
				s.next = g.sn + 1
			}
		}
	}
}

// hears takes note of a signal that the end has sent.
func (s *speaker) hears(g signal) {
	switch g.code {
	case sigHello:
		s.token = g.ts
	case sigHello | sigAnswer:
		s.token = g.sn
	case sigConfirm:
		s.token = g.ts
	case sigFin, sigClose:
		s.final = g.sn
	}
	if g.cmd() == cmdWask || g.code == sigCookie {
		if len(s.asked) == 8 {
			s.asked = s.asked[1:]
		}
		s.asked = append(s.asked, g)
	}
}
