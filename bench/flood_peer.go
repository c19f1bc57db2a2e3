package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp"
)

// flood is one kind of packets that are meant to harm a listening end.
type flood struct {
	name    string
	rate    int // packets a second, all together
	sources int // addresses, 127.x.y.1; 0: 64
	kcpGo   bool

	session sessionKind              // what the sources have with the listening end
	config  func(*kcp.Config)        // of the listening end, if it is not as always
	serve   func(peer)               // what that does with sessions; nil leaves them
	dials   bool                     // an exchange is a session, and not an echo
	prepare func(a *attacker) error  // before the first packet, if not nil
	packet  func(a *attacker) []byte // makes the next packet
}

// sessionKind is what an attacker has with the listening end.
type sessionKind int

const (
	noSession sessionKind = iota
	halfOpen              // has said HELLO, and nothing else
	proven                // has shown that its address is real
)

const (
	floodSources = 64
	helloAgain   = 256 // packets, after which an attacker says HELLO again
	setupTime    = 5 * time.Second
)

// attacker is a source of a flood. It speaks just enough of the protocol to have
// a session; see WIRE.md.
type attacker struct {
	kind     sessionKind
	socket   *net.UDPConn
	server   netip.AddrPort // where it has its session
	random   *rand.Rand
	b        []byte // room for a packet
	n        uint32 // packets of the flood that were sent
	next     uint32 // sequence number, for packets that count on
	token    uint32
	conv     atomic.Uint32
	welcomed atomic.Bool

	// What the listening end has said last.
	una, newest, window atomic.Uint32
}

// Commands and signals, see WIRE.md.
const (
	cmdPush, cmdAck, cmdWask, cmdWins, cmdPiece = 81, 82, 83, 84, 85

	sigHello, sigInfo, sigConfirm, sigPing = 1, 2, 3, 6
	sigReset, sigAbort, sigWelcome         = 8, 9, 0x81

	segmentHead = 24
)

// segment is the header of a segment, without conv and len.
type segment struct {
	cmd, frg    byte
	wnd         uint16
	ts, sn, una uint32
}

// append adds a segment to a packet.
func (a *attacker) append(b []byte, s segment, payload []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, a.conv.Load())
	b = append(b, s.cmd, s.frg)
	b = binary.LittleEndian.AppendUint16(b, s.wnd)
	b = binary.LittleEndian.AppendUint32(b, s.ts)
	b = binary.LittleEndian.AppendUint32(b, s.sn)
	b = binary.LittleEndian.AppendUint32(b, s.una)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// newAttacker opens the i-th source.
func newAttacker(i int, kind sessionKind, server netip.AddrPort) (*attacker, error) {
	from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, byte(1 + i), byte(i), 1}), 0)
	s, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(from))
	if err != nil {
		return nil, fmt.Errorf("a source address for the flood: %w", err)
	}
	a := &attacker{
		kind: kind, socket: s, server: server, b: make([]byte, 1<<16),
		random: rand.New(rand.NewPCG(rand.Uint64(), uint64(i))),
	}
	a.conv.Store(rand.Uint32())
	a.token = rand.Uint32() | 1
	return a, nil
}

// hello opens the session, or has the listening end repeat its WELCOME.
func (a *attacker) hello() {
	b := a.append(nil, segment{cmd: cmdWask, frg: sigHello, wnd: 128, ts: a.token}, nil)
	b = a.append(b, segment{cmd: cmdWins, frg: sigInfo, wnd: 128, sn: 1, ts: 1}, nil)
	_, _ = a.socket.WriteToUDPAddrPort(b, a.server)
}

// open waits until the session is there.
func (a *attacker) open() error {
	for end := time.Now().Add(setupTime); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if a.welcomed.Load() {
			return nil
		}
		a.hello()
		time.Sleep(20 * time.Millisecond)
	}
	return errors.New("the flood gets no session")
}

// listen reads what the listening end sends, until the socket is closed.
func (a *attacker) listen() {
	b := make([]byte, 1<<16)
	for {
		n, from, err := a.socket.ReadFromUDPAddrPort(b)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		if from == a.server {
			a.read(b[:n])
		}
	}
}

// read counts a packet. A session that was ended is followed by another.
func (a *attacker) read(b []byte) {
	for len(b) >= segmentHead && binary.LittleEndian.Uint32(b) == a.conv.Load() {
		cmd, frg := b[4], b[5]
		sn, size := binary.LittleEndian.Uint32(b[12:]), binary.LittleEndian.Uint32(b[20:])
		if uint64(size) > uint64(len(b)-segmentHead) {
			return
		}
		switch {
		case cmd == cmdWins && (frg == sigReset || frg == sigAbort):
			a.welcomed.Store(false)
			a.conv.Store(a.conv.Load() + 1)
			a.hello()
			return
		case cmd == cmdWins && frg == sigWelcome && a.kind == proven:
			confirm := a.append(nil, segment{cmd: cmdWask, frg: sigConfirm, wnd: 128, sn: sn, ts: a.token}, nil)
			_, _ = a.socket.WriteToUDPAddrPort(confirm, a.server)
			a.welcomed.Store(true)
		case cmd == cmdWins && frg == sigWelcome:
			a.welcomed.Store(true)
		case cmd == cmdPush && int32(sn-a.newest.Load()) > 0:
			a.newest.Store(sn)
		}
		a.window.Store(uint32(binary.LittleEndian.Uint16(b[6:])))
		a.una.Store(binary.LittleEndian.Uint32(b[16:]))
		b = b[segmentHead+size:]
	}
}

// start opens the sources' sessions with the listening end, and has packets sent
// to target until stop is called. They are counted in sent.
func (f *flood) start(server, target netip.AddrPort) (stop func(), sent *atomic.Uint64, err error) {
	var sources []*attacker
	var done sync.WaitGroup
	quit := make(chan struct{})
	stop = func() {
		close(quit)
		for _, a := range sources {
			_ = a.socket.Close()
		}
		done.Wait()
	}
	count := f.sources
	if count == 0 {
		count = floodSources
	}
	for i := range count {
		a, err := newAttacker(i, f.session, server)
		if err != nil {
			stop()
			return nil, nil, err
		}
		sources = append(sources, a)
		if f.session != noSession {
			done.Go(a.listen)
			if err := a.open(); err != nil {
				stop()
				return nil, nil, err
			}
		}
		if f.prepare != nil {
			if err := f.prepare(a); err != nil {
				stop()
				return nil, nil, err
			}
		}
	}
	sent = new(atomic.Uint64)
	done.Go(func() { f.send(sources, target, sent, quit) })
	return stop, sent, nil
}

// send sends packets at the rate of the flood.
func (f *flood) send(sources []*attacker, target netip.AddrPort, sent *atomic.Uint64, quit chan struct{}) {
	start := time.Now()
	for i := 0; ; {
		select {
		case <-quit:
			return
		case <-time.After(floodPause):
		}
		for due := int(time.Since(start).Seconds() * float64(f.rate)); i < due; i++ {
			a := sources[i%len(sources)]
			if a.n++; a.kind != noSession && a.n%helloAgain == 0 {
				a.hello()
			}
			_, _ = a.socket.WriteToUDPAddrPort(f.packet(a), target) // refused or not
			sent.Add(1)
		}
	}
}

// serveSessions accepts sessions and has each served.
func serveSessions(serve func(io.ReadWriter)) func(peer) {
	return func(p peer) {
		for {
			c, err := p.Accept()
			if err != nil {
				return
			}
			go func() {
				serve(c)
				_ = c.Close() // the peer may be gone
			}()
		}
	}
}
