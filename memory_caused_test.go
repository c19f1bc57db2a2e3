package kcp

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/pacing"
	"github.com/arqnet/kcp/internal/streams"
)

// silentPeer is a peer made by hand: it acknowledges what it likes.
type silentPeer struct {
	sns  []uint32 // of what has arrived, in the order of arrival
	next int      // in sns: what it has not looked at
	sn   uint32   // of its next segment
}

// took notes what has arrived in p.
func (s *silentPeer) took(p []byte) {
	for len(p) >= headerSize {
		h := decodeHeader(p)
		if h.cmd == cmdPush || h.cmd == cmdStream {
			s.sns = append(s.sns, uint32(h.sn))
		}
		p = p[headerSize+int(h.len):]
	}
}

// acks returns acknowledgements of what has arrived since the last call, but for segment
// 0. If all is set, una shows that it has, too.
func (s *silentPeer) acks(all bool) (p []byte) {
	una := uint32(0)
	if all {
		for _, sn := range s.sns {
			una = max(una, sn+1)
		}
	}
	for ; s.next < len(s.sns) && len(p) < 1200; s.next++ {
		if sn := s.sns[s.next]; sn != 0 || all {
			p = append(p, ack(sn, 0, una)...)
		}
	}
	return p
}

// streamSegments returns n stream segments, each with what of returns for its number.
func (s *silentPeer) streamSegments(n int, of func(i uint32) ([]byte, streams.Header)) (p []byte) {
	for range n {
		data, h := of(s.sn)
		p = append(p, segment(cmdStream, 0, 0, s.sn, 0, string(append(h.Append(nil), data...)))...)
		s.sn++
	}
	return p
}

// caused are ways of a peer to have much sent, and kept.
var caused = []struct {
	name   string
	serve  func(c *Conn)
	rounds int // of 20 ms
	make   func(s *silentPeer, round int) []byte
}{
	{"streams that are refused", nil, 200, func(s *silentPeer, _ int) []byte {
		return s.streamSegments(20, func(i uint32) ([]byte, streams.Header) {
			return nil, streams.Header{ID: 2*i + 1, Opens: true, Kind: streams.Open}
		})
	}},
	{"streams that are reset", func(c *Conn) {
		for s, err := c.AcceptStream(context.Background()); err == nil; s, err = c.AcceptStream(context.Background()) {
			_ = s.Close()
		}
	}, 100, func(s *silentPeer, _ int) []byte {
		return s.streamSegments(20, func(i uint32) ([]byte, streams.Header) {
			return nil, streams.Header{ID: 4*(i/4) + 1, Opens: true, Kind: streams.Stop}
		})
	}},
	{"credit", func(c *Conn) {
		if s, err := c.AcceptStream(context.Background()); err == nil {
			_, _ = io.Copy(io.Discard, s)
		}
	}, 400, func(s *silentPeer, _ int) []byte {
		return s.streamSegments(2, func(i uint32) ([]byte, streams.Header) {
			return make([]byte, 500), streams.Header{ID: 1, Opens: true, Kind: streams.Data, End: true, MID: seq(i)}
		})
	}},
	{"one segment of many", func(c *Conn) { _, _ = c.Write(make([]byte, 500_000)) }, 500, func(s *silentPeer, _ int) []byte {
		return s.acks(false)
	}},
	{"a little from time to time", func(c *Conn) {
		_, _ = c.Write(make([]byte, 500_000))
		_, _ = io.Copy(io.Discard, c)
	}, 500, func(s *silentPeer, round int) []byte {
		if round < 300 || round%20 != 0 {
			return s.acks(true)
		}
		s.sn++
		return append(push(s.sn-1, 0, "x"), s.acks(true)...)
	}},
	{"nothing of small messages", func(c *Conn) {
		if s, err := c.OpenStream(context.Background(), nil); err == nil {
			for range 3000 {
				_ = s.WriteMessage(make([]byte, 10))
			}
		}
	}, 50, func(*silentPeer, int) []byte { return bytesOf(signal{sigPing, 1, 1}) }},
	{"nothing of messages that expire", func(c *Conn) {
		if s, err := c.OpenStream(context.Background(), &StreamOptions{MaxLifetime: 50 * time.Millisecond}); err == nil {
			for range 100 {
				for range 20 {
					_, _ = s.TryWrite(make([]byte, 100))
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
	}, 100, func(*silentPeer, int) []byte { return bytesOf(signal{sigPing, 1, 1}) }},
	{"nothing of an echo", func(c *Conn) { _, _ = io.Copy(c, c) }, 100, func(s *silentPeer, _ int) []byte {
		s.sn += 20
		return manyPushes(s.sn-20, 20, "x")
	}},
}

// What a peer causes to be sent is memory that it causes: of acknowledgements that it
// withholds, of answers, of what was kept for reuse. All of it is on an account, as far
// as the heap shows.
func TestWhatIsSentIsCounted(t *testing.T) {
	t.Parallel()
	long(t)
	if !alone(t) {
		return
	}
	const n = 16
	for _, way := range caused {
		measured(t, way.name, func(t *testing.T, last bool) (good bool) {
			inWorld(t, 2, clean, func(t *testing.T, w *world) {
				l := w.listen(&Config{MaxStreams: 4, Backlog: 4 * n})
				to := l.Addr().(*net.UDPAddr).AddrPort()
				var mu sync.Mutex
				tokens, peers := map[netip.AddrPort]uint32{}, map[netip.AddrPort]*silentPeer{}
				for i := range n {
					peers[floodAddr(i)] = new(silentPeer)
				}
				w.net.SetFilter(func(_, to netip.AddrPort, p []byte) bool {
					mu.Lock()
					defer mu.Unlock()
					for _, s := range signalsOf(p) {
						if s.code == sigHello|sigAnswer {
							tokens[to] = s.sn
						}
					}
					if peer := peers[to]; peer != nil {
						peer.took(p)
					}
					return to.Addr().As4()[0] != 172
				})
				send := func(i int, p []byte) {
					for rest := p; len(rest) >= headerSize; rest = rest[headerSize+int(binary.LittleEndian.Uint32(rest[20:])):] {
						binary.LittleEndian.PutUint16(rest[6:], 2048)
					}
					w.net.Inject(floodAddr(i), to, packetOf(uint32(1000+i), p))
				}
				info := infoSignal()
				info.ts |= capStreams
				for i := range n {
					send(i, append(hello(9), bytesOf(info)...))
				}
				synctest.Wait()
				for i := range n {
					send(i, bytesOf(signal{sigConfirm, tokens[floodAddr(i)], 9}))
				}
				synctest.Wait()
				conns := make([]*Conn, n)
				for i := range conns {
					conns[i] = accepted(t, l)
				}
				empty := memoryInUse()
				for _, c := range conns {
					if way.serve != nil {
						go way.serve(c)
					}
				}
				for round := range way.rounds {
					for i := range n {
						mu.Lock()
						p := way.make(peers[floodAddr(i)], round)
						mu.Unlock()
						if len(p) > 0 {
							send(i, p)
						}
					}
					time.Sleep(20 * time.Millisecond)
				}
				synctest.Wait()
				mu.Lock()
				clear(peers)
				mu.Unlock()
				st := l.Stats()
				require.Equal(t, n, st.Sessions)
				held, counted := memoryInUse()-empty, int64(st.Buffered+st.WriteBuffered)
				t.Logf("a session holds %d, counted %d and %d", held/n, st.Buffered/n, st.WriteBuffered/n)
				most := counted/n + counted/n/2 + 64<<10
				if good = held/n <= most; last {
					require.LessOrEqual(t, held/n, most)
				}
				runtime.KeepAlive(l)
				w.net.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return false })
			})
			return good
		})
	}
}

// Datagrams that wait for the cap of the rate are on the account of what waits to be
// sent.
func TestWhatWaitsForTheCapIsCounted(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(&Config{MaxRate: 20_000, FEC: FEC{Data: 1, Parity: 4}}, nil)
		for range pacing.MaxHeld {
			require.NoError(t, a.SendDatagram(make([]byte, 1000)))
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.accountWrites()
		counted := a.ep.load.written.Load()*writeGrain - int64(a.kcp.load().memory)
		bytes := 0
		for p := range a.capped.datagrams.Beyond(0) {
			bytes += cap(p.pooled.b)
		}
		require.Greater(t, bytes, 10*writeGrain)
		require.InEpsilon(t, bytes, counted, 0.2)
	})
}
