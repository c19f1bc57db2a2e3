package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// done is a context that has ended: with it Wait does not block.
func done() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func groupCipher(t *testing.T) crypt.Cipher {
	t.Helper()
	aead, err := crypt.AESGCM(bytes.Repeat([]byte{7}, 16))
	require.NoError(t, err)
	return aead
}

// grouped returns the two ends of a session, of which b is in a group.
func (w *world) grouped(config *kcp.Config) (a, b *kcp.Conn, g *kcp.Group) {
	w.t.Helper()
	a, b, _ = w.pair(config, config)
	g = kcp.NewGroup()
	require.NoError(w.t, g.Add(b))
	return a, b, g
}

// Several goroutines serve a group: the events of a session are in order, one
// at a time, and each reaches one of them.
func TestGroupServe(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		config := kcp.Config{MessageMode: true}
		g := kcp.NewGroup()
		require.NoError(t, w.listen(&config).AcceptInto(g))
		type player struct {
			busy   atomic.Bool
			begun  bool
			next   uint32
			ended  bool
			worker map[int]bool
		}
		var mu sync.Mutex
		players := make(map[*kcp.Conn]*player)
		ctx, cancel := context.WithCancel(context.Background())
		var workers, clients sync.WaitGroup
		for worker := range 4 {
			workers.Go(func() {
				err := g.Serve(ctx, func(e kcp.Event) {
					mu.Lock()
					p := players[e.Conn]
					if p == nil {
						p = &player{worker: make(map[int]bool)}
						players[e.Conn] = p
					}
					mu.Unlock()
					assert.True(t, p.busy.CompareAndSwap(false, true), "two events of a session at once")
					defer p.busy.Store(false)
					p.worker[worker] = true
					time.Sleep(time.Millisecond)
					assert.False(t, p.ended)
					assert.Equal(t, !p.begun, e.Kind == kcp.EventAccepted)
					p.begun = true
					switch e.Kind {
					case kcp.EventMessage:
						assert.Equal(t, p.next, binary.LittleEndian.Uint32(e.Data))
						p.next++
					case kcp.EventEnded:
						assert.Equal(t, io.EOF, e.Err)
						p.ended = true
					}
				})
				assert.Equal(t, context.Canceled, err)
			})
		}
		e, _ := w.endpoint("10.0.0.2:0", &config)
		const messages = 50
		for range 8 {
			clients.Go(func() {
				c := w.dial(e)
				for i := range uint32(messages) {
					assert.NoError(t, c.WriteMessage(binary.LittleEndian.AppendUint32(nil, i)))
				}
				assert.NoError(t, c.Close())
			})
		}
		clients.Wait()
		time.Sleep(5 * time.Second)
		_, err := g.Wait(done(), make([]kcp.Event, 1))
		require.ErrorIs(t, err, kcp.ErrGroupInUse)
		cancel()
		workers.Wait()
		require.Len(t, players, 8)
		all := make(map[int]bool)
		for _, p := range players {
			require.Equal(t, uint32(messages), p.next)
			require.True(t, p.ended)
			for n := range p.worker {
				all[n] = true
			}
		}
		require.Len(t, all, 4, "not all goroutines have had events")
	})
}

// What a handler may do: block, panic, and call the session.
func TestGroupHandlerCalls(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, g := w.grouped(nil)
		var seen []string
		boom := false
		serve := func() {
			defer func() {
				if boom {
					require.Equal(t, "boom", recover())
				}
			}()
			ctx, cancel := context.WithCancel(context.Background())
			err := g.Serve(ctx, func(e kcp.Event) {
				seen = append(seen, fmt.Sprint(e.Kind, " ", string(e.Data)))
				switch string(e.Data) {
				case "panic":
					boom = true
					panic("boom")
				case "write":
					_, err := b.Write([]byte("written"))
					assert.NoError(t, err)
				case "remove":
					assert.NoError(t, g.Remove(b))
					assert.NoError(t, g.Add(b))
				case "close":
					assert.NoError(t, b.Close())
					return
				}
				if e.Kind != kcp.EventEnded {
					assert.Equal(t, 1, g.Len())
				}
				cancel()
			})
			assert.Equal(t, context.Canceled, err)
		}
		for _, what := range []string{"panic", "write", "remove", "close"} {
			_, err := a.Write([]byte(what))
			require.NoError(t, err)
			serve()
			require.Equal(t, what == "panic", boom)
			boom = false
			time.Sleep(time.Second)
		}
		receive(t, a, []byte("written"))
		require.Equal(t, []string{"data panic", "data write", "data remove", "data close", "ended "}, seen)
		require.Zero(t, g.Len())
	})
}

// Sessions begin, move, end and leave the group while it delivers. What comes
// from each is the beginning of what was written to it, and all of it if the
// session was not disturbed.
func TestGroupChurn(t *testing.T) {
	for seed := range fewer(9) { // Serve, Wait and Handle in turn
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inWorld(t, seed, lossy, func(t *testing.T, w *world) { groupChurn(w, seed) })
		})
	}
}

func groupChurn(w *world, seed uint64) {
	t := w.t
	config := kcp.Config{Cipher: groupCipher(t), PeerTimeout: 20 * time.Second}
	g := kcp.NewGroup()
	require.NoError(t, w.listen(&config).AcceptInto(g))
	var mu sync.Mutex
	got := make(map[uint32][]byte) // by conversation
	ended := make(map[uint32]error)
	alive := make(map[uint32]*kcp.Conn)
	ctx, stop := context.WithCancel(context.Background())
	var workers, clients, others sync.WaitGroup
	handle := func(e kcp.Event) {
		mu.Lock()
		defer mu.Unlock()
		id := e.Conn.Conv()
		switch e.Kind {
		case kcp.EventAccepted:
			alive[id] = e.Conn
		case kcp.EventData:
			got[id] = append(got[id], e.Data...)
		case kcp.EventEnded:
			assert.NotContains(t, ended, id)
			ended[id] = e.Err
			delete(alive, id)
			_ = e.Conn.Close()
		}
	}
	switch seed % 3 {
	case 0:
		for range 3 {
			workers.Go(func() { assert.Equal(t, context.Canceled, g.Serve(ctx, handle)) })
		}
	case 2:
		require.NoError(t, g.Handle(func(events []kcp.Event) {
			for _, e := range events {
				handle(e)
			}
		}))
	default:
		workers.Go(func() {
			events := make([]kcp.Event, 5)
			for {
				n, err := g.Wait(ctx, events)
				if err != nil {
					assert.Equal(t, context.Canceled, err)
					return
				}
				for _, e := range events[:n] {
					handle(e)
				}
			}
		})
	}
	// A session out of the group, and in again, loses nothing.
	others.Go(func() {
		random := rand.New(rand.NewPCG(seed, 5))
		for ctx.Err() == nil {
			time.Sleep(time.Duration(random.IntN(40)) * time.Millisecond)
			mu.Lock()
			for _, c := range alive {
				if g.Remove(c) == nil {
					runtime.Gosched()
					assert.NoError(t, g.Add(c))
				}
				break
			}
			mu.Unlock()
		}
	})
	type result struct {
		id      uint32
		data    []byte
		aborted bool
	}
	results := make(chan result, 100)
	for i := range uint64(12) {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(seed, i))
			e, pc := w.endpoint(fmt.Sprintf("10.0.1.%d:5000", i+1), &config)
			time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
			c, err := e.Dial(context.Background(), parse(serverAddr))
			if !assert.NoError(t, err) {
				return
			}
			r := result{id: c.Conv(), data: content(seed*100+i, 1+random.IntN(60_000)), aborted: i%4 == 3}
			for rest := r.data; len(rest) > 0; {
				n := min(1+random.IntN(8000), len(rest))
				_, err := c.Write(rest[:n])
				assert.NoError(t, err)
				rest = rest[n:]
				time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
				if random.IntN(6) == 0 {
					assert.NoError(t, pc.Rebind(fmt.Sprintf("10.0.%d.%d:5000", 2+random.IntN(200), i+1)))
				}
			}
			if r.aborted {
				assert.NoError(t, c.Abort())
			} else {
				assert.NoError(t, c.Close())
			}
			results <- r
		})
	}
	clients.Wait()
	time.Sleep(time.Minute)
	stop()
	workers.Wait()
	others.Wait()
	close(results)
	for r := range results {
		if r.aborted {
			require.True(t, bytes.HasPrefix(r.data, got[r.id]))
			continue
		}
		require.True(t, bytes.Equal(r.data, got[r.id]), "%d bytes, want %d", len(got[r.id]), len(r.data))
		require.Equal(t, io.EOF, ended[r.id])
	}
	require.Empty(t, alive)
	require.Zero(t, g.Len())
}

func parse(addr string) net.Addr {
	a, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		panic(err)
	}
	return a
}

// Abort and Close by a handler end the session; its end is the next event.
func TestGroupHandleEnds(t *testing.T) {
	for _, abort := range []bool{false, true} {
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			a, b, g := w.grouped(nil)
			var ends []error
			require.NoError(t, g.Handle(func(events []kcp.Event) {
				for _, e := range events {
					if e.Kind == kcp.EventEnded {
						ends = append(ends, e.Err)
					} else if abort {
						assert.NoError(t, b.Abort())
					} else {
						assert.NoError(t, b.Close())
					}
				}
			}))
			_, err := a.Write([]byte("go"))
			require.NoError(t, err)
			_, err = a.Read(make([]byte, 1))
			if abort {
				require.ErrorIs(t, err, kcp.ErrReset)
			} else {
				require.Equal(t, io.EOF, err)
			}
			synctest.Wait()
			require.Len(t, ends, 1)
			require.ErrorIs(t, ends[0], net.ErrClosed)
		})
	}
}

// A handler gets the datagrams in place of ReceiveDatagram, and may answer them,
// whoever reads the socket and whatever is around the packets.
func TestHandleDatagrams(t *testing.T) {
	for seed, cfg := range []kcp.Config{{}, {FEC: kcp.FEC{Data: 2, Parity: 1}}, {Cipher: testAEAD(t)}, {MessageMode: true}} {
		for reads := range 2 {
			inWorld(t, uint64(seed), clean, func(t *testing.T, w *world) {
				w.leads = reads == 1
				a, b, _ := w.pair(&cfg, &cfg)
				require.NoError(t, a.SendDatagram([]byte("early")))
				time.Sleep(time.Second)
				var mu sync.Mutex
				var got []string
				b.HandleDatagrams(func(p []byte) {
					mu.Lock()
					got = append(got, string(p))
					mu.Unlock()
					for i := range p {
						p[i]++ // the memory may be changed
					}
					if err := b.SendDatagram(p); err != nil {
						t.Error(err)
					}
				})
				if reads == 1 { // a blocked Read reads the socket, and calls the handler
					go func() { _, _ = b.Read(make([]byte, 1)) }()
				}
				for _, s := range []string{"abc", "bcd", ""} {
					require.NoError(t, a.SendDatagram([]byte(s)))
				}
				for _, want := range []string{"bcd", "cde", ""} {
					p, err := a.ReceiveDatagram(context.Background())
					require.NoError(t, err)
					require.Equal(t, want, string(p))
				}
				mu.Lock()
				require.Equal(t, []string{"abc", "bcd", ""}, got)
				mu.Unlock()
				p, err := b.ReceiveDatagram(context.Background())
				require.NoError(t, err)
				require.Equal(t, "early", string(p))
				require.NoError(t, b.SetReadDeadline(time.Now().Add(-1)))
				_, err = b.ReceiveDatagram(context.Background())
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				require.NoError(t, b.SetReadDeadline(time.Time{}))
				require.Equal(t, kcp.DatagramStats{Received: 4, Sent: 3}, b.Stats().Datagrams)

				b.HandleDatagrams(nil)
				b.HandleDatagrams(nil)
				require.NoError(t, a.SendDatagram([]byte("late")))
				p, err = b.ReceiveDatagram(context.Background())
				require.NoError(t, err)
				require.Equal(t, "late", string(p))
			})
		}
	}
}

// A handler may be replaced by itself, and gets nothing after Close. Datagrams
// keep a session from being idle.
func TestHandlerEnds(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, &kcp.Config{IdleTimeout: 3 * time.Second, Linger: -1})
		var calls atomic.Int32
		b.HandleDatagrams(func([]byte) {
			calls.Add(1)
			b.HandleDatagrams(func([]byte) { calls.Add(10) })
		})
		for range 3 {
			require.NoError(t, a.SendDatagram([]byte("x")))
			time.Sleep(2 * time.Second)
		}
		require.NoError(t, b.Err())
		require.EqualValues(t, 21, calls.Load())
		require.NoError(t, b.Close())
		require.NoError(t, a.SendDatagram([]byte("x")))
		time.Sleep(time.Second)
		require.EqualValues(t, 21, calls.Load())
	})
}
