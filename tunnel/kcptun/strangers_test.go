package kcptun

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	engine "github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/tunnel/internal/lobby"
	"github.com/golang/snappy"
	"github.com/stretchr/testify/require"
)

// firstPacket returns a whole first packet of a session, as a stranger sends it who has
// the password or a recording: a stream of smux that begins, and bytes for the target.
func firstPacket(conv uint32) []byte {
	payload := []byte{1, 0, 0, 0, 3, 0, 0, 0, 1, 2, 4, 0, 3, 0, 0, 0, 'd', 'a', 't', 'a'}
	b := make([]byte, 24, 24+len(payload))
	binary.LittleEndian.PutUint32(b, conv)
	b[4], b[6] = 81, 128 // PUSH, and a window
	b[20] = byte(len(payload))
	return append(b, payload...)
}

// strangers send first packets, each of a session of its own, from a network of their own
// until the function that it returns is called.
func strangers(t *testing.T, server string) (stop func()) {
	from := &net.UDPAddr{IP: net.IPv4(127, 9, 9, 9)}
	at, err := net.ResolveUDPAddr("udp", server)
	require.NoError(t, err)
	socket, err := net.DialUDP("udp", from, at)
	if err != nil {
		t.Skipf("the loopback interface has one network only: %v", err)
	}
	var ended atomic.Bool
	var sending sync.WaitGroup
	sending.Go(func() {
		for conv := uint32(1); !ended.Load(); conv++ {
			_, _ = socket.Write(firstPacket(conv))
			if conv%64 == 0 {
				time.Sleep(time.Millisecond) // some processor time is for the others
			}
		}
	})
	return func() {
		ended.Store(true)
		sending.Wait()
		_ = socket.Close()
	}
}

// Strangers who repeat first packets make no connection to the target and keep no client
// out. There are as many sessions of theirs as may be, and few records of the log.
func TestStrangersReachNothing(t *testing.T) {
	var connections atomic.Int64
	at := testenv.Target(t, func(conn *net.TCPConn) {
		connections.Add(1)
		testenv.Echo(conn)
	})
	var e *engine.Endpoint
	log := new(testenv.Records)
	s, c := ServerDefaults(), ClientDefaults()
	for _, one := range []*Config{&s, &c} {
		one.Crypt, one.DataShard, one.ParityShard, one.NoComp = "null", 0, 0, true
	}
	s.Listen, s.Target, s.Logger = "127.0.0.1:0", at, slog.New(slog.NewTextHandler(log, nil))
	s.Observe = func(_ string, endpoint *engine.Endpoint) func() {
		e = endpoint
		return func() {}
	}
	begun := time.Now()
	server := start(t, Serve, s)
	stop := strangers(t, server)
	defer stop()
	accepted := func(n uint64) {
		for before := e.Stats().Accepted; e.Stats().Accepted < before+n; {
			time.Sleep(time.Millisecond)
		}
	}
	accepted(2 * maxUnvalidated)
	const honest = 10
	for range honest {
		c.Listen, c.Target = "127.0.0.1:0", server
		exchange(t, start(t, Run, c), 1000)
		accepted(maxUnvalidated)
	}
	stop()
	// Those that one batch of packets has brought may be there besides.
	require.LessOrEqual(t, e.Stats().Sessions, maxUnvalidated+honest+256)
	require.EqualValues(t, honest, connections.Load())
	records, seconds := strings.Count(log.String(), "\n"), int(time.Since(begun)/time.Second)+1
	require.LessOrEqual(t, records, 2*honest+10+lobby.Records*(seconds+1))
	require.Contains(t, log.String(), errFull.Error())
	require.Contains(t, log.String(), fair.LeftOut)
}

// A peer without this package's signals is validated when it acknowledges the NOP: its
// connection is made then, and not before.
func TestClientIsValidatedFirst(t *testing.T) {
	connected := make(chan struct{}, 1)
	at := testenv.Target(t, func(*net.TCPConn) { connected <- struct{}{} })
	for _, noComp := range []bool{false, true} {
		s := ServerDefaults()
		s.Listen, s.Target, s.Crypt, s.DataShard, s.ParityShard, s.NoComp = "127.0.0.1:0", at, "null", 0, 0, noComp
		server := start(t, Serve, s)
		conn, err := net.Dial("udp", server)
		require.NoError(t, err)
		defer conn.Close()
		packet := firstPacket(7)
		if !noComp {
			first := compressedFrames(t, packet[24:])
			packet[20] = byte(len(first))
			packet = append(packet[:24:24], first...)
		}
		b := make([]byte, 2048)
		nop := []byte(nil)
		for nop == nil {
			_, err = conn.Write(packet)
			require.NoError(t, err)
			_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			n, err := conn.Read(b)
			for p := b[:max(n, 0)]; err == nil && len(p) >= 24; p = p[24+binary.LittleEndian.Uint32(p[20:]):] {
				if p[4] == 81 {
					nop = append([]byte(nil), p[:24+binary.LittleEndian.Uint32(p[20:])]...)
				}
			}
		}
		require.Empty(t, connected, "not before the acknowledgement")
		ack := append([]byte(nil), nop[:24]...) // conv, and the ts and sn of the PUSH
		ack[4], ack[20] = 82, 0
		_, err = conn.Write(ack)
		require.NoError(t, err)
		<-connected
	}
}

// compressedFrames returns what a compressed session begins with.
func compressedFrames(t *testing.T, frames []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := snappy.NewBufferedWriter(&b)
	_, err := w.Write(frames)
	require.NoError(t, err)
	require.NoError(t, w.Flush())
	return b.Bytes()
}
