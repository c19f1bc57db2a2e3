package main

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/packetkeys"
)

// floods are the cases of the flood suite.
var floods = []flood{
	// First packets, each of a conversation of its own.
	{name: "hello", rate: 50_000, packet: firstHello},
	{name: "push", rate: 50_000, packet: firstPush, kcpGo: true},
	{name: "hello-tls", rate: 50_000, packet: firstTLS, config: func(c *kcp.Config) { c.TLS, _ = sharedTLS(settings{}) }},
	{name: "garbage", rate: 50_000, packet: garbage, kcpGo: true},
	{name: "hello-validated", rate: 50_000, packet: firstHello},
	{name: "push-validated", rate: 50_000, packet: firstPush},
	// FEC packets of peers that have said HELLO: few in a row speak for one
	// ratio, and then for another.
	{name: "fec-ratio", rate: 40_000, sources: 8, session: halfOpen, packet: fecShard},
	// Fragments that do not count down, behind a queue that is full: an echo
	// server waits in Write.
	{
		name: "broken-messages", rate: 3000, sources: 1, session: proven, packet: brokenMessages,
		config:  func(c *kcp.Config) { c.ReceiveWindow = 2048 },
		serve:   serveSessions(func(c io.ReadWriter) { _, _ = io.Copy(c, c) }),
		prepare: fillQueue,
	},
	// Packets full of PINGs with different arguments: of the size of a path's
	// MTU, and as large as UDP allows.
	{name: "pings", rate: 10_000, sources: 1, session: halfOpen, packet: pings(floodMTU)},
	{name: "pings-large", rate: 200, sources: 1, session: halfOpen, packet: pings(maxDatagram)},
	// Last pieces of large segments, which reserve room for all of them.
	{
		name: "pieces", rate: 500, sources: 96, session: proven, packet: pieces,
		config: func(c *kcp.Config) { c.MaxBuffered = 64 << 20 },
	},
	// Empty segments behind a gap.
	{name: "early-push", rate: 10_000, session: halfOpen, packet: earlyPushes},
	// Acknowledgements of the latest segments of a download, one at a time.
	{
		name: "ack-storm", rate: 2000, sources: 4, session: proven, packet: acknowledgements,
		serve: serveSessions(func(c io.ReadWriter) {
			for b := make([]byte, writeSize); ; {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		}),
	},
	// Datagrams that nobody reads.
	{name: "datagrams", rate: 20_000, session: halfOpen, packet: datagrams},
	// Two packets each of conversations of legacy peers, a second apart, as if
	// the addresses were real.
	{
		name: "forged-push", rate: 20_000, packet: pushAndMore, serve: acceptAll, dials: true,
		config: func(c *kcp.Config) { c.MaxSessions = 8192 },
	},
	// Acknowledgements half the circle away from what was sent.
	{name: "una", rate: 50_000, session: halfOpen, packet: distantUna},
	// Questions of unknown conversations, each of which is answered.
	{
		name: "replies", rate: 50_000, packet: unknownPing, serve: acceptAll, dials: true,
		config: func(c *kcp.Config) { c.AddressValidation, c.LegacyPeers = kcp.ValidateAlways, kcp.LegacyRefuse },
	},
}

const (
	floodPushSize = 500
	floodMTU      = 1400
	maxDatagram   = 65_000
)

func firstHello(a *attacker) []byte {
	a.conv.Store(a.random.Uint32())
	b := a.append(a.b[:0], segment{cmd: cmdWask, frg: sigHello, wnd: 256, ts: a.random.Uint32()}, nil)
	return a.append(b, segment{cmd: cmdWins, frg: sigInfo, wnd: 256, sn: 1}, nil)
}

func firstPush(a *attacker) []byte {
	a.conv.Store(a.random.Uint32())
	return a.append(a.b[:0], segment{cmd: cmdPush, wnd: 256}, zeros[:floodPushSize])
}

func garbage(a *attacker) []byte {
	b := a.b[:100]
	for i := range b {
		b[i] = byte(a.random.Uint32())
	}
	return b
}

// firstTLS makes the first packets of a dialler with TLS, which hold a whole
// ClientHello, in turn.
func firstTLS(a *attacker) []byte {
	hello := recordedHello()
	i := a.n % uint32(len(hello))
	if i == 0 {
		a.conv.Store(a.random.Uint32())
	}
	b := append(a.b[:0], hello[i]...)
	for at := 0; at < helloSealed; at += segmentHeader { // all segments name the conversation
		binary.LittleEndian.PutUint32(b[at:], a.conv.Load())
	}
	helloKeys(b, true).Seal(b, helloSealed)
	return b
}

// helloSealed is where the sealed part of such a packet begins, behind HELLO, INFO
// and the header of CRYPTO.
const helloSealed = 3 * segmentHeader

// helloKeys returns the keys of such a packet: its conversation, and the token in
// HELLO.
func helloKeys(b []byte, dialled bool) *packetkeys.Initial {
	return packetkeys.NewInitial(binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[8:]), dialled)
}

// segmentHeader is the size of the header of a segment, in bytes.
const segmentHeader = 24

// recordedHello returns the packets with the ClientHello of a session that
// nothing answers, opened, with room for the seal.
var recordedHello = sync.OnceValue(func() (packets [][]byte) {
	silent, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		panic(err)
	}
	defer silent.Close()
	config, err := sharedTLS(settings{})
	if err != nil {
		panic(err)
	}
	_, _ = kcp.Dial("udp4", silent.LocalAddr().String(), &kcp.Config{TLS: config, DialTimeout: 100 * time.Millisecond})
	_ = silent.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	for len(packets) < 2 {
		b := make([]byte, floodMTU)
		n, err := silent.Read(b)
		if err != nil {
			panic(err)
		}
		if _, err := helloKeys(b, false).Open(b[:n], helloSealed); err != nil {
			panic(err)
		}
		packets = append(packets, b[:n])
	}
	return packets
})

// zeros is what payloads are made of whose content does not matter.
var zeros [floodMTU]byte

// fecHead adds the header of forward error correction to a packet that is size
// bytes long behind it.
func fecHead(b []byte, seqid uint32, kind, size uint16) []byte {
	b = binary.LittleEndian.AppendUint32(b, seqid)
	b = binary.LittleEndian.AppendUint16(b, kind)
	return binary.LittleEndian.AppendUint16(b, size+2)
}

// fecShard makes an empty shard. Sixteen shards are of one ratio, and the next
// of another.
func fecShard(a *attacker) []byte {
	size, data := uint32(2), uint32(1)
	if a.n/16%2 == 1 {
		size, data = 5, 3
	}
	if a.n%size < data {
		return a.append(fecHead(a.b[:0], a.n, 0xf1, segmentHead), segment{cmd: cmdWins, wnd: 128}, nil)
	}
	return append(fecHead(a.b[:0], a.n, 0xf2, 1), 0)
}

func datagrams(a *attacker) []byte {
	b := fecHead(a.b[:0], 1<<32-1, 0xf3, uint16(4+1200))
	b = binary.LittleEndian.AppendUint32(b, a.conv.Load())
	return append(b, zeros[:1200]...)
}

// fillQueue sends data and takes none back, until what the listening end has not
// read fills its window except for some segments.
func fillQueue(a *attacker) error {
	const spare = 8
	payload := zeros[:floodMTU-segmentHead]
	for end := time.Now().Add(setupTime); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		window := a.window.Load()
		if window > 0 && window <= spare && a.next == a.una.Load() {
			return nil
		}
		a.next = a.una.Load()
		for i := spare; i < int(min(window, 64)); i++ {
			b := a.append(a.b[:0], segment{cmd: cmdPush, sn: a.next}, payload)
			_, _ = a.socket.WriteToUDPAddrPort(b, a.server)
			a.next++
		}
		ask := a.append(a.b[:0], segment{cmd: cmdWask}, nil)
		_, _ = a.socket.WriteToUDPAddrPort(ask, a.server)
	}
	return errors.New("the queue of the listening end does not fill")
}

// brokenMessages makes a packet of fragments none of which follows on the one
// before.
func brokenMessages(a *attacker) []byte {
	if a.n%helloAgain == 0 {
		a.next = a.una.Load() // what was lost has to come again
	}
	b := a.b[:0]
	for len(b)+segmentHead <= floodMTU {
		b = a.append(b, segment{cmd: cmdPush, frg: 100, sn: a.next}, nil)
		a.next++
	}
	return b
}

func pings(size int) func(a *attacker) []byte {
	return func(a *attacker) []byte {
		b := a.b[:0]
		for len(b)+segmentHead <= size {
			b = a.append(b, segment{cmd: cmdWask, frg: sigPing, wnd: 128, sn: a.random.Uint32(), ts: a.random.Uint32()}, nil)
		}
		return b
	}
}

// pieces makes a packet of last pieces, of a byte each, of segments behind a gap.
func pieces(a *attacker) []byte {
	const size, at = 4033, 4032
	piece := binary.LittleEndian.AppendUint16(nil, at)
	piece = binary.LittleEndian.AppendUint16(piece, size)
	piece = append(piece, 0)
	b := a.b[:0]
	for len(b)+segmentHead+len(piece) <= floodMTU {
		a.next = a.next%512 + 1
		b = a.append(b, segment{cmd: cmdPiece, wnd: 128, sn: a.next}, piece)
	}
	return b
}

func earlyPushes(a *attacker) []byte {
	b := a.b[:0]
	for len(b)+segmentHead <= floodMTU {
		a.next = a.next%(bulkWindow-1) + 1
		b = a.append(b, segment{cmd: cmdPush, wnd: 128, sn: a.next}, nil)
	}
	return b
}

// acknowledgements acknowledges the newest segments, one in a packet from the
// last down, and then all of them.
func acknowledgements(a *attacker) []byte {
	newest := a.newest.Load()
	if a.n%8 == 0 {
		a.next = newest
		return a.append(a.b[:0], segment{cmd: cmdWins, wnd: 65535, una: newest + 1}, nil)
	}
	if a.n%8 == 1 {
		a.next = newest
	}
	a.next--
	return a.append(a.b[:0], segment{cmd: cmdAck, wnd: 65535, sn: a.next + 1}, nil)
}

// pushAndMore makes the first packet of a conversation, or the second packet of
// one that began a second ago.
func pushAndMore(a *attacker) []byte {
	const second = 20_000 / floodSources // packets of a source
	i := a.n / 2
	push := a.n%2 == 0
	if !push {
		i -= second / 2
	}
	a.conv.Store(a.token + i*0x9e3779b1)
	if push {
		return a.append(a.b[:0], segment{cmd: cmdPush, wnd: 256}, []byte{greeting})
	}
	return a.append(a.b[:0], segment{cmd: cmdWins, wnd: 256}, nil)
}

// distantUna acknowledges what is at, or next to, half the circle away from all
// that can have been sent.
func distantUna(a *attacker) []byte {
	una := uint32(1<<31) + a.random.Uint32N(3) - 1
	return a.append(a.b[:0], segment{cmd: cmdWins, wnd: 128, una: una}, nil)
}

func unknownPing(a *attacker) []byte {
	a.conv.Store(a.random.Uint32())
	return a.append(a.b[:0], segment{cmd: cmdWask, frg: sigPing, wnd: 128, sn: a.random.Uint32(), ts: a.random.Uint32()}, nil)
}
