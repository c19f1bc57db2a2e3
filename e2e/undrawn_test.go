package e2e

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/stretchr/testify/require"
)

// Nothing is found by a number that is not drawn yet, or by one that is missing.

// numberless are packets that name the conversation conv, or none, and other numbers that
// are 0.
func numberless(conv uint32) map[string][]byte {
	hello := segment(83, 1, 0, 0, 0, "")
	return map[string][]byte{
		"ACK":              packetOf(conv, ack(0, 0, 0)),
		"PUSH":             packetOf(conv, push(0, 0, "forged")),
		"HELLO":            packetOf(conv, hello),
		"WELCOME":          packetOf(conv, segment(84, 0x81, 0, 5, 0, "")),
		"TIEBREAKER":       packetOf(conv, segment(84, 15, 0, 0, 0, "")),
		"HELLO with it":    packetOf(conv, hello, segment(84, 15, 0, 0, 0, "")),
		"ABORT":            packetOf(conv, segment(84, 9, 0, 0, 0, "")),
		"RESET":            packetOf(conv, segment(84, 8, 0, 0, 0, "")),
		"answer to CLOSE":  packetOf(conv, segment(84, 0x85, 0, 0, 0, "")),
		"answer to PING":   packetOf(conv, segment(84, 0x86, 0, 0, 0, "")),
		"TOKEN":            packetOf(conv, segment(84, 11, 0, 0, 0, "")),
		"parity":           append([]byte{0, 0, 0, 0, 0xf2, 0}, make([]byte, 40)...),
		"unreliable":       append([]byte{0, 0, 0, 0, 0xf3, 0, 8, 0}, packetOf(conv, []byte{0, 0, 0, 0, 1, 2})...),
		"CRYPTO":           packetOf(conv, hello, segment(84, 12, 0, 0, 0, "")),
		"of the handshake": append(packetOf(conv, segment(0x40, 0, 0, 0, 0, "")), make([]byte, 30)...),
	}
}

// parks has f called when the session that is dialled gets its controller.
func parks(config *kcp.Config, f func()) *kcp.Config {
	parks, calls := *config, 0
	parks.CongestionControl = func() congestion.Control {
		if calls++; calls == 1 {
			f()
		}
		return congestion.NewBBR()
	}
	return &parks
}

// A call that dials has found its peer's address before it has drawn anything. What
// comes from there then does not disturb it, nor end the process. One more address that
// the peer may have is no exception.
func TestPacketsBeforeADialHasDrawn(t *testing.T) {
	for protection, config := range peerConfigs(t) {
		for name, packet := range numberless(0) {
			for _, from := range []string{peerB, hostB} {
				t.Run(fmt.Sprintf("%s, %s, %s", protection, name, from), func(t *testing.T) {
					inWorld(t, 1, clean, func(t *testing.T, w *world) {
						parked := false
						a, _ := w.endpoint(peerA, parks(config, func() {
							parked = true
							w.inject(from, peerA, packet)
							w.settle()
						}))
						b, _ := w.endpoint(peerB, config)
						x, y := openBoth(a, b, []string{peerA}, []string{peerB, hostB}, 0)
						requireOneSession(t, a, b, x, y)
						require.True(t, parked)
					})
				})
			}
		}
	}
}

// A session that was dialled quietly has drawn no token before its first data. Forged
// packets to its conversation, which is known, do not count as the peer's answer.
func TestPacketsBeforeTheFirstData(t *testing.T) {
	const conv = 77
	for protection, config := range peerConfigs(t) {
		for name, packet := range numberless(conv) {
			if protection == "plain" && (name == "PUSH" || name == "ACK" || name == "HELLO") {
				continue // an end without signals, such as kcp-go, may send them
			}
			t.Run(protection+", "+name, func(t *testing.T) {
				inWorld(t, 1, clean, func(t *testing.T, w *world) {
					l := w.listen(config)
					e, _ := w.endpoint("10.0.0.2:5000", config)
					c := w.dialWith(e, serverAddr, kcp.DialOptions{Conv: id(conv), Quiet: true})
					for range 3 {
						w.inject(serverAddr, "10.0.0.2:5000", packet)
						w.settle()
					}
					send(t, c, content(1, 5000))
					s := accepted(t, l)
					receive(t, s, content(1, 5000))
					w.move(s, c, 2, 5000)
					require.True(t, c.Peer().Known && !c.Peer().Legacy)
				})
			})
		}
	}
}

// inject sends a packet in the name of an address.
func (w *world) inject(from, to string, packet []byte) {
	w.net.Inject(netip.MustParseAddrPort(from), netip.MustParseAddrPort(to), packet)
}

// Parity names no conversation. It moves no session that the peer of a simultaneous open
// has half open, not even one of conversation 0.
func TestParityMovesNoOpen(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		var moved atomic.Int32
		trace := &kcp.Trace{Moved: func(string) { moved.Add(1) }}
		a, _ := w.endpoint(peerA, &kcp.Config{
			FEC: kcp.FEC{Data: 3, Parity: 1}, Tracer: func(*kcp.Conn) *kcp.Trace { return trace },
		})
		// The other address answers the challenge, so that sessions may move there.
		answers := make(chan []byte, 1000)
		w.net.SetFilter(func(from, to netip.AddrPort, packet []byte) bool {
			const ping = 24 // the second signal, behind TIEBREAKER
			if to == netip.MustParseAddrPort(hostB) && len(packet) == 2*ping && packet[ping+5] == 6 {
				pong := bytes.Clone(packet[ping:])
				clear(pong[:4]) // its conversation
				pong[4], pong[5] = 84, 0x86
				answers <- pong
			}
			return true
		})
		opens := begin(0, a, peerB, hostB)
		synctest.Wait()
		from := func(addr string, packet []byte) {
			w.inject(addr, peerA, packet)
			synctest.Wait()
		}
		tie := segment(84, 15, 1<<32-1, 1<<32-1, 0, "")
		from(hostB, append(packetOf(0, tie), <-answers...))
		hello := packetOf(0, segment(83, 1, 5, 0, 0, ""), segment(84, 2, 0, 2, 0, ""), tie)
		from(peerB, hello)
		require.Equal(t, 1, a.Stats().HalfOpen)
		from(hostB, numberless(0)["parity"])
		require.Zero(t, moved.Load())
		from(hostB, hello)
		require.EqualValues(t, 1, moved.Load(), "HELLO does")
		require.Error(t, (<-opens).err)
	})
}

// An open that the application's own code ends, by a panic or with its goroutine, is
// forgotten: packets find nothing of it, and the peer can be dialled again.
func TestOpenThatUnwinds(t *testing.T) {
	for name, unwind := range map[string]func(){"panic": func() { panic("of the application") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				a, _ := w.endpoint(peerA, parks(new(kcp.Config), func() {
					w.inject(peerB, peerA, numberless(0)["ACK"])
					unwind()
				}))
				b, _ := w.endpoint(peerB, nil)
				var unwound sync.WaitGroup
				unwound.Go(func() {
					defer func() { _ = recover() }()
					open(a, []string{peerB})
				})
				unwound.Wait()
				w.settle()
				require.Zero(t, a.Stats().Sessions)
				x, y := openBoth(a, b, []string{peerA}, []string{peerB}, 0)
				requireOneSession(t, a, b, x, y)
			})
		})
	}
}

// A session may end before its call begins the handshake: it is in the endpoint's table
// already, and the call writes to a log then. It ends with the endpoint, or with TLS
// because a HELLO of the peer's for its conversation has come. The call says why, and
// nothing leaves.
func TestSessionEndsBeforeItBegins(t *testing.T) {
	const conv = 77
	hello := packetOf(conv, segment(83, 1, 5, 0, 0, ""), segment(84, 2, 2, 2, 0, ""))
	crypto := packetOf(conv, segment(84, 12, 0, 0, 0, string(make([]byte, protect.InitialOverhead))))
	sealed := append(hello, crypto...)
	protect.NewInitial(conv, 5, true).Seal(sealed, len(sealed)-protect.InitialOverhead)
	for protection, config := range peerConfigs(t) {
		for name, options := range map[string]kcp.DialOptions{
			"dialled": {Conv: id(conv)}, "quiet": {Conv: id(conv), Quiet: true}, "simultaneous": {SimultaneousOpen: true},
		} {
			for _, by := range []string{"Close", "Shutdown", "Abort", "HELLO"} {
				if by == "HELLO" && (config.TLS == nil || name == "simultaneous") {
					continue
				}
				t.Run(fmt.Sprint(protection, name, by), func(t *testing.T) {
					inWorld(t, 1, clean, func(t *testing.T, w *world) {
						var e *kcp.Endpoint
						does := map[string]func(){
							"Close":    func() { go e.Close(); w.settle() },
							"Shutdown": func() { go func() { _ = e.Shutdown(t.Context()) }(); w.settle() },
							"HELLO":    func() { w.inject(peerB, peerA, sealed); w.settle() },
							"Abort": func() { // who looks at all sessions
								for c := range e.Sessions() {
									_ = c.Abort(0, "")
								}
							},
						}[by]
						logs := *config
						logs.Logger = slog.New(onRecord(func(message string) {
							if message == "kcp: session dialled" {
								does()
							}
						}))
						e, _ = w.endpoint(peerA, &logs)
						sent := e.Stats().PacketsSent
						c, err := e.Dial(context.Background(), udpAddr(peerB), &options)
						if err == nil { // quiet: a later call says so
							_, err = c.Write([]byte("x"))
						}
						w.settle()
						if by == "HELLO" {
							require.ErrorContains(t, err, "the peer dials this session too")
						} else {
							require.ErrorIs(t, err, net.ErrClosed)
						}
						require.Equal(t, sent, e.Stats().PacketsSent)
						require.Zero(t, e.Stats().Sessions)
					})
				})
			}
		}
	}
}

// onRecord is a log handler that calls a function for each record.
type onRecord func(message string)

func (h onRecord) Enabled(context.Context, slog.Level) bool { return true }
func (h onRecord) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h onRecord) WithGroup(string) slog.Handler            { return h }
func (h onRecord) Handle(_ context.Context, r slog.Record) error {
	h(r.Message)
	return nil
}
