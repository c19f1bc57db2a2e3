package kcp

import (
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/stats"
)

// hostileEnds are ways in which a peer ends its streams at once, with something written
// and without.
var hostileEnds = map[string]func(s *Stream){
	"Close":                   func(s *Stream) { _ = s.Close() },
	"Write, Close":            func(s *Stream) { _, _ = s.Write([]byte("x")); _ = s.Close() },
	"Reset":                   func(s *Stream) { _ = s.Reset(7) },
	"Write, Reset":            func(s *Stream) { _, _ = s.Write([]byte("x")); time.Sleep(time.Second / 50); _ = s.Reset(0) },
	"CancelWrite, CancelRead": func(s *Stream) { _ = s.CancelWrite(1); _ = s.CancelRead(2) },
	"CloseWrite, CancelRead":  func(s *Stream) { _ = s.CloseWrite(); _ = s.CancelRead(0) },
	"against the rules":       func(s *Stream) { s.conn.sendRaw(finOf(s, 5)); s.conn.sendRaw(finOf(s, 6)) },
	"refused, although it is not": func(s *Stream) {
		s.conn.sendRaw((&streams.Header{ID: s.ID(), Opens: true, Kind: streams.Reset, Code: StreamRefused}).Append(nil))
	},
}

// finOf returns a FIN of s after n messages.
func finOf(s *Stream, n seq) []byte {
	return (&streams.Header{ID: s.ID(), Opens: true, Kind: streams.Fin, MID: n}).Append(nil)
}

// slowHandlers are what an application does with a stream for 20 s, before it closes it.
var slowHandlers = map[string]func(s *Stream){
	"does not touch it": func(*Stream) {},
	"reads to the end":  func(s *Stream) { _, _ = io.ReadAll(s) },
	"has ended its side": func(s *Stream) {
		_ = s.CancelWrite(3)
		time.Sleep(time.Second) // and comes to read later
	},
	"reads no more": func(s *Stream) { _ = s.CancelRead(0) },
	"writes":        func(s *Stream) { _, _ = s.Write([]byte("welcome")); _, _ = s.Write([]byte("and more")) },
}

// Whatever the peer does to its streams, at most Config.MaxStreams are worked on at a
// time: until the application has closed one, it counts (compare CVE-2023-44487). When
// it has closed all, there is room for as many.
func TestStreamsWorkedOnAreBounded(t *testing.T) {
	for ending, end := range hostileEnds {
		for handling, work := range slowHandlers {
			t.Run(ending+", handler "+handling, func(t *testing.T) {
				inWorld(t, 1, clean, func(t *testing.T, w *world) {
					const most = 8
					a, b, _ := w.pair(nil, &Config{MaxStreams: most})
					ignoreLimit(a)
					var working atomic.Int64
					var peak testenv.Peak
					var all sync.WaitGroup
					serve := func(s *Stream) {
						defer all.Done()
						peak.Saw(working.Add(1))
						work(s)
						time.Sleep(20 * time.Second)
						working.Add(-1)
						_ = s.Close()
					}
					all.Go(func() {
						for {
							s, err := b.AcceptStream(t.Context())
							if err != nil {
								return
							}
							all.Add(1)
							go serve(s)
						}
					})
					for range 40 {
						for range most {
							end(openStream(t, a, nil))
						}
						time.Sleep(100 * time.Millisecond)
					}
					require.EqualValues(t, most, peak.Load())
					require.Equal(t, most, figuresOf(b).fromPeer)
					time.Sleep(time.Minute)
					require.Zero(t, working.Load())
					require.Zero(t, figuresOf(b).fromPeer)
					refused := b.Endpoint().Totals().Streams.Refused
					require.Positive(t, refused)
					for range most {
						send(t, openStream(t, a, nil), []byte("room again"))
					}
					time.Sleep(time.Second)
					require.EqualValues(t, most, working.Load())
					require.Equal(t, refused, b.Endpoint().Totals().Streams.Refused)
					_, _ = a.Abort(), b.Abort()
					all.Wait()
				})
			})
		}
	}
}

// The same for the events of a group: a stream counts until its handler has closed it,
// whether the peer's end was an event or not, also when the session has left the group.
func TestGroupStreamsWorkedOnAreBounded(t *testing.T) {
	for ending, end := range hostileEnds {
		t.Run(ending, func(t *testing.T) {
			inWorld(t, 2, clean, func(t *testing.T, w *world) {
				a, b, g := w.grouped(&Config{MaxStreams: 8})
				ignoreLimit(a)
				g.ReportStreams()
				require.NoError(t, g.Remove(b))
				require.NoError(t, g.Add(b))
				var opened []*Stream
				flood := func() {
					for range 10 {
						for range 8 {
							end(openStream(t, a, nil))
						}
						time.Sleep(100 * time.Millisecond)
						if b.reportsStreamsNow() {
							for _, e := range take(t, g) {
								if e.Kind == EventStream {
									opened = append(opened, e.Stream)
								}
							}
						}
					}
				}
				flood()
				require.Equal(t, 8, len(opened))
				require.Equal(t, 8, figuresOf(b).fromPeer)
				require.NoError(t, g.Remove(b))
				flood()
				require.Equal(t, 8, figuresOf(b).fromPeer)
				for _, s := range opened {
					_ = s.Close()
				}
				time.Sleep(time.Second)
				require.Zero(t, figuresOf(b).fromPeer)
				flood()
				require.Equal(t, 8, figuresOf(b).fromPeer)
				require.NoError(t, g.Add(b))
				flood()
				require.Equal(t, 16, len(opened))
				_, _ = a.Abort(), b.Abort()
			})
		})
	}
}

// reportsStreamsNow is reportsStreams, and locks c.mu.
func (c *Conn) reportsStreamsNow() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reportsStreams()
}

// What waits to be read in streams that the peer has ended has the bound of those that
// are open, and can still be read.
func TestUnreadOfEndedStreamsIsBounded(t *testing.T) {
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		const most = 20
		a, b, _ := w.pair(nil, &Config{MaxStreams: most})
		ignoreLimit(a)
		var unread []*Stream
		sent := 0
		for range 10 {
			for range 2 * most {
				s := openStream(t, a, nil)
				n, _ := s.TryWrite(content(4, 50000))
				sent += n
				_ = s.Close()
			}
			time.Sleep(3 * time.Second)
			b.mu.Lock()
			waiting := b.streams.Waiting()
			b.mu.Unlock()
			for range waiting {
				unread = append(unread, acceptStream(t, b))
			}
		}
		require.Equal(t, most, len(unread))
		held := figuresOf(b).held
		require.Greater(t, held, most*50000)
		require.Less(t, held, most*streams.InitialCredit)
		require.Greater(t, sent, 10*held)
		for _, s := range unread {
			_ = s.CloseWrite()
			receive(t, s, content(4, 50000))
			_, err := s.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
		}
		require.Zero(t, figuresOf(b).held)
		require.Zero(t, figuresOf(b).fromPeer)
	})
}

// A stream does not count any more when both ends are done with it, however they come to
// that: a peer that has half as many open at a time as it may is never refused.
func TestStreamsThatAreDoneDoNotCount(t *testing.T) {
	answer := func(s *Stream) { _, _ = s.Write([]byte("answer")) }
	for name, serve := range map[string]func(s *Stream){
		"Close after the end":       func(s *Stream) { _, _ = io.ReadAll(s); answer(s); _ = s.Close() },
		"CloseWrite after the end":  func(s *Stream) { _, _ = io.ReadAll(s); answer(s); _ = s.CloseWrite() },
		"CloseWrite before the end": func(s *Stream) { answer(s); _ = s.CloseWrite(); _, _ = io.ReadAll(s) },
		"CloseWrite and no end":     func(s *Stream) { _, _ = io.ReadFull(s, make([]byte, 8)); answer(s); _ = s.CloseWrite() },
		"CancelRead":                func(s *Stream) { answer(s); _ = s.CloseWrite(); _ = s.CancelRead(0) },
		"Close at once":             func(s *Stream) { answer(s); _ = s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 4, clean, func(t *testing.T, w *world) {
				a, b, _ := w.pair(nil, &Config{MaxStreams: 16})
				go func() {
					for {
						s, err := b.AcceptStream(t.Context())
						if err != nil {
							return
						}
						go serve(s)
					}
				}()
				var clients sync.WaitGroup
				for range 8 {
					clients.Go(func() {
						for range 100 {
							s, err := a.OpenStream(t.Context(), nil)
							if err != nil {
								t.Error(err)
								return
							}
							_, _ = s.Write([]byte("question"))
							_ = s.CloseWrite()
							got, err := io.ReadAll(s)
							if string(got) != "answer" {
								t.Errorf("%q, %v", got, err)
							}
							_ = s.Close()
						}
					})
				}
				clients.Wait()
				time.Sleep(time.Second)
				require.Zero(t, figuresOf(b).fromPeer)
				require.Equal(t, stats.Streams{Accepted: 800, Ended: 800}, b.Endpoint().Totals().Streams)
				_, _ = a.Abort(), b.Abort()
			})
		})
	}
}

// A peer that claims to take more than any default receive buffer grows to is believed as
// far as this end's Config has as much.
func TestShownCreditIsBelievedWithinLimits(t *testing.T) {
	for _, tc := range []struct {
		config Config
		most   int
	}{
		{Config{}, 8 << 20},
		{Config{StreamReceiveBuffer: 64 << 10}, 8 << 20},
		{Config{StreamReceiveBuffer: 32 << 20}, 32 << 20},
		{Config{StreamWriteBuffer: 16 << 20}, 16 << 20},
	} {
		inWorld(t, 5, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(&tc.config, nil)
			s, _ := streamPair(t, a, b, nil)
			for _, limit := range []seq{1 << 30, 1<<31 - 1, 1<<31 + 65535, 1<<32 - 1} {
				b.sendRaw((&streams.Header{ID: s.ID(), Kind: streams.Credit, Limit: limit}).Append(nil))
				time.Sleep(time.Second)
				require.LessOrEqual(t, s.MaxMessageSize(), tc.most)
			}
			require.Greater(t, s.MaxMessageSize(), tc.most/10*9)
			require.ErrorIs(t, s.WriteMessage(make([]byte, tc.most)), ErrMessageTooLarge)
		})
	}
}
