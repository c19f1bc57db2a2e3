package wireshark

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/identity"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// capture collects packets of a simulated network as a pcap file of raw IPv4.
type capture struct {
	mu      sync.Mutex
	file    bytes.Buffer
	packets [][]byte
}

func newCapture() *capture {
	c := new(capture)
	for _, v := range []any{uint32(0xa1b2c3d4), uint16(2), uint16(4), uint32(0), uint32(0), uint32(1 << 17), uint32(101)} {
		_ = binary.Write(&c.file, binary.LittleEndian, v)
	}
	return c
}

// add adds a packet with the headers of IPv4 and UDP. It is a filter of netsim.
func (c *capture) add(from, to netip.AddrPort, packet []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, size := time.Now(), 28+len(packet)
	for _, v := range []uint32{uint32(now.Unix()), uint32(now.Nanosecond() / 1000), uint32(size), uint32(size)} {
		_ = binary.Write(&c.file, binary.LittleEndian, v)
	}
	h := make([]byte, 28)
	h[0], h[8], h[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(h[2:], uint16(size))
	src, dst := from.Addr().Unmap().As4(), to.Addr().Unmap().As4()
	copy(h[12:], src[:])
	copy(h[16:], dst[:])
	binary.BigEndian.PutUint16(h[20:], from.Port())
	binary.BigEndian.PutUint16(h[22:], to.Port())
	binary.BigEndian.PutUint16(h[24:], uint16(8+len(packet)))
	c.file.Write(h)
	c.file.Write(packet)
	c.packets = append(c.packets, bytes.Clone(packet))
	return true
}

var signalNames = []string{1: "HELLO", "INFO", "CONFIRM", "FIN", "CLOSE", "PING", "COOKIE", "RESET", "ABORT", "PROBE", "TOKEN", "CRYPTO", "ALERT", "RESETKEY", "TIEBREAKER", "COUNT"}

// kinds returns the names that a packet must have, by another reading of WIRE.md
// than that of the dissector.
func kinds(p []byte) (names []string) {
	switch t := binary.LittleEndian.Uint16(p[4:]); {
	case t == 0xf1:
		p = p[8:]
	case t == 0xf2:
		return []string{"FEC parity"}
	case t == 0xf3:
		return []string{"datagram"}
	case p[4] >= 0xa1 && p[4] <= 0xa3:
		return []string{"protected"}
	}
	for len(p) >= 24 {
		name := ""
		switch cmd, frg := p[4], p[5]; {
		case cmd >= 83 && cmd <= 84 && frg == 0x81:
			name = "WELCOME"
		case cmd >= 83 && cmd <= 84 && frg >= 0x80:
			name = "answer to " + signalNames[frg-0x80]
		case cmd >= 83 && cmd <= 84 && frg > 0:
			name = signalNames[frg]
		default:
			name = []string{81: "PUSH", "ACK", "WASK", "WINS", "PIECE", "STREAM", "STREAM PIECE"}[cmd]
		}
		if name == "STREAM" {
			name += []string{" DATA", " ABANDON", " FIN", " RESET", " STOP", " CREDIT", " OPEN", " MAX_STREAMS"}[p[28]&7]
		}
		names = append(names, name)
		n := int(binary.LittleEndian.Uint32(p[20:]))
		switch payload := p[24:][:n]; {
		case name == "ACK" && n > 0:
			names = append(names, copiesOf(payload[8:])...)
		case strings.HasPrefix(name, "STREAM ") && p[4] == 86 && p[5] >= 0x80 || name == "PUSH" && p[5] >= 0x80:
			size := int(binary.LittleEndian.Uint16(payload[n-2:]))
			names = append(names, copiesOf(payload[n-2-size:n-2])...)
		}
		p = p[24+n:]
	}
	return names
}

// copiesOf returns the names of copies.
func copiesOf(b []byte) (names []string) {
	for len(b) > 0 {
		n, at := int(b[1]), 2
		if n >= 0x80 {
			n = n&0x7f | int(b[2])>>2<<7
			if at++; b[2]&2 != 0 {
				at++
			}
		}
		names, b = append(names, "COPY"), b[at+n:]
	}
	return names
}

// everyKind is what the capture must contain.
var everyKind = []string{
	"PUSH", "ACK", "WASK", "WINS", "PIECE",
	"HELLO", "WELCOME", "INFO", "CONFIRM", "answer to CONFIRM", "FIN", "answer to FIN", "CLOSE", "answer to CLOSE",
	"PING", "answer to PING", "COOKIE", "RESET", "ABORT", "PROBE", "answer to PROBE", "TOKEN", "CRYPTO", "ALERT",
	"FEC parity", "datagram", "protected", "COPY",
	"STREAM DATA", "STREAM ABANDON", "STREAM FIN", "STREAM RESET", "STREAM STOP", "STREAM CREDIT", "STREAM OPEN", "STREAM MAX_STREAMS", "STREAM PIECE",
}

// key is the cipher of the sessions that need one. Their packets are captured
// as they are inside.
func key(t *testing.T) crypt.Cipher {
	t.Helper()
	c, err := crypt.AESGCM(make([]byte, 16))
	require.NoError(t, err)
	return c
}

// world is a simulated network whose packets are captured.
type world struct {
	t   *testing.T
	net *netsim.Network
	at  uint16 // port of the next endpoint

	deaf atomic.Bool // packets get lost
}

func (w *world) endpoint(cfg *kcp.Config) *kcp.Endpoint {
	w.t.Helper()
	w.at++
	pc, err := w.net.Listen(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), 4000+w.at).String())
	require.NoError(w.t, err)
	e, err := kcp.NewEndpoint(pc, cfg)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
	return e
}

// pair returns both ends of a session over which data has gone.
func (w *world) pair(client, server *kcp.Config) (a, b *kcp.Conn) {
	w.t.Helper()
	l, err := w.endpoint(server).Listen()
	require.NoError(w.t, err)
	a, err = w.endpoint(client).Dial(context.Background(), l.Addr(), nil)
	require.NoError(w.t, err)
	w.move(a, nil)
	b, err = l.AcceptKCP(context.Background())
	require.NoError(w.t, err)
	w.move(nil, b)
	return a, b
}

// move writes to a and reads from b; either may be nil.
func (w *world) move(a, b *kcp.Conn) {
	w.t.Helper()
	data := make([]byte, 3000)
	if a != nil {
		_, err := a.Write(data)
		require.NoError(w.t, err)
	}
	if b != nil {
		_, err := io.ReadFull(b, data)
		require.NoError(w.t, err)
	}
}

// everything makes sessions send packets of every kind.
func (w *world) everything() {
	t := w.t
	// Cookies, keep-alives, half-close, a search for the MTU, datagrams.
	a, b := w.pair(&kcp.Config{MTU: 1200, MaxMTU: 1400}, &kcp.Config{AddressValidation: kcp.ValidateAlways})
	for range 100 {
		w.move(a, b)
	}
	require.NoError(t, a.SendDatagram([]byte("datagram")))
	require.NoError(t, a.SendDatagram(nil))
	time.Sleep(2 * time.Minute)
	require.NoError(t, a.CloseWrite())
	time.Sleep(time.Second)
	w.move(b, a)
	require.NoError(t, b.Close())
	_ = a.Close()

	// A peer that does not read: its window closes, is asked for, and opens.
	a, b = w.pair(&kcp.Config{}, &kcp.Config{ReceiveWindow: 128})
	go func() { _, _ = a.Write(make([]byte, 1<<20)) }()
	time.Sleep(10 * time.Second)
	_, err := io.ReadFull(b, make([]byte, 1<<20))
	require.NoError(t, err)
	_ = a.Abort(0, "")
	_ = b.Close()

	// Error correction, and a packet from another address under a cipher.
	fec := &kcp.Config{FEC: kcp.FEC{Data: 3, Parity: 1}}
	a, b = w.pair(fec, fec)
	w.move(b, a)
	require.NoError(t, a.SendDatagram([]byte("datagram")))
	_ = a.CloseWithError(7, "enough")
	_ = b.Close()
	a, b = w.pair(&kcp.Config{Cipher: key(t)}, &kcp.Config{Cipher: key(t)})
	time.Sleep(time.Minute)
	w.move(a, b)
	_, _ = a.Close(), b.Close()

	// Copies.
	a, b = w.pair(&kcp.Config{Redundancy: 1}, &kcp.Config{Redundancy: 1})
	for range 20 {
		for _, c := range []*kcp.Conn{a, b} {
			_, err := c.Write([]byte("message"))
			require.NoError(t, err)
			time.Sleep(2 * time.Millisecond)
		}
	}
	_, _ = a.Close(), b.Close()

	// Nobody is there.
	_, err = w.endpoint(nil).Dial(context.Background(), w.endpoint(nil).LocalAddr(), nil)
	require.ErrorIs(t, err, kcp.ErrRefused)

	w.streams()

	// TLS: a handshake that completes, and one that fails.
	certificate, err := identity.New("localhost")
	require.NoError(t, err)
	server := &tls.Config{Certificates: []tls.Certificate{certificate}}
	client := &tls.Config{RootCAs: identity.Pool(certificate), ServerName: "localhost"}
	a, b = w.pair(&kcp.Config{TLS: client}, &kcp.Config{TLS: server})
	_, _ = a.Close(), b.Close()
	server, client = server.Clone(), client.Clone()
	server.NextProtos, client.NextProtos = []string{"this"}, []string{"that"}
	l, err := w.endpoint(&kcp.Config{TLS: server}).Listen()
	require.NoError(t, err)
	_, err = w.endpoint(&kcp.Config{TLS: client}).Dial(context.Background(), l.Addr(), nil)
	var alert tls.AlertError
	require.ErrorAs(t, err, &alert)
	time.Sleep(time.Second)
}

// streams makes sessions send STREAM segments of every kind.
func (w *world) streams() {
	t, ctx := w.t, context.Background()
	a, b := w.pair(nil, &kcp.Config{Limits: kcp.Limits{MaxStreams: 1}}) // so that MAX_STREAMS follows each
	open := func(o *kcp.StreamOptions) (x, y *kcp.Stream) {
		x, err := a.OpenStream(ctx, o)
		require.NoError(t, err)
		time.Sleep(100 * time.Millisecond)
		y, err = b.AcceptStream(ctx)
		require.NoError(t, err)
		return x, y
	}
	l, err := w.endpoint(nil).Listen()
	require.NoError(t, err)
	first, err := w.endpoint(nil).Dial(ctx, l.Addr(), nil) // its first data is of a stream
	require.NoError(t, err)
	only, err := first.OpenStream(ctx, nil)
	require.NoError(t, err)
	require.NoError(t, only.WriteMessage(make([]byte, 100), nil))
	time.Sleep(100 * time.Millisecond)
	require.NoError(t, first.Abort(0, ""))

	x, y := open(nil)
	go func() { _, _ = x.Write(make([]byte, 1<<18)) }()
	_, err = io.ReadFull(y, make([]byte, 1<<18))
	require.NoError(t, err)
	require.NoError(t, x.Close())
	require.NoError(t, y.Close())
	x, y = open(&kcp.StreamOptions{Unordered: true, Priority: -2})
	require.NoError(t, x.WriteMessage(make([]byte, 5000), nil))
	require.NoError(t, y.Reset(9))
	time.Sleep(100 * time.Millisecond)
	_ = x.Reset(10)

	// What nobody hears is given up.
	x, y = open(nil)
	w.deaf.Store(true)
	require.NoError(t, x.WriteMessage(make([]byte, 5000), &kcp.MessageOptions{Lifetime: 50 * time.Millisecond}))
	time.Sleep(100 * time.Millisecond)
	w.deaf.Store(false)
	time.Sleep(5 * time.Second)
	_, _ = x.Close(), y.Close()
	_, _ = a.Close(), b.Close()
}

// dissect returns a function that runs tshark over a capture and returns its lines. Without
// tshark, and with -short, the test is skipped: "make dissector" runs it.
func dissect(t *testing.T, c *capture) func(args ...string) []string {
	t.Helper()
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed (Debian: apt-get install tshark)")
	}
	file := filepath.Join(t.TempDir(), "capture.pcap")
	require.NoError(t, os.WriteFile(file, c.file.Bytes(), 0o600))
	return func(args ...string) []string {
		cmd := exec.Command(tshark, append([]string{"-X", "lua_script:kcp.lua", "-r", file}, args...)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		require.NoError(t, err, "%s", stderr.String())
		require.NotContains(t, stderr.String(), "Lua", "%s", stderr.String())
		return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' })
	}
}

// tshark prints every packet by the names of its segments, and finds nothing malformed.
func TestDissector(t *testing.T) {
	if testing.Short() {
		t.Skip("make dissector runs it")
	}
	c := newCapture()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, net: netsim.NewNetwork(1, netsim.LinkConfig{Delay: 10 * time.Millisecond})}
		open := key(t)
		w.net.SetFilter(func(from, to netip.AddrPort, packet []byte) bool {
			if plain, err := open.Open(bytes.Clone(packet)); err == nil {
				packet = plain
			}
			return c.add(from, to, packet) && !w.deaf.Load()
		})
		w.everything()
		w.net.SetFilter(nil)
	})
	missing := make(map[string]bool)
	for _, k := range everyKind {
		missing[k] = true
	}
	for _, packet := range c.packets {
		for _, k := range kinds(packet) {
			delete(missing, k)
		}
	}
	require.Empty(t, slices.Sorted(maps.Keys(missing)), "kinds that were not captured")
	run := dissect(t, c)
	lines := run("-T", "fields", "-E", "separator=;", "-e", "frame.protocols", "-e", "kcp.name")
	require.Len(t, lines, len(c.packets))
	for i, line := range lines {
		protocols, names, _ := strings.Cut(line, ";")
		require.True(t, strings.HasSuffix(protocols, ":udp:kcp"), "packet %d (%x) is %s", i+1, c.packets[i], protocols)
		if want := kinds(c.packets[i]); want[0] == "protected" {
			require.True(t, strings.HasPrefix(names, "protected, "), names)
		} else {
			require.Equal(t, strings.Join(want, ","), names, "packet %d", i+1)
		}
	}
	require.Empty(t, run("-Y", "_ws.malformed || kcp.bad || _ws.lua.error || _ws.expert.severity >= 6291456"))
	require.NotEmpty(t, run("-Y", `kcp.close.text == "enough" && kcp.close.code == 7`))
}

// A segment that was captured before is marked, in the direction and conversation that it
// belongs to.
func TestDissectorRetransmissions(t *testing.T) {
	c := newCapture()
	a, b := netip.MustParseAddrPort("10.0.0.1:1000"), netip.MustParseAddrPort("10.0.0.2:2000")
	push := func(conv, sn uint32) []byte { return testenv.PacketOf(conv, testenv.Push(sn, 0, "data")) }
	piece := func(offset byte) []byte {
		return testenv.PacketOf(7, testenv.Segment(85, 0, 0, 3, 0, string([]byte{offset, 0, 9, 0, 'd'})))
	}
	c.add(a, b, push(7, 1))
	c.add(a, b, push(7, 2))
	c.add(b, a, push(7, 1))
	c.add(a, b, push(8, 1))
	c.add(a, b, push(7, 1)) // 5: again
	c.add(a, b, testenv.PacketOf(7, testenv.Ack(1, 0, 1)))
	c.add(a, b, testenv.PacketOf(7, testenv.Ack(1, 0, 1)))
	c.add(a, b, testenv.PacketOf(7, testenv.Push(4, 0, "data"), testenv.Push(2, 0, "data"))) // 8: one of two
	c.add(a, b, piece(0))
	c.add(a, b, piece(1))
	c.add(a, b, piece(0)) // 11
	run := dissect(t, c)
	for _, passes := range [][]string{nil, {"-2"}} {
		args := append(passes, "-d", "udp.port==2000,kcp", "-Y", "kcp.analysis.retransmission", "-T", "fields", "-e", "frame.number")
		require.Equal(t, []string{"5", "8", "11"}, run(args...))
	}
}

// Packets that are not KCP are left alone, and malformed ones are marked if they are to be
// KCP.
func TestDissectorRefuses(t *testing.T) {
	from, to := netip.MustParseAddrPort("10.0.0.1:5000"), netip.MustParseAddrPort("10.0.0.2:6000")
	segment := func(cmd byte, n uint32) []byte {
		p := make([]byte, 24)
		p[4] = cmd
		binary.LittleEndian.PutUint32(p[20:], n)
		return p
	}
	c := newCapture()
	for _, p := range [][]byte{
		{1}, make([]byte, 100), bytes.Repeat([]byte{0xff}, 100), segment(80, 0), segment(81, 1), segment(81, 1<<32-1), segment(82, 0)[:23],
		append(segment(81, 0), 1), append(segment(85, 4), 1, 2, 3, 4),
		{0, 0, 0, 0, 0xf1, 0, 9, 9, 1}, {0, 0, 0, 0, 0xf3, 0, 2, 0}, append([]byte{1, 2, 3, 4, 0xa2}, make([]byte, 40)...),
	} {
		c.add(from, to, p)
	}
	run := dissect(t, c)
	require.Empty(t, run("-Y", "kcp"))
	forced := []string{"-d", "udp.port==6000,kcp"}
	require.Len(t, run(append(forced, "-Y", "kcp")...), len(c.packets))
	require.Len(t, run(append(forced, "-Y", "kcp.bad")...), len(c.packets)-2) // a rest is no fault, and a protected packet may be one
	require.Empty(t, run(append(forced, "-Y", "_ws.lua.error")...))
}
