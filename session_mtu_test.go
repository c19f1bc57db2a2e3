package kcp

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/pmtud"
	"github.com/arqnet/kcp/netsim"
)

// sweep is a conversation over a path whose limit is close to the size of what is
// sent.
type sweep struct {
	client, server int // MTU
	payload, count int // bytes of a message, and how many
	limit          int // of the path, beyond payload and overhead
	protection     string
	messages       bool
}

func (s sweep) config(t *testing.T, mtu int) *Config {
	cfg := &Config{MTU: mtu, MessageMode: s.messages, PeerTimeout: 30 * time.Second}
	switch s.protection {
	case "FEC":
		cfg.FEC = FEC{Data: 3, Parity: 1}
	case "AEAD":
		cfg.Cipher = testAEAD(t)
	case "AEAD and FEC":
		cfg.Cipher, cfg.FEC = testAEAD(t), FEC{Data: 10, Parity: 3}
	case "TLS":
		cfg.TLS, cfg.MTU = testTLS(), max(mtu, 1200)
	}
	return cfg
}

// run has the server echo what the client sends.
func (s sweep) run(t *testing.T, seed uint64) {
	client, server := s.config(t, s.client), s.config(t, s.server)
	limit := max(min(1200, max(client.MTU, server.MTU)), s.payload+s.limit+client.overhead().total)
	link := netsim.LinkConfig{Delay: 10 * time.Millisecond, MTU: limit}
	inWorld(t, seed, link, func(t *testing.T, w *world) {
		start := time.Now()
		l := w.listen(server)
		e, _ := w.endpoint("10.0.0.2:0", client)
		a := w.dial(e)
		want := content(seed, s.payload)
		echo := make(chan error, 1)
		go func() {
			b, err := l.Accept()
			if err == nil {
				err = echoMessages(b, s.payload, s.count)
			}
			echo <- err
		}()
		for range s.count {
			_, err := a.Write(want)
			require.NoError(t, err)
		}
		for range s.count {
			receive(t, a, want)
		}
		require.NoError(t, a.Close())
		require.NoError(t, <-echo)
		require.Less(t, time.Since(start), 12*time.Second)
	})
}

// echoMessages sends back count messages of n bytes, and closes.
func echoMessages(c net.Conn, n, count int) error {
	b := make([]byte, n)
	for range count {
		for at := 0; at < n; {
			k, err := c.Read(b[at:])
			if err != nil {
				return err
			}
			at += k
		}
		if _, err := c.Write(b); err != nil {
			return err
		}
	}
	return c.Close()
}

// Whatever is added to a segment, it gets through any path that takes the size
// to fall back to: nothing is retransmitted for ever in packets larger than those
// that have arrived.
func TestEachSegmentPassesItsPath(t *testing.T) {
	t.Parallel()
	seed := uint64(0)
	// The first segment leaves in pieces, and so is 4 bytes larger than others.
	for limit := -8; limit <= 40; limit++ {
		for _, s := range []sweep{
			{1400, 1300, 1276, 17, limit, "", true},
			{1400, 1300, 1276, 1, limit, "", true},
		} {
			seed++
			t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) { s.run(t, seed) })
		}
	}
	mtus := []int{1300, 1400, 1400, 576, 1200, 1201, 1228, 1472}
	protections := []string{"", "FEC", "AEAD", "AEAD and FEC", "TLS"}
	for range fewer(400) {
		seed++
		random := rand.New(rand.NewPCG(seed, 1))
		s := sweep{
			client: mtus[random.IntN(len(mtus))], server: mtus[random.IntN(len(mtus))],
			payload: 1 + random.IntN(1500), count: 1 + random.IntN(20), limit: random.IntN(49) - 8,
			protection: protections[random.IntN(len(protections))], messages: random.IntN(2) == 0,
		}
		if random.IntN(2) == 0 {
			s.payload = 1100 + random.IntN(300)
		}
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) { s.run(t, seed) })
	}
}

// path is a link of so many bytes a packet, UDP payload.
func path(mtu int) netsim.LinkConfig {
	return netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: 4 << 20, Queue: 256 << 10, MTU: mtu}
}

// move sends data over c and has it compared at the other end.
func (w *world) move(from, to *Conn, seed uint64, n int) {
	w.t.Helper()
	want := content(seed, n)
	send(w.t, from, want)
	receive(w.t, to, want)
}

// A peer that has announced nothing gets what it always got.
func TestPathMTULegacyPeer(t *testing.T) {
	long(t)
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		// The peer's INFO never says what it can do.
		w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
			for q := p; len(q) >= headerSize; {
				h := decodeHeader(q)
				if s, ok := h.signal(); ok && s.code == sigInfo && from.Addr() == netip.MustParseAddr("10.0.0.1") {
					q = q[headerSize:]
					cut := append([]byte(nil), p...)
					clear(cut[len(p)-len(q)-headerSize:][8:12])
					w.net.Inject(from, to, cut)
					return false
				}
				if from.Addr() != netip.MustParseAddr("10.0.0.1") {
					require.NotEqual(t, uint8(cmdPiece), h.cmd)
				}
				require.NotEqual(t, uint8(sigProbe), h.frg)
				q = q[headerSize+int(h.len):]
			}
			return len(p) <= 1300 || from.Addr() == netip.MustParseAddr("10.0.0.1")
		})
		a, b, _ := w.pair(&Config{MaxMTU: 9000, PeerTimeout: 10 * time.Second}, &Config{PeerTimeout: 10 * time.Second})
		w.move(b, a, 1, 1<<20)
		a.mu.Lock()
		require.Zero(t, a.hs.capabilities)
		a.mu.Unlock()
		send := make(chan error, 1)
		go func() {
			_, err := a.Write(make([]byte, 1<<20))
			send <- err
		}()
		require.NoError(t, <-send)
		time.Sleep(30 * time.Second)
		require.Equal(t, PathMTUStats{MTU: 1200, BlackHoles: 1}, a.Stats().PathMTU)
		require.NoError(t, a.Abort())
	})
}

// Datagrams may be as large as the path takes, and messages as before.
func TestPathMTUAndSizes(t *testing.T) {
	long(t)
	inWorld(t, 1, path(1472), func(t *testing.T, w *world) {
		cfg := &Config{MessageMode: true, MaxMTU: 1472, MTU: 1300}
		a, b, _ := w.pair(cfg, cfg)
		longest := maxFragments * (1300 - headerSize)
		write := func(n int) error {
			want := content(uint64(n), n)
			if err := a.WriteMessage(want); err != nil {
				return err
			}
			got := make([]byte, n)
			m, err := b.ReadMessage(got)
			require.NoError(t, err)
			require.True(t, m == n && bytes.Equal(got, want))
			return nil
		}
		require.Equal(t, longest, a.MaxMessageSize())
		require.ErrorIs(t, write(longest+1), ErrMessageTooLarge)
		require.NoError(t, write(longest))
		time.Sleep(time.Second)
		require.Equal(t, 1472-datagramHeader, a.MaxDatagramSize())
		require.NoError(t, a.SendDatagram(make([]byte, 1472-datagramHeader)))
		got, err := b.ReceiveDatagram(context.Background())
		require.NoError(t, err)
		require.Len(t, got, 1472-datagramHeader)

		w.net.SetLink("", "", path(1200))
		require.NoError(t, write(longest))
		time.Sleep(time.Minute)
		require.Equal(t, 1200, a.Stats().PathMTU.MTU)
		require.Equal(t, 1200-datagramHeader, a.MaxDatagramSize())
		err = a.SendDatagram(make([]byte, 1472-datagramHeader))
		require.ErrorIs(t, err, ErrDatagramTooLarge)
		require.ErrorContains(t, err, fmt.Sprintf("kcp: datagram of %d bytes is larger than %d, what fits into a packet of 1200 bytes", 1472-datagramHeader, a.MaxDatagramSize()))
		require.NoError(t, write(longest))
		longest = maxFragments * (1472 - headerSize) // as was possible in between
		require.Equal(t, longest, a.MaxMessageSize())
		require.NoError(t, write(longest))
		require.ErrorIs(t, write(longest+1), ErrMessageTooLarge)
		require.NoError(t, a.Close())
	})
}

// Over sockets of the system that keeps probes whole, raising is the default.
func TestPathMTUOverSockets(t *testing.T) {
	for _, test := range []struct {
		address string
		want    int
	}{{"127.0.0.1:0", pmtud.EtherIPv4}, {"[::1]:0", pmtud.EtherIPv6}} {
		l, err := Listen("udp", test.address, nil)
		if err != nil {
			t.Skipf("no IPv6 here: %v", err)
		}
		a, err := Dial("udp", l.Addr().String(), nil)
		require.NoError(t, err)
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		want := 1400
		if a.ep.socket.shards[0].sock().KeepsWhole() {
			want = test.want
		}
		for i := range 100 {
			data := content(uint64(i), 1<<20)
			send(t, a, data)
			receive(t, b, data)
			if a.Stats().PathMTU.MTU == want {
				break
			}
		}
		require.Equal(t, want, a.Stats().PathMTU.MTU)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		require.NoError(t, l.Close())
	}
}

// One large message now and then is enough to find out.
func TestPathMTUBlackHoleThin(t *testing.T) {
	long(t)
	inWorld(t, 1, path(1272), func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{MessageMode: true}, &Config{MessageMode: true})
		for i := range 20 {
			start, want := time.Now(), content(uint64(i), 1376)
			require.NoError(t, a.WriteMessage(want))
			receive(t, b, want)
			if took := time.Since(start); i >= pmtud.WatchedLosses {
				require.Less(t, took, 100*time.Millisecond)
			} else {
				require.Less(t, took, time.Second)
			}
			time.Sleep(time.Second)
		}
		require.EqualValues(t, 1, a.Stats().PathMTU.BlackHoles)
		require.Less(t, a.Stats().PathMTU.Sent, uint64(20))
	})
}
