package kcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// With a ticket the second handshake has no certificates. Nothing else changes, and
// nothing is left of the handshakes.
func TestTLSResumption(t *testing.T) {
	for _, link := range []netsim.LinkConfig{clean, lossy} {
		inWorld(t, 2, link, func(t *testing.T, w *world) {
			l := w.listen(secured(Config{}))
			config := secured(Config{})
			config.TLS = config.TLS.Clone()
			config.TLS.ClientSessionCache = tls.NewLRUClientSessionCache(4)
			e, _ := w.endpoint("10.0.0.2:0", config)
			for i := range 3 {
				a := w.dial(e)
				b := accepted(t, l)
				bothWays(t, a, b, []byte("up"), []byte("down"))
				time.Sleep(20 * time.Second)
				require.NotEmpty(t, a.Peer().TLS.PeerCertificates)
				for _, c := range []*Conn{a, b} {
					require.Equal(t, i > 0, c.Peer().TLS.DidResume)
					c.mu.Lock()
					require.Nil(t, c.session.Inside().Exchange())
					require.Zero(t, c.session.Inside().Opening().Unanswered&opening.Hello)
					c.mu.Unlock()
				}
			}
		})
	}
}

// recordHello returns the first packets of a session that nobody answers.
func (w *world) recordHello(config *Config) (packets [][]byte) {
	e, _ := w.endpoint("10.0.7.7:7777", config)
	w.net.SetFilter(func(_, _ netip.AddrPort, p []byte) bool {
		packets = append(packets, bytes.Clone(p))
		return false
	})
	defer w.net.SetFilter(nil)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err := e.Dial(ctx, udpAddr("10.0.7.8:1"), nil)
	require.Error(w.t, err)
	require.Len(w.t, packets, 2)
	require.Len(w.t, packets[0], handshake.PacketSize)
	return packets
}

// withCertificate returns config with TLS, in which both ends ask for a
// certificate that they do not verify, and this one has cert.
func withCertificate(config Config, cert tls.Certificate) *Config {
	config.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, ClientAuth: tls.RequireAnyClientCert}
	return &config
}

// The certificates of a peer count as long as the session is open. The
// application has them after Close, and TIME-WAIT does not.
func TestTLSCertificatesAreCounted(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		const size = 40_000
		a, b, l := w.pair(withCertificate(Config{}, longChain(t, 1, size)), withCertificate(Config{}, longChain(t, 2, size)))
		w.settle()
		require.Greater(t, l.Endpoint().Stats().Buffered, size)
		require.Greater(t, a.Endpoint().Stats().Buffered, size)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		w.settle()
		require.Zero(t, l.Endpoint().Stats().Buffered)
		require.Zero(t, a.Endpoint().Stats().Buffered)
		tw, ok := l.Endpoint().table.TimeWaits.At(b.session.Inside().Entry().Key(), l.Endpoint().now())
		require.True(t, ok)
		require.NotEmpty(t, a.Peer().TLS.PeerCertificates)
		require.NotEmpty(t, b.Peer().TLS.PeerCertificates)
		cert := weak.Make(b.Peer().TLS.PeerCertificates[0])
		a, b = nil, nil
		for range 5 {
			runtime.GC()
			time.Sleep(time.Second)
		}
		require.Nil(t, cert.Value())
		require.NotNil(t, tw.Protection)
		runtime.KeepAlive(tw)
	})
}

// only returns the one session of e.
func (e *Endpoint) only(t *testing.T) *Conn {
	e.mu.RLock()
	defer e.mu.RUnlock()
	require.Equal(t, 1, e.table.Len())
	for _, c := range e.table.Sessions() {
		return c
	}
	return nil
}

// What an address that is not validated makes a server hold is 16 KiB at most, in
// proportion to what has arrived, whatever comes at whatever level. A handshake
// that runs counts besides.
func TestTLSUnvalidatedPeersHoldLittle(t *testing.T) {
	for _, packets := range []int{1, 2} { // of the ClientHello
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			config := secured(Config{})
			l := w.listen(config)
			for _, p := range w.recordHello(config)[:packets] {
				w.net.Inject(netip.MustParseAddrPort("10.0.9.9:9"), netip.MustParseAddrPort(serverAddr), p)
			}
			w.settle()
			c := l.Endpoint().only(t)
			c.mu.Lock()
			unlock := sync.OnceFunc(c.mu.Unlock)
			defer unlock()
			x := c.session.Inside().Exchange()
			require.Equal(t, packets == 2, x.Started)
			if !x.Started {
				c.session.Inside().InputHandshake(cryptoOf(c, 16<<10-1, []byte{1}), c.ep.now())
				require.Positive(t, x.Received())
				require.Less(t, x.Held(), 2<<10, "1 byte, far ahead")
			}
			for i := range 1000 {
				c.session.Inside().InputHandshake(cryptoOf(c, 2000+200*i, make([]byte, 100)), c.ep.now())
				c.session.Inside().InputHandshake(sealedJunk(c, 500+i), c.ep.now())
				require.LessOrEqual(t, x.Received(), machine.UnvalidatedBytes)
			}
			require.Equal(t, x.Started, len(x.Early()) > 0, "without a handshake there can be no keys")
			held := x.Received()
			if x.Started {
				held += handshake.TLSBytes
				require.GreaterOrEqual(t, x.Held(), held)
			} else {
				require.LessOrEqual(t, x.Held(), machine.UnvalidatedBytes)
				c.session.Inside().Account()
			}
			unlock()
			if !x.Started {
				require.LessOrEqual(t, l.Endpoint().Stats().Buffered, machine.UnvalidatedBytes)
			}
			time.Sleep(session.HandshakeTime + time.Second)
			require.Zero(t, l.Endpoint().Stats().Sessions)
			require.Zero(t, l.Endpoint().Stats().Buffered)
		})
	}
}

// cryptoOf returns a packet of the dialling end with bytes of the ClientHello, as
// it is once opened.
func cryptoOf(c *Conn, offset int, data []byte) *session.InPacket {
	h := wire.Header{Conv: c.Conv(), Cmd: wire.CmdWins, Frg: uint8(wire.Crypto), SN: machine.Seq(offset), TS: machine.Seq(len(data)), Len: uint32(len(data))}
	b := packetOf(c.Conv(), testenv.SegmentOf(wire.Signal{Code: wire.Hello, SN: 0, TS: peerToken(c)}), make([]byte, wire.HeaderSize))
	h.Encode(b[wire.HeaderSize:])
	return &session.InPacket{Packet: protect.Packet{Data: append(b, data...)}, Conv: c.Conv(), Kind: session.OpenedPacket}
}

// sealedJunk returns what looks like a packet under the application keys.
func sealedJunk(c *Conn, n int) *session.InPacket {
	p := make([]byte, n)
	p[4] = 0xa2
	return &session.InPacket{Packet: protect.Packet{Data: p}, Conv: c.Conv(), Kind: session.SealedPacket}
}

// The handshakes in progress with a network are limited, those that began with a
// cookie too, and leave room for other networks. The limit is not for the
// handshakes of a day, but for those of a moment.
func TestTLSHandshakesInProgressAreLimited(t *testing.T) {
	t.Parallel()
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		config := secured(Config{Limits: Limits{MaxHalfOpen: 32}, AddressValidation: ValidateAlways})
		l := w.listen(config)
		w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool { // none of these is completed
			return from.Addr() != netip.MustParseAddr("10.0.9.9") || p[4] != 0xa1
		})
		e, _ := w.endpoint("10.0.9.9:0", config)
		for range 64 {
			go func() { _, _ = e.Dial(context.Background(), l.Addr(), nil) }()
		}
		for range 5 {
			time.Sleep(time.Second)
			require.Equal(t, 11, l.Endpoint().Stats().Sessions, "as many as are left for one other network, twice")
		}
		require.Greater(t, l.Endpoint().Stats().Buffered, 11*handshake.TLSBytes)
		require.Positive(t, l.Endpoint().Stats().DropHandshake)
		other, _ := w.endpoint("10.0.0.2:0", config)
		start := time.Now()
		for range 20 { // one after the other
			w.dial(other)
			accepted(t, l)
		}
		require.Less(t, time.Since(start), 4*time.Second)
		require.NoError(t, e.Close())
		w.net.SetFilter(nil)
		time.Sleep(time.Minute)
		e2, _ := w.endpoint("10.0.9.9:0", config)
		bothWays(t, w.dial(e2), accepted(t, l), []byte("up"), []byte("down"))
		w.settle()
		l.Endpoint().mu.RLock()
		defer l.Endpoint().mu.RUnlock()
		require.Zero(t, l.Endpoint().table.Shaking())
	})
}

// A dialled session keeps nothing under the application keys that comes before
// its TLS is done, although the peer has those keys: no server sends that, and
// only the reader of the socket may take datagrams for a handler.
func TestTLSApplicationDataBeforeFinished(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		l := w.listen(secured(Config{}))
		var server *Conn
		forged, finished := 0, false
		w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
			if finished = finished || from.String() != serverAddr && p[4] == 0xa1; finished || p[4] != 0xa1 {
				return true
			}
			if server == nil {
				server = l.Endpoint().only(t)
			}
			b := make([]byte, protect.KeyedOverhead+session.DatagramHeader+3)
			content := b[protect.HeaderSize:]
			binary.LittleEndian.PutUint16(content[4:], fec.TypeOOB)
			binary.LittleEndian.PutUint16(content[6:], session.DatagramHeader+3-6)
			binary.LittleEndian.PutUint32(content[8:], server.Conv())
			if assert.NoError(t, server.session.Inside().Keys().Seal(b, nil)) {
				forged++
				w.net.Inject(from, to, b)
			}
			return true
		})
		e, _ := w.endpoint("10.0.0.2:0", secured(Config{}))
		a, err := e.Dial(context.Background(), l.Addr(), &DialOptions{Quiet: true})
		require.NoError(t, err)
		handled := 0
		a.handleDatagrams(func([]byte) { handled++ })
		writeAll(t, a, []byte("x"))
		receive(t, accepted(t, l), []byte("x"))
		w.settle()
		require.Positive(t, forged)
		require.Zero(t, handled)
		require.EqualValues(t, forged, e.Stats().DropHandshake)
	})
}

// Forged packets of a session in TIME-WAIT cost no derivation of keys each.
func TestTLSForgedInTimeWait(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(secured(Config{}), secured(Config{}))
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		w.settle()
		e := l.Endpoint()
		key, now := b.session.Inside().Entry().Key(), e.now()
		packet := make([]byte, 200)
		for phase := range byte(2) {
			allocations := testing.AllocsPerRun(100, func() {
				clear(packet)
				binary.LittleEndian.PutUint32(packet, key.Conv)
				packet[4] = 0xa2 + phase
				p := session.InPacket{Packet: protect.Packet{Data: packet}, Conv: key.Conv, Kind: session.SealedPacket, From: session.Source{Addr: key.Addr}, Size: len(packet)}
				require.Nil(t, e.admit(key, &p, now))
			})
			require.LessOrEqual(t, allocations, 1.0)
		}
	})
}

// resettable returns settings whose stateless resets count after a restart.
func resettable(config Config) *Config {
	config.StatelessResetKey = []byte("the key of these servers, all but secret")
	return secured(config)
}

// secureLife opens a session with a server, and lets it be in use for a while.
func (w *world) secureLife(config *Config) (a, b *Conn, client, server *netsim.PacketConn) {
	w.t.Helper()
	l, server := w.server(config)
	e, client := w.endpoint("10.0.0.2:5000", config)
	a = w.dial(e)
	b = accepted(w.t, l)
	bothWays(w.t, a, b, []byte("here"), []byte("here"))
	time.Sleep(3 * time.Second)
	return a, b, client, server
}

// wantReadErr checks that a Read fails with err, and returns how long it took.
func wantReadErr(t *testing.T, c *Conn, want error) time.Duration {
	t.Helper()
	start := time.Now()
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, want)
	return time.Since(start)
}

// bothWaysOrNot writes at a, and reads that at b if it is to arrive.
func bothWaysOrNot(t *testing.T, a, b *Conn, arrives bool) {
	t.Helper()
	writeAll(t, a, []byte("moved"))
	if arrives {
		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Minute)))
		receive(t, b, []byte("moved"))
	}
}

// resetOf returns a stateless reset of a session under a key of the tests'
// choice, made at a time in seconds after the key was told.
func resetOf(k *protect.ToldKey, conv uint32, after int) []byte {
	packet := make([]byte, protect.MaxReset)
	k.Reset(rand.Reader, packet, conv, k.Since+uint32(after))
	return packet
}

// told returns the key that an end has told its peer, and known the one that it
// knows of its peer; nil: none.
func told(c *Conn) *protect.ToldKey {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session.Inside().ResetKeys().Ours
}

func known(c *Conn) *protect.ToldKey { return c.session.Inside().ResetKeys().Theirs.Load() }

// No reset ends a session but one of its peer's that was made while there was no
// session.
func TestTLSForgedResets(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		var early [][]byte // resets that the server makes before it knows the session
		server, client := netip.MustParseAddrPort(serverAddr), netip.MustParseAddrPort("10.0.0.2:5000")
		held := false
		w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
			switch protect.LevelOf(p) {
			case protect.Clear:
				if !held && from == client {
					held = true
					ask := make([]byte, 100)
					copy(ask, p[:4])
					ask[4] = 0xa2
					w.net.Inject(from, to, ask)
					p = bytes.Clone(p)
					time.AfterFunc(3*time.Second, func() { w.net.Inject(from, to, p) })
					return false
				}
				return true
			case protect.Application:
				if from == server && len(p) <= protect.MaxReset {
					early = append(early, bytes.Clone(p))
					return false
				}
			}
			return true
		})
		config := resettable(Config{})
		a, b, _, _ := w.secureLife(config)
		require.Len(t, early, 1)
		require.EqualValues(t, 1, b.Endpoint().Stats().ResetsSent)
		w.net.SetFilter(nil)
		other := w.dial(a.Endpoint())
		bothWays(t, other, accepted(t, b.ep.listenerOf()), []byte("up"), []byte("down"))
		ours, theirs := told(a), known(a)
		require.Equal(t, *theirs, *told(b))
		require.Equal(t, *ours, *known(b))
		forged := map[string][]byte{
			"made before the session":  early[0],
			"made with its key":        resetOf(theirs, a.Conv(), 0),
			"made before its key":      resetOf(theirs, a.Conv(), -1),
			"of another session":       resetOf(known(other), a.Conv(), 1),
			"of the session's own end": resetOf(ours, a.Conv(), 1),
			"of no key":                resetOf(new(protect.ToldKey), a.Conv(), 1<<30),
			"too short":                resetOf(theirs, a.Conv(), 1)[1:],
		}
		for i := range 8 * protect.MaxReset {
			p := resetOf(theirs, a.Conv(), 1)
			p[i/8] ^= 1 << (i % 8)
			w.net.Inject(server, client, p)
		}
		for _, p := range forged {
			w.net.Inject(server, client, p)
		}
		w.net.Inject(elsewhere, client, resetOf(theirs, a.Conv(), 1))
		time.Sleep(time.Second)
		bothWays(t, a, b, []byte("still"), []byte("here"))

		w.net.Inject(server, client, resetOf(theirs, a.Conv(), 1))
		wantReadErr(t, a, ErrReset)
	})
	inWorld(t, 2, clean, func(t *testing.T, w *world) { // no reset is made of a session that is elsewhere, or in TIME-WAIT
		a, b, pc, _ := w.secureLife(resettable(Config{}))
		old := netip.MustParseAddrPort("10.0.0.2:5000")
		require.NoError(t, pc.Rebind("10.0.0.3:6000"))
		bothWaysOrNot(t, a, b, true)
		ask := make([]byte, 100)
		binary.LittleEndian.PutUint32(ask, a.Conv())
		ask[4] = 0xa3
		to := netip.MustParseAddrPort(serverAddr)
		w.net.Inject(old, to, ask)
		w.settle()
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		w.net.Inject(old, to, bytes.Clone(ask))
		w.net.Inject(elsewhere, to, bytes.Clone(ask))
		w.settle()
		require.Zero(t, b.Endpoint().Stats().ResetsSent)
		time.Sleep(session.TimeWaitTime)
		w.net.Inject(old, to, bytes.Clone(ask))
		w.settle()
		require.EqualValues(t, 1, b.Endpoint().Stats().ResetsSent)
	})
}

// listenerOf returns the endpoint's listener.
func (e *Endpoint) listenerOf() *Listener {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.listener
}

// A key that another may know is not told, nor taken.
func TestTLSResetKeyIsNotTold(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) { // a session of the same id is elsewhere
		config := secured(Config{})
		l := w.listen(config)
		x, _ := w.endpoint("10.0.0.2:5000", config)
		y, _ := w.endpoint("10.0.0.3:5000", config)
		a := w.dialWith(x, serverAddr, DialOptions{Conv: id(7)})
		accepted(t, l)
		time.Sleep(time.Second)
		require.NotNil(t, known(a))
		for i := range 2 {
			c := w.dialWith(y, serverAddr, DialOptions{Conv: id(7)})
			b := accepted(t, l)
			bothWays(t, c, b, []byte("up"), []byte("down"))
			time.Sleep(time.Second)
			require.Nil(t, told(b))
			require.Nil(t, known(c))
			require.NoError(t, c.Close())
			require.NoError(t, b.Close())
			if i == 0 {
				require.NoError(t, a.Abort(0, "")) // it is in TIME-WAIT for the second
			}
			require.NoError(t, y.Close())
			y, _ = w.endpoint("10.0.0.4:0", config)
		}
	})
	inWorld(t, 1, clean, func(t *testing.T, w *world) { // more has ended than TIME-WAIT holds; and endpoints of one secret
		config := resettable(Config{})
		l := w.listen(config)
		e, _ := w.endpoint("10.0.0.2:5000", config)
		server := l.Endpoint()
		server.mu.Lock()
		for i := range admission.MaxTimeWaits + 1 {
			server.table.TimeWaits.Add(session.Key{Conv: uint32(i)}, session.TimeWait{}, false, server.now())
		}
		server.mu.Unlock()
		for _, want := range []bool{false, true} {
			w.dial(e)
			b := accepted(t, l)
			time.Sleep(session.TimeWaitTime)
			require.Equal(t, want, told(b) != nil)
		}
		keys := make(map[protect.ResetKey]bool)
		for _, of := range []*Endpoint{e, server} {
			for _, addr := range []string{"10.0.0.5:1", "10.0.0.6:1", "10.0.0.5:2"} {
				for conv := range uint32(2) {
					keys[session.Key{Addr: netip.MustParseAddrPort(addr), Conv: conv}.ResetKey(of.table.ResetSecret, of.LocalAddr().String())] = true
				}
			}
		}
		require.Len(t, keys, 2*3*2)
	})
	inWorld(t, 2, clean, func(t *testing.T, w *world) { // the handshake took long
		config := secured(Config{DialTimeout: time.Minute})
		l := w.listen(config)
		e, _ := w.endpoint("10.0.0.2:5000", config)
		w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool { return from.String() != "10.0.0.2:5000" })
		time.AfterFunc(session.ResetKeyWithin, func() { w.net.SetFilter(nil) })
		a := w.dial(e)
		b := accepted(t, l)
		bothWays(t, a, b, []byte("up"), []byte("down"))
		time.Sleep(time.Second)
		require.NotNil(t, told(b))
		require.Nil(t, known(a))
		require.NotNil(t, known(b))
	})
}
