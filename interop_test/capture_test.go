package interop

import (
	"bytes"
	"encoding/binary"
	"flag"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/stretchr/testify/require"
	kcpgo "github.com/xtaci/kcp-go/v5"
)

// pcapFile is where TestCapture leaves its capture; empty: nowhere. That of the
// repository is made by
//
//	go test -run TestCapture -pcap ../wireshark/testdata/kcp-go.pcap
var pcapFile = flag.String("pcap", "", "file for the capture of TestCapture")

// tap is a socket that records its packets, as a pcap file of raw IPv4.
type tap struct {
	net.PacketConn

	mu    sync.Mutex
	file  bytes.Buffer
	kinds map[string]bool // of segments and packets, by direction
	out   int             // packets sent
}

func newTap(t *testing.T) *tap {
	t.Helper()
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { pc.Close() })
	return &tap{PacketConn: pc, kinds: make(map[string]bool)}
}

// WriteTo records a packet and sends it, but for each tenth, which is lost.
func (p *tap) WriteTo(b []byte, to net.Addr) (int, error) {
	if p.record(p.LocalAddr(), to, b, "sent ")%10 == 9 {
		return len(b), nil
	}
	return p.PacketConn.WriteTo(b, to)
}

func (p *tap) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := p.PacketConn.ReadFrom(b)
	if err == nil {
		p.record(from, p.LocalAddr(), b[:n], "got ")
	}
	return n, from, err
}

// record adds a packet to the capture, and returns how many were sent before.
func (p *tap) record(from, to net.Addr, b []byte, direction string) (sent int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, size := time.Now(), 28+len(b)
	for _, v := range []uint32{uint32(now.Unix()), uint32(now.Nanosecond() / 1000), uint32(size), uint32(size)} {
		_ = binary.Write(&p.file, binary.LittleEndian, v)
	}
	src, dst := p.nameLocked(from), p.nameLocked(to)
	h := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0}
	binary.BigEndian.PutUint16(h[2:], uint16(size))
	for _, a := range []netip.AddrPort{src, dst} {
		ip := a.Addr().Unmap().As4()
		h = append(h, ip[:]...)
	}
	for _, v := range []uint16{src.Port(), dst.Port(), uint16(8 + len(b)), 0} {
		h = binary.BigEndian.AppendUint16(h, v)
	}
	p.file.Write(h)
	p.file.Write(b)
	for _, k := range kindsOf(b) {
		p.kinds[direction+k] = true
	}
	if direction == "sent " {
		p.out++
	}
	return p.out - 1
}

// nameLocked returns the address of an end in the capture: loopback, with a port that no
// dissector of Wireshark takes for its own, unlike one that the system has chosen.
func (p *tap) nameLocked(end net.Addr) netip.AddrPort {
	port := uint16(6000)
	if end.String() != p.LocalAddr().String() {
		port = 6001
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
}

// kindsOf names the segments of a packet, or what else it is.
func kindsOf(b []byte) (kinds []string) {
	if len(b) < 8 {
		return []string{"short"}
	}
	fec := ""
	switch binary.LittleEndian.Uint16(b[4:]) {
	case 0xf1:
		b, fec = b[8:], "FEC "
	case 0xf2:
		return []string{"parity"}
	case 0xf3:
		return []string{"datagram"}
	}
	for len(b) >= headerSize {
		cmd, frg, n := b[4], b[5], int64(binary.LittleEndian.Uint32(b[20:]))
		if cmd < 81 || cmd > 84 || n > int64(len(b)-headerSize) {
			return append(kinds, "other")
		}
		name := []string{"PUSH", "ACK", "WASK", "WINS"}[cmd-81]
		if cmd == 83 && frg == 1 {
			name = "HELLO"
		}
		kinds = append(kinds, fec+name)
		b = b[headerSize+n:]
	}
	return kinds
}

// pcap returns the file.
func (p *tap) pcap() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	var head []byte
	for _, v := range []any{uint32(0xa1b2c3d4), uint16(2), uint16(4), uint32(0), uint32(0), uint32(1 << 17), uint32(101)} {
		head, _ = binary.Append(head, binary.LittleEndian, v)
	}
	return append(head, p.file.Bytes()...)
}

// TestCapture records sessions with kcp-go, without and with error correction. If
// tshark is installed, it finds nothing malformed in them with our dissector.
func TestCapture(t *testing.T) {
	t.Parallel()
	socket := newTap(t)
	// Our end dials. The peer does not read for a while, so its window is asked
	// for.
	plain, err := kcp.NewEndpoint(socket, &kcp.Config{MTU: 200, NoDelay: kcp.NoDelayTurbo})
	require.NoError(t, err)
	l, err := kcpgo.ListenWithOptions("127.0.0.1:0", nil, 0, 0)
	require.NoError(t, err)
	defer l.Close()
	ctx := t.Context()
	ours, err := plain.Dial(ctx, l.Addr())
	require.NoError(t, err)
	data := bytes.Repeat([]byte("kcp-go "), 1000)
	_, err = ours.Write(data)
	require.NoError(t, err)
	theirs, err := l.AcceptKCP()
	require.NoError(t, err)
	theirs.SetNoDelay(1, interval, fastResend, 1)
	await.True(t, func() bool { return socket.has("sent WASK", "got WINS") })
	echo(t, ours, theirs, data)
	require.NoError(t, ours.Close())
	require.NoError(t, theirs.Close())
	err = plain.Close()
	require.NoError(t, err)

	// kcp-go dials, with error correction and out-of-band packets.
	other := newTap(t)
	corrected, err := kcp.NewEndpoint(other, &kcp.Config{MTU: 200, FEC: kcp.FEC{Data: 3, Parity: 1}})
	require.NoError(t, err)
	defer corrected.Close()
	accept, err := corrected.Listen()
	require.NoError(t, err)
	theirs, err = kcpgo.DialWithOptions(other.LocalAddr().String(), nil, 3, 1)
	require.NoError(t, err)
	defer theirs.Close()
	theirs.SetMtu(200)
	theirs.SetNoDelay(1, interval, fastResend, 1)
	_, err = theirs.Write(data[:2000])
	require.NoError(t, err)
	ours, err = accept.AcceptKCP(ctx)
	require.NoError(t, err)
	echo(t, theirs, ours, data[:2000])
	require.NoError(t, theirs.SendOOB([]byte("out of band")))
	_, err = ours.ReceiveDatagram(ctx)
	require.NoError(t, err)
	require.NoError(t, ours.SendDatagram([]byte("datagram")))

	for _, want := range []string{"sent HELLO", "sent PUSH", "got ACK", "got PUSH", "sent ACK"} {
		require.True(t, socket.has(want), want)
	}
	await.True(t, func() bool {
		return other.has("got FEC PUSH", "sent FEC ACK", "got parity", "sent parity", "got datagram", "sent datagram")
	})
	file := append(socket.pcap(), other.pcap()[24:]...)
	dissect(t, file)
	if *pcapFile != "" {
		require.NoError(t, os.WriteFile(*pcapFile, file, 0o644))
	}
}

// has reports whether packets of all kinds were recorded.
func (p *tap) has(kinds ...string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range kinds {
		if !p.kinds[k] {
			return false
		}
	}
	return true
}

// echo lets b read data, which a has written, and write it back.
func echo(t *testing.T, a, b net.Conn, data []byte) {
	t.Helper()
	got := make([]byte, len(data))
	_, err := io.ReadFull(b, got)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))
	_, err = b.Write(got)
	require.NoError(t, err)
	clear(got)
	_, err = io.ReadFull(a, got)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))
}

// dissect runs tshark over a capture, if it is installed.
func dissect(t *testing.T, pcap []byte) {
	t.Helper()
	tshark, err := exec.LookPath("tshark")
	if err != nil || testing.Short() {
		return // the test of package wireshark dissects the one of the repository
	}
	file := filepath.Join(t.TempDir(), "capture.pcap")
	require.NoError(t, os.WriteFile(file, pcap, 0o600))
	run := func(filter string) string {
		out, err := exec.Command(tshark, "-X", "lua_script:../wireshark/kcp.lua", "-r", file, "-Y", filter).Output()
		require.NoError(t, err)
		return string(out)
	}
	require.Empty(t, run("!kcp || _ws.malformed || kcp.bad || _ws.lua.error || _ws.expert.severity >= 6291456"))
	require.NotEmpty(t, run("kcp"))
}
