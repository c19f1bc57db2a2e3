package kcp

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// sizedSocket is a socket behind an interface, and a path, that take packets of so
// many bytes of UDP payload. The interface refuses larger ones, and the path loses
// them. What may be fragmented passes.
type sizedSocket struct {
	udp.Conn

	mu       sync.Mutex
	only     netip.Addr // the sizes are those of the way to this address; not valid: to all
	face     int        // 0: any
	path     int        // 0: any
	cut      int        // datagrams larger than either that have left in fragments
	cutSmall int        // datagrams that could have left whole and were not to
	lost     int        // by the path
	whole    bool       // nothing is fragmented
}

// sized has all that e sends go through a sizedSocket.
func sized(e *Endpoint, face, path int) *sizedSocket {
	s := &e.socket.shards[0]
	link := s.link.Load()
	sock := &sizedSocket{Conn: link.Packets, face: face, path: path}
	s.link.Store(&takeover.Socket{Conn: link.Conn, Packets: sock})
	return sock
}

func (s *sizedSocket) KeepsWhole() bool { return true }

func (s *sizedSocket) WriteBatch(batch []udp.Datagram) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range batch {
		d := &batch[i]
		takes := func(size int) bool {
			return size == 0 || len(d.Buf) <= size || s.only.IsValid() && d.Addr.Addr() != s.only
		}
		fits := takes(s.face) && takes(s.path)
		switch {
		case (!d.Cut || s.whole) && !takes(s.face):
			return i, &net.OpError{Op: "write", Net: "udp", Err: os.NewSyscallError("sendmmsg", syscall.EMSGSIZE)}
		case !d.Cut && !takes(s.path):
			s.lost++
			continue
		case d.Cut && fits:
			s.cutSmall++
		case d.Cut:
			s.cut++
		}
		if _, err := s.Conn.WriteBatch(batch[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(batch), nil
}

// set changes the sizes.
func (s *sizedSocket) set(face, path int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.face, s.path = face, path
}

// counts returns how many datagrams have left in fragments, for need and without, and
// how many the path has lost.
func (s *sizedSocket) counts() (cut, cutSmall, lost int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cut, s.cutSmall, s.lost
}

// What the interface refuses is a fact of the path: the session goes on with smaller
// packets at once, and finds how large they may be. Nothing is fragmented, no error
// is counted, and nothing ends. So it is if the size falls later.
func TestSizesRefusedByTheInterface(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*Config{
		"plain": {}, "AEAD": {Cipher: testAEAD(t)}, "FEC": {FEC: FEC{Data: 10, Parity: 3}}, "TLS": {TLS: testTLS()},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, path(1472), func(t *testing.T, w *world) {
				l := w.listen(config)
				e, _ := w.endpoint("10.0.0.2:0", config)
				s := sized(e, 1300, 0)
				a := w.dial(e)
				b := accepted(t, l)
				for i, face := range []int{1300, 1210, 0} {
					s.set(face, 0)
					start := time.Now()
					w.move(a, b, uint64(i), 300_000)
					require.Less(t, time.Since(start), 2*time.Second)
					if face > 0 {
						mtu := a.Stats().PathMTU.MTU
						require.LessOrEqual(t, mtu, face)
						require.Greater(t, mtu, face-20)
						require.Equal(t, mtu-session.DatagramHeader-e.shared.Overhead.CipherHead-e.shared.Overhead.Tail, a.MaxDatagramSize())
					}
				}
				cut, cutSmall, _ := s.counts()
				require.Zero(t, cut+cutSmall)
				st := e.Stats()
				require.Positive(t, st.TooLarge)
				require.Zero(t, st.WriteErrors)
				require.Zero(t, a.Stats().PathMTU.BlackHoles)
				require.Less(t, a.Stats().Retransmits(), uint64(100))
				require.NoError(t, a.Close())
				_, err := b.Read(make([]byte, 1))
				require.Error(t, err)
			})
		})
	}
}

// What is refused to one peer concerns no other, also if their packets leave in one
// batch.
func TestSizesRefusedToOnePeer(t *testing.T) {
	t.Parallel()
	inWorld(t, 1, path(1472), func(t *testing.T, w *world) {
		l := w.listen(nil)
		s := sized(l.Endpoint(), 1300, 0)
		s.only = netip.MustParseAddr("10.0.0.2")
		var clients, servers []*Conn
		for _, addr := range []string{"10.0.0.3:0", "10.0.0.2:0", "10.0.0.4:0"} {
			e, _ := w.endpoint(addr, nil)
			clients = append(clients, w.dial(e))
			servers = append(servers, accepted(t, l))
		}
		w.settle()
		var b sendBatch
		const each = 5000
		for i, c := range servers {
			o := Outgoing{Conn: c, Data: content(uint64(i), each)}
			require.True(t, c.tryQueue(&o))
			require.NoError(t, o.Err)
			c.flushBatched(&b)
		}
		require.Len(t, b.writes, len(servers))
		b.send()
		for i, c := range clients {
			receive(t, c, content(uint64(i), each))
		}
		for i, c := range servers {
			st := c.Stats()
			require.Equal(t, i == 1, st.PathMTU.MTU < 1300, "%d", i)
			require.Equal(t, i == 1, st.Retransmits() > 0, "%d", i)
			w.move(c, clients[i], 9, 1<<20)
			require.Equal(t, i == 1, c.Stats().PathMTU.MTU <= 1300, "%d", i)
		}
		cut, cutSmall, _ := s.counts()
		require.Zero(t, cut+cutSmall)
	})
}

// To a peer that takes no pieces, what was cut before leaves in fragments, and what
// is cut after that is smaller. It does not matter whether the interface refuses the
// size, or the path drops it without a word, from the beginning or later.
func TestSizesOfLegacyPeers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name               string
		face, path         int // at first
		nextFace, nextPath int
		mtu                int // at last
	}{
		{"interface", 1300, 0, 1300, 0, 1200},
		{"interface, later", 0, 0, 1300, 0, 1200},
		{"interface below the base size", 1000, 0, 1000, 0, 1200},
		{"path", 0, 1300, 0, 1300, 1200},
		{"path, later", 0, 0, 0, 1300, 1200},
		{"path below the base size, later", 0, 0, 0, 900, 1200},
		{"neither", 0, 0, 0, 0, 1400},
	} {
		t.Run(test.name, func(t *testing.T) {
			inWorld(t, 1, path(0), func(t *testing.T, w *world) {
				const size = 300_000
				got := make(chan []byte, 1)
				w.takingPeer(serverAddr, 0, nil, 4*size, got)
				e, _ := w.endpoint("10.0.0.2:0", nil)
				s := sized(e, test.face, test.path)
				a := w.dial(e)
				want := content(1, 4*size)
				writeAll(t, a, want[:size])
				if test.name[len(test.name)-1] != 'r' { // all of it is under way
					require.NoError(t, a.Flush(context.Background()))
				}
				s.set(test.nextFace, test.nextPath)
				for i := 1; i < 3; i++ { // two steps may be needed
					writeAll(t, a, want[i*size:(i+1)*size])
					require.NoError(t, a.Flush(context.Background()))
				}
				cutBefore, _, lostBefore := s.counts()
				writeAll(t, a, want[3*size:])
				require.NoError(t, a.Flush(context.Background()))
				require.True(t, bytes.Equal(want, <-got))
				require.True(t, a.Peer().Legacy)
				require.Equal(t, test.mtu, a.Stats().PathMTU.MTU)
				cut, cutSmall, lost := s.counts()
				require.Zero(t, cutSmall)
				require.Equal(t, lostBefore, lost, "nothing is lost any more")
				if test.nextPath > 1200 || test.nextFace > 1200 {
					require.Equal(t, cutBefore, cut, "nothing leaves in fragments any more")
				}
				if test.mtu == 1400 {
					require.Zero(t, cut+lost)
				}
				require.Zero(t, e.Stats().WriteErrors)
				require.NoError(t, a.Abort(0, ""))
			})
		})
	}
}

// takingPeer is a legacyPeer that reads, and tells of the first n bytes, if n is not 0.
func (w *world) takingPeer(addr string, conv uint32, say []byte, n int, got chan<- []byte) *netsim.PacketConn {
	pc, err := w.net.Listen(addr)
	require.NoError(w.t, err)
	start, to := time.Now(), net.Addr(udpAddr(serverAddr))
	var k *machine.KCP
	begin := func(conv uint32) {
		k = machine.New(conv, func(packet []byte) { _, _ = pc.WriteTo(packet, to) })
		if n > 0 {
			k.SetStream(true)
			_ = k.SetWindow(1024, 1024)
		}
		k.Update(1)
	}
	if say != nil {
		begin(conv)
		_, err = k.Send(say)
		require.NoError(w.t, err)
		k.Flush()
	}
	done := make(chan bool)
	w.t.Cleanup(func() {
		_ = pc.Close()
		<-done
	})
	go func() {
		defer close(done)
		var taken []byte
		for buf, read := make([]byte, 2000), make([]byte, 1<<16); ; {
			size, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			if to = from; k == nil {
				begin(wire.DecodeHeader(buf).Conv)
			}
			k.SetClock(uint32(time.Since(start).Milliseconds()))
			_ = k.Input(buf[:size])
			for m := 0; n > 0 && err == nil; {
				if m, err = k.Recv(read); err == nil {
					if taken = append(taken, read[:m]...); len(taken) == n {
						got <- taken
					}
				}
			}
			k.Flush()
		}
	}()
	return pc
}

// What was queued for a larger packet than SetMTU has set since, to a peer that takes no
// pieces, leaves in fragments if the interface does not take it.
func TestSizesBeforeSetMTU(t *testing.T) {
	t.Parallel()
	inWorld(t, 1, path(0), func(t *testing.T, w *world) {
		got := make(chan []byte, 1)
		w.takingPeer(serverAddr, 0, nil, 200_000, got)
		e, _ := w.endpoint("10.0.0.2:0", nil)
		s := sized(e, 0, 0)
		a := w.dial(e)
		want := content(1, 200_000)
		writeAll(t, a, want)
		require.NoError(t, a.SetMTU(1000))
		s.set(1300, 0)
		require.NoError(t, a.Flush(context.Background()))
		require.True(t, bytes.Equal(want, <-got))
		require.Equal(t, 1000, a.Stats().PathMTU.MTU)
		cut, cutSmall, _ := s.counts()
		require.Positive(t, cut)
		require.Zero(t, cutSmall)
		require.NoError(t, a.Abort(0, ""))
	})
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

// A socket that refuses a size for good, in fragments too, is not asked again and again.
func TestSizesRefusedForGood(t *testing.T) {
	t.Parallel()
	inWorld(t, 1, path(0), func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		s := sized(a.Endpoint(), 700, 0)
		s.mu.Lock()
		s.whole = true
		s.mu.Unlock()
		writeAll(t, a, content(1, 100_000))
		time.Sleep(10 * time.Second)
		require.Less(t, a.Endpoint().Stats().TooLarge, uint64(1000))
		s.set(0, 0)
		receive(t, b, content(1, 100_000))
		require.Zero(t, a.Endpoint().Stats().WriteErrors)
		require.NoError(t, a.Close())
	})
}

// legacyPeer is one that knows no signals and acknowledges what it gets. It begins
// a session with the server if it has something to say; else it takes the first
// that comes.
func (w *world) legacyPeer(addr string, conv uint32, say []byte) *netsim.PacketConn {
	return w.takingPeer(addr, conv, say, 0, nil)
}

// Packets that wait for the cap are dropped with the session.
func TestMaxRateEndsWithTheSession(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{MaxRate: 1000, FEC: FEC{Data: 1, Parity: 9}}, nil)
		for range 10 {
			require.NoError(t, a.SendDatagram(make([]byte, 500)))
		}
		require.NoError(t, errors.Join(a.Abort(0, ""), b.Abort(0, "")))
		s := a.Stats().Datagrams
		require.EqualValues(t, 10, s.Sent+s.Unsent)
		a.mu.Lock()
		defer a.mu.Unlock()
		require.Zero(t, a.session.Inside().WaitsForCap())
	})
}
