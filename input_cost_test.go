package kcp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a packet costs does not depend on how much the endpoint holds: no loop
// over a structure that a peer can make grow stands on the way of a packet.
// Each of inputKinds is fed to a session that holds much of all that a peer can
// have it hold, and compared with the same at a quarter of the size, and with
// an ordinary packet.

// mutePacketConn is a socket from which nothing is read. It keeps what was
// written last.
type mutePacketConn struct {
	closed chan struct{}
	last   []byte
}

func (p *mutePacketConn) ReadFrom([]byte) (int, net.Addr, error) {
	<-p.closed
	return 0, nil, net.ErrClosed
}

func (p *mutePacketConn) WriteTo(b []byte, _ net.Addr) (int, error) {
	p.last = append(p.last[:0], b...)
	return len(b), nil
}

func (p *mutePacketConn) Close() error { close(p.closed); return nil }

func (p *mutePacketConn) LocalAddr() net.Addr {
	return net.UDPAddrFromAddrPort(netip.MustParseAddrPort(serverAddr))
}

func (*mutePacketConn) SetDeadline(time.Time) error      { return nil }
func (*mutePacketConn) SetReadDeadline(time.Time) error  { return nil }
func (*mutePacketConn) SetWriteDeadline(time.Time) error { return nil }

const (
	costConv  = 1000
	costToken = 9 // of the peer
	// What a session holds at size 1, a quarter of the most.
	costSegments  = 1000 // behind a gap, and as many in front of it
	costPieces    = 60   // segments that arrive in pieces
	costNotes     = 1000 // messages given up, missing, early, in fragments or not read, each of a stream
	costStreams   = 60   // of the peer
	costIDs       = 1000 // far ahead
	costDatagrams = 64
	costShards    = 100
	costSent      = 2000 // messages of one stream of this end, and of the session
)

// costWorld is an endpoint with one session, which the test feeds.
type costWorld struct {
	t     *testing.T
	pc    *mutePacketConn
	e     *Endpoint
	l     *Listener
	c     *Conn
	in    *readState
	addr  netip.AddrPort
	sn    uint32 // of the peer's next segment
	gap   uint32 // sn of the missing segment
	batch []udp.Datagram
}

func newCostWorld(t *testing.T) *costWorld {
	pc := &mutePacketConn{closed: make(chan struct{})}
	e, err := NewEndpoint(pc, &Config{
		ReceiveWindow: 65535, SendWindow: 65535, CongestionControl: congestion.NewNone, WriteBuffer: 64 << 20,
		StreamWriteBuffer: 64 << 20, MaxSessionsPerAddress: 60000, Backlog: 60000,
	})
	require.NoError(t, err)
	w := &costWorld{t: t, pc: pc, e: e, in: &readState{}, addr: floodAddr(1), sn: 0}
	w.l, err = e.Listen()
	require.NoError(t, err)
	info := infoSignal()
	info.ts |= capStreams | capDialled
	w.feed(packetOf(costConv, hello(costToken), bytesOf(info)))
	for _, s := range signalsOf(pc.last) {
		if s.code == sigHello|sigAnswer {
			w.feed(packetOf(costConv, bytesOf(signal{sigConfirm, s.sn, costToken})))
		}
	}
	w.c = accepted(t, w.l)
	require.False(t, w.c.hs.unvalidated.Load())
	return w
}

func (w *costWorld) close() {
	_ = w.pc.Close() // first: nothing else ends a read
	_ = w.e.Close()
}

// feed has the endpoint take packets of the session, as its reader does.
func (w *costWorld) feed(packets ...[]byte) {
	for _, p := range packets {
		w.batch = append(w.batch[:0], udp.Datagram{Buf: withConv(costConv, p), Addr: w.addr})
		w.e.take(w.batch, w.in, nil)
	}
}

// stream sends a segment of a stream.
func (w *costWorld) stream(h streams.Header, data string) []byte {
	w.sn++
	return segment(cmdStream, 0, 0, w.sn-1, w.c.una(), string(h.Append(nil))+data)
}

// una returns what the peer has acknowledged.
func (c *Conn) una() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return uint32(c.kcp.position().acked)
}

// many feeds n segments, several in a packet.
func (w *costWorld) many(n int, make func(i int) []byte) {
	for i := 0; i < n; {
		var p []byte
		for ; i < n && len(p) < 1200; i++ {
			p = append(p, make(i)...)
		}
		w.feed(p)
	}
}

// fill has the session hold all that a peer can make it hold, in size units.
func (w *costWorld) fill(size int) {
	early := func(int) []byte { w.sn++; return push(w.sn-1, 0, "x") }
	w.many(costStreams*size, func(i int) []byte {
		return w.stream(streams.Header{ID: uint32(2*i + 1), Kind: streams.Data, Opens: true, End: true}, "x")
	})
	opened := make(map[uint32]*Stream)
	for range costStreams * size {
		s := acceptStream(w.t, w.c)
		opened[s.ID()] = s
		receive(w.t, s, []byte("x")) // so that its buffer has the full size
	}
	w.many(costSegments*size, early)
	w.gap = w.sn
	w.sn++
	w.many(costSegments*size, early)
	w.many(costPieces*size, func(i int) []byte {
		return piece(w.gap+20000+uint32(i), 0, 0, 4032, strings.Repeat("x", 64))
	})
	w.many(4*costNotes*size, func(i int) []byte { // message 1 is missing
		n := seq(i/4 + 2)
		switch i % 4 {
		case 0:
			return w.stream(streams.Header{ID: notedStream, Kind: streams.Abandon, MID: n, Size: 0}, "")
		case 1:
			return w.stream(streams.Header{ID: earlyStream, Kind: streams.Data, End: true, MID: n}, "x")
		case 2:
			return w.stream(streams.Header{ID: fragmentStream, Kind: streams.Data, Part: true, MID: 2, FSN: uint32(n)}, "x")
		}
		return w.stream(streams.Header{ID: unreadStream, Kind: streams.Data, End: true, MID: n - 1}, "x")
	})
	w.many(costIDs*size, func(i int) []byte {
		return w.stream(streams.Header{ID: uint32(2*i + 20001), Kind: streams.Open, Opens: true}, "")
	})
	for i := range max(costDatagrams, costShards) * size {
		if w.feed(oob([]byte("x"))); i < costShards*size {
			w.feed(fecShard(uint32(3*i), push(0, 0, "x")))
		}
	}
	w.send(opened, size)
}

// Streams of the peer that are like no other.
const (
	notedStream    = 1 + 2*iota // message 1 is missing, and all behind it are given up
	earlyStream                 // message 1 is missing, and all behind it have come
	fragmentStream              // message 2 has many fragments
	unreadStream                // nobody reads it any more
	sentStream                  // this end has sent many messages
	freeStream                  // and others from here on
)

// send has the session send messages of its own and of streams, all of which
// report what becomes of them.
func (w *costWorld) send(opened map[uint32]*Stream, size int) {
	w.feed(wins(w.c.una()))
	for range costSent * size {
		_, err := w.c.TryWrite([]byte("x"))
		require.NoError(w.t, err)
		require.NoError(w.t, opened[sentStream].SendMessage([]byte("x"), &MessageOptions{Done: func(error) {}}))
	}
	for _, s := range opened {
		for range 4 {
			require.NoError(w.t, s.SendMessage([]byte("x"), &MessageOptions{Done: func(error) {}}))
		}
	}
}

// wins returns a window update that opens the window wide.
func wins(una uint32) []byte {
	h := header{conv: 7, cmd: cmdWins, wnd: 65535, una: seq(una)}
	b := make([]byte, headerSize)
	h.encode(b)
	return b
}

// inputKind is a kind of packet.
type inputKind struct {
	name string
	make func(w *costWorld, i int) []byte // the i-th packet
	once bool                             // it changes what the session holds: few are tried, and late
	ends bool                             // it ends the session
	all  bool                             // its cost is in proportion to what was sent before, which it deals with once and for all
}

// streamKindOf returns a case of stream segments.
func streamKindOf(name string, once bool, make func(i int) streams.Header) inputKind {
	return inputKind{name: "stream: " + name, once: once, make: func(w *costWorld, i int) []byte {
		h := make(i)
		data := ""
		if h.Kind == streams.Data {
			data = "x"
		}
		return w.stream(h, data)
	}}
}

// inputKinds returns every kind of packet that a peer may send.
func inputKinds() (all []inputKind) {
	all = []inputKind{
		{name: "PUSH, early", make: func(w *costWorld, _ int) []byte { w.sn++; return push(w.sn-1, 0, "x") }},
		{name: "PUSH, early again", make: func(w *costWorld, i int) []byte { return push(w.gap+1+uint32(i), 0, "x") }},
		{name: "PUSH, old", make: func(w *costWorld, i int) []byte { return push(uint32(i), 0, "x") }},
		{name: "PUSH beyond the window", make: func(w *costWorld, i int) []byte { return push(w.gap+70000+uint32(i), 0, "x") }},
		{name: "PUSH, the end of the window", make: func(w *costWorld, i int) []byte { return push(w.gap+65000, 0, "x") }},
		{name: "PUSH, the missing one", once: true, all: true, make: func(w *costWorld, i int) []byte { return push(w.gap, 0, "x") }},
		{name: "PUSH, fragment", make: func(w *costWorld, _ int) []byte { w.sn++; return push(w.sn-1, 200, "x") }},
		{name: "ACK, old", make: func(w *costWorld, i int) []byte { return ack(w.c.una()-1, 0, w.c.una()) }},
		{name: "ACK, new", make: func(w *costWorld, i int) []byte { return ack(w.c.una()+uint32(2*i)+1, 0, w.c.una()) }},
		{name: "ACK beyond", make: func(w *costWorld, i int) []byte { return ack(w.c.una()+1<<20, 0, w.c.una()) }},
		{name: "una", make: func(w *costWorld, i int) []byte { return wins(w.c.una() + 1) }},
		{name: "una, back", make: func(w *costWorld, i int) []byte { return wins(w.c.una() - 100) }},
		{name: "WASK", make: func(w *costWorld, _ int) []byte { return segment(cmdWask, 0, 0, 0, w.c.una(), "") }},
		{name: "WINS", make: func(w *costWorld, i int) []byte { return wins(w.c.una()) }},
		{name: "window of 128", make: func(w *costWorld, i int) []byte { return segment(cmdWins, 0, 0, 0, w.c.una(), "") }},
		{name: "PIECE, new", make: func(w *costWorld, i int) []byte {
			return piece(w.gap+40000+uint32(i), 0, 0, 4032, strings.Repeat("x", 64))
		}},
		{name: "PIECE, more", make: func(w *costWorld, i int) []byte {
			return piece(w.gap+20000, 0, 64*(1+i%60), 4032, strings.Repeat("x", 64))
		}},
		{name: "PIECE, again", make: func(w *costWorld, i int) []byte {
			return piece(w.gap+20000, 0, 0, 4032, strings.Repeat("x", 64))
		}},
		{name: "datagram", make: func(*costWorld, int) []byte { return oob([]byte("x")) }},
		{name: "FEC data", make: func(w *costWorld, i int) []byte { return fecShard(uint32(100000+3*i), push(0, 0, "x")) }},
		{name: "FEC parity", make: func(w *costWorld, i int) []byte { return fecShard(uint32(100001+3*i), nil) }},
		{name: "garbage", make: func(_ *costWorld, i int) []byte { return append(push(uint32(i), 0, "x"), 7, 0, 0, 0, byte(i)) }},
		{name: "unknown command", make: func(_ *costWorld, i int) []byte { return segment(99, 0, 0, uint32(i), 0, "") }},
		streamKindOf("OPEN", false, func(i int) streams.Header {
			return streams.Header{ID: uint32(10001 + 2*i), Kind: streams.Open, Opens: true}
		}),
		streamKindOf("OPEN, again", false, func(i int) streams.Header { return streams.Header{ID: 20001, Kind: streams.Open, Opens: true} }),
		streamKindOf("OPEN, the missing one", true, func(i int) streams.Header {
			return streams.Header{ID: uint32(costStreams*8 + 1 + 2*i), Kind: streams.Open, Opens: true}
		}),
		streamKindOf("message of none", false, func(i int) streams.Header { return streams.Header{ID: 2, Kind: streams.Data, End: true, MID: seq(i)} }),
		streamKindOf("message, early", false, func(i int) streams.Header {
			return streams.Header{ID: freeStream, Kind: streams.Data, End: true, MID: seq(2 + i)}
		}),
		streamKindOf("message, in order", false, func(i int) streams.Header {
			return streams.Header{ID: freeStream + 2, Kind: streams.Data, End: true, MID: seq(1 + i)}
		}),
		streamKindOf("message, old", false, func(i int) streams.Header {
			return streams.Header{ID: unreadStream, Kind: streams.Data, End: true, MID: 0}
		}),
		streamKindOf("fragment", false, func(i int) streams.Header {
			return streams.Header{ID: fragmentStream, Kind: streams.Data, Part: true, MID: 2, FSN: uint32(100000 + i)}
		}),
		streamKindOf("ABANDON", false, func(i int) streams.Header {
			return streams.Header{ID: notedStream, Kind: streams.Abandon, MID: seq(10000 + i), Size: 0}
		}),
		streamKindOf("ABANDON, again", false, func(i int) streams.Header {
			return streams.Header{ID: notedStream, Kind: streams.Abandon, MID: seq(i%costNotes + 2), Size: streams.NoSegment}
		}),
		streamKindOf("FIN", true, func(i int) streams.Header { return streams.Header{ID: earlyStream, Kind: streams.Fin, MID: 50000} }),
		streamKindOf("FIN, again", false, func(i int) streams.Header { return streams.Header{ID: notedStream, Kind: streams.Fin, MID: 50000} }),
		streamKindOf("FIN within what has arrived", true, func(i int) streams.Header { return streams.Header{ID: earlyStream, Kind: streams.Fin, MID: 3} }),
		streamKindOf("message, again", true, func(i int) streams.Header {
			return streams.Header{ID: earlyStream, Kind: streams.Data, End: true, MID: 2}
		}),
		streamKindOf("RESET", true, func(i int) streams.Header {
			return streams.Header{ID: uint32(freeStream + 6 + 6*i), Kind: streams.Reset, Code: 5}
		}),
		streamKindOf("RESET, refused", true, func(i int) streams.Header {
			return streams.Header{ID: uint32(freeStream + 8 + 6*i), Kind: streams.Reset, Code: StreamRefused}
		}),
		streamKindOf("STOP", true, func(i int) streams.Header {
			return streams.Header{ID: uint32(freeStream + 10 + 6*i), Kind: streams.Stop, Code: 5}
		}),
		streamKindOf("credit", false, func(i int) streams.Header {
			return streams.Header{ID: freeStream + 4, Kind: streams.Credit, Limit: streams.InitialCredit + seq(i)}
		}),
		streamKindOf("credit, old", false, func(i int) streams.Header { return streams.Header{ID: freeStream + 4, Kind: streams.Credit, Limit: 1} }),
	}
	return append(all, signalKinds()...)
}

// signalKinds returns a case for each signal, with numbers that mean nothing
// and with those that do, and of unknown senders.
func signalKinds() (all []inputKind) {
	for code := sigHello; code <= sigTiebreak+1; code++ {
		for _, answer := range []signalCode{0, sigAnswer} {
			all = append(all, inputKind{name: fmt.Sprintf("signal %d", code|answer), make: func(_ *costWorld, i int) []byte {
				return bytesOf(signal{code | answer, uint32(i) * 0x9e3779b9, uint32(i)})
			}})
		}
	}
	return append(all,
		inputKind{name: "signal FIN", once: true, make: func(w *costWorld, i int) []byte {
			return bytesOf(signal{sigFin, w.sn, w.c.hs.token})
		}},
		inputKind{name: "signal CLOSE", once: true, ends: true, all: true, make: func(w *costWorld, i int) []byte {
			return bytesOf(signal{sigClose, w.sn, w.c.hs.token})
		}},
		inputKind{name: "signal ABORT", once: true, ends: true, all: true, make: func(w *costWorld, i int) []byte {
			return bytesOf(signal{sigAbort, w.c.hs.token, 0})
		}},
	)
}

// measure returns the least time that one of n packets of a kind takes, tried
// several times.
func (w *costWorld) measure(k *inputKind, n, tries int) (least time.Duration) {
	packets := make([][]byte, n)
	for try := range tries {
		for i := range packets {
			packets[i] = withConv(costConv, k.make(w, try*n+i))
		}
		start := time.Now()
		for _, p := range packets {
			w.batch = append(w.batch[:0], udp.Datagram{Buf: p, Addr: w.addr})
			w.e.take(w.batch, w.in, nil)
		}
		if took := time.Since(start) / time.Duration(n); try == 0 || took < least {
			least = took
		}
	}
	return least
}

// costs returns the least time of each kind of packet in sessions of a size.
// Those that end the session have one of their own.
func costs(t *testing.T, kinds []inputKind, size int) []time.Duration {
	least := make([]time.Duration, len(kinds))
	for range 3 {
		var w *costWorld
		for i := range kinds {
			if w == nil || kinds[i].ends {
				if w != nil {
					w.close()
				}
				w = newCostWorld(t)
				w.fill(size)
				runtime.GC()
			}
			n, tries := 8, 4
			if kinds[i].once {
				n, tries = 1, 1
			}
			if took := w.measure(&kinds[i], n, tries); least[i] == 0 || took < least[i] {
				least[i] = took
			}
		}
		w.close()
	}
	return least
}

// No packet costs more than a small multiple of an ordinary one, nor more if
// the session holds more.
func TestInputCostsLittle(t *testing.T) {
	sequential(t)
	needsFineClock(t)
	kinds := inputKinds()
	slices.SortStableFunc(kinds, func(a, b inputKind) int { return rank(a) - rank(b) })
	w := newCostWorld(t)
	ordinary := w.measure(&kinds[0], 8, 20)
	w.close()
	small, large := costs(t, kinds, 1), costs(t, kinds, 4)
	limit := func(i int) time.Duration {
		growth := time.Duration(2)
		if kinds[i].all {
			growth = 6
		}
		return growth*small[i] + 8*ordinary
	}
	tooMuch := func() bool {
		for i := range kinds {
			if large[i] >= limit(i) {
				return true
			}
		}
		return false
	}
	for try := 0; try < 30 && tooMuch(); try++ { // something else may have had the processor
		for i, again := range costs(t, kinds, 4) {
			large[i] = min(large[i], again)
		}
	}
	for i, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Logf("%v, four times as much: %v, ordinary: %v", small[i], large[i], ordinary)
			require.Less(t, large[i], limit(i))
		})
	}
}

// needsFineClock skips a test that times single packets if the clock moves in coarse
// steps, as on some Windows systems: 0 would be compared with the time of a step.
func needsFineClock(t *testing.T) {
	t.Helper()
	step := testenv.LeastTime(20, 0, func() time.Duration {
		for start := time.Now(); ; {
			if passed := time.Since(start); passed > 0 {
				return passed
			}
		}
	})
	if step > time.Microsecond {
		t.Skipf("the clock moves in steps of %v", step)
	}
}

// rank orders kinds: last those that end the session.
func rank(k inputKind) int {
	switch {
	case k.ends:
		return 2
	case k.once:
		return 1
	}
	return 0
}

// tlsCostWorld is an endpoint with a session under TLS, which the test feeds.
type tlsCostWorld struct {
	*costWorld
	client *Conn
	sent   chan []byte // packets of the client
}

// clientSocket is the socket of the client of a tlsCostWorld.
type clientSocket struct {
	mutePacketConn
	read, written chan []byte
}

func (p *clientSocket) ReadFrom(b []byte) (int, net.Addr, error) {
	select {
	case d := <-p.read:
		return copy(b, d), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(serverAddr)), nil
	case <-p.closed:
		return 0, nil, net.ErrClosed
	}
}

func (p *clientSocket) WriteTo(b []byte, _ net.Addr) (int, error) {
	p.written <- append([]byte(nil), b...)
	return len(b), nil
}

// serverSocket is a mutePacketConn that passes on what is written.
type serverSocket struct {
	mutePacketConn
	written chan []byte
}

func (p *serverSocket) WriteTo(b []byte, _ net.Addr) (int, error) {
	p.written <- append([]byte(nil), b...)
	return len(b), nil
}

// newTLSCostWorld returns a session under TLS, and the packets of the client
// that have opened it.
func newTLSCostWorld(t *testing.T) (w *tlsCostWorld, opening [][]byte) {
	closed := make(chan struct{})
	down, up := make(chan []byte, 1<<12), make(chan []byte, 1<<12)
	config := &Config{TLS: testTLS(), KeepAlive: -1}
	server := &serverSocket{mutePacketConn{closed: closed}, down}
	e, err := NewEndpoint(server, config)
	require.NoError(t, err)
	w = &tlsCostWorld{costWorld: &costWorld{t: t, e: e, pc: &server.mutePacketConn, in: &readState{}, addr: floodAddr(1)}, sent: up}
	w.l, err = e.Listen()
	require.NoError(t, err)
	from, err := NewEndpoint(&clientSocket{mutePacketConn{closed: make(chan struct{})}, down, up}, config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = from.socket.shards[0].conn().Close(); _ = from.Close() })
	dialled := make(chan *Conn, 1)
	go func() {
		c, err := from.Dial(context.Background(), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(serverAddr)))
		assert.NoError(t, err)
		dialled <- c
	}()
	accept := make(chan *Conn, 1)
	go func() {
		c, err := w.l.AcceptKCP(context.Background())
		assert.NoError(t, err)
		accept <- c
	}()
	for w.client == nil || w.c == nil { // the server waits for what the client sends last
		select {
		case p := <-up:
			opening = append(opening, p)
			w.raw(append([]byte(nil), p...))
		case w.client = <-dialled:
		case w.c = <-accept:
		}
	}
	return w, opening
}

// raw has the endpoint take a packet as it is.
func (w *costWorld) raw(p []byte) {
	w.batch = append(w.batch[:0], udp.Datagram{Buf: p, Addr: w.addr})
	w.e.take(w.batch, w.in, nil)
}

// least returns the least time of one of eight packets, tried until it is below enough.
func (w *tlsCostWorld) least(tries int, enough time.Duration, make func(i int) []byte) time.Duration {
	var packets [8][]byte
	n := 0
	return testenv.LeastTime(tries, enough, func() time.Duration {
		for i := range packets {
			packets[i] = append([]byte(nil), make(n)...)
			n++
		}
		start := time.Now()
		for _, p := range packets {
			w.raw(p)
		}
		return time.Since(start) / time.Duration(len(packets))
	})
}

// With TLS, what is forged, replayed or of the handshake costs no more than a
// small multiple of a packet that the peer has sealed.
func TestInputCostsLittleWithTLS(t *testing.T) {
	sequential(t)
	needsFineClock(t)
	w, opening := newTLSCostWorld(t)
	defer w.close()
	fresh := func(int) []byte {
		require.NoError(t, w.client.SendDatagram([]byte("x")))
		return <-w.sent
	}
	for len(w.sent) > 0 {
		w.raw(<-w.sent)
	}
	var sealed [][]byte
	for i := range 100 {
		sealed = append(sealed, fresh(i))
		w.raw(append([]byte(nil), sealed[i]...))
	}
	changed := func(p []byte, at int) []byte {
		p = append([]byte(nil), p...)
		p[at%len(p)] ^= 0x55
		return p
	}
	ordinary := w.least(10, 0, fresh)
	for name, make := range map[string]func(i int) []byte{
		"replayed":               func(i int) []byte { return sealed[i%100] },
		"forged":                 func(i int) []byte { return changed(sealed[i%100], -1+len(sealed[i%100])) },
		"any byte changed":       func(i int) []byte { return changed(sealed[i%100], i) },
		"cut":                    func(i int) []byte { return sealed[i%100][:len(sealed[i%100])-i%20] },
		"the handshake again":    func(i int) []byte { return opening[i%len(opening)] },
		"the handshake, changed": func(i int) []byte { return changed(opening[i%len(opening)], 24+i*7) },
	} {
		t.Run(name, func(t *testing.T) {
			took := w.least(100, 10*ordinary, make)
			t.Logf("%v, ordinary: %v", took, ordinary)
			require.Less(t, took, 10*ordinary)
		})
	}
	require.NoError(t, w.c.Err())
}
