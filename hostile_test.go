package kcp

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// badStreamCase is what a peer sends that it should not, as payloads of stream
// segments, and what comes of it.
type badStreamCase struct {
	name     string
	segments [][]byte
	code     uint64 // with which stream 1 is reset, at both ends; 0: it is not
	drops    uint64 // counted by the receiver
	atSender uint64 // and by the end that has sent them
	streams  int    // that the receiver has more than before
	readErr  error  // what the receiver's Read of stream 1 returns; nil: it does not fail
}

// badData returns a whole message of stream 1, or what change makes of it.
func badData(change func(h *streams.Header), n int) []byte {
	h := streams.Header{ID: 1, Kind: streams.Data, End: true}
	change(&h)
	return append(h.Append(nil), make([]byte, n)...)
}

// badMessage returns a whole message of stream 1.
func badMessage(mid machine.Seq) []byte { return badData(func(h *streams.Header) { h.MID = mid }, 1) }

// badPart returns a fragment of message 1 of stream 1.
func badPart(fsn uint32, end bool) []byte {
	return badData(func(h *streams.Header) { h.Part, h.End, h.FSN, h.MID = true, end, fsn, 1 }, 10)
}

// badControl returns a segment of stream 1 without data.
func badControl(h streams.Header) []byte {
	h.ID = 1
	return h.Append(nil)
}

func badFin(n machine.Seq) []byte { return badControl(streams.Header{Kind: streams.Fin, MID: n}) }

func badAbandon(mid machine.Seq, size uint16) []byte {
	return badControl(streams.Header{Kind: streams.Abandon, MID: mid, Size: size})
}

// badAbandonAll returns an ABANDON of all messages up to mid.
func badAbandonAll(mid machine.Seq) []byte {
	return badControl(streams.Header{Kind: streams.Abandon, End: true, MID: mid, Size: streams.NoSegment})
}

// badCredit returns n messages, eight of which use up the credit of stream 1; or, if
// parts, fragments of one.
func badCredit(n int, parts bool) (all [][]byte) {
	for i := range n {
		all = append(all, badData(func(h *streams.Header) {
			if h.MID = machine.Seq(i); parts {
				h.MID, h.Part, h.End, h.FSN = 0, true, false, uint32(i)
			}
		}, streams.InitialCredit/64-streams.SegmentCost))
	}
	return all
}

// badAbandons returns an ABANDON of each of n messages of which nothing arrives
// before, and with their DATA that, too.
func badAbandons(n int, data bool) (all [][]byte) {
	for i := range n {
		all = append(all, badAbandon(machine.Seq(i+1), streams.NoSegment))
	}
	for i := range n {
		if data {
			all = append(all, badData(func(h *streams.Header) { h.MID, h.Part, h.End = machine.Seq(i+1), true, false }, 0))
		}
	}
	return all
}

// ofUnknown returns a segment of each kind of a stream that the peer has not
// opened: one of the receiver's, and one of the peer's without options.
func ofUnknown() (all [][]byte) {
	for kind := range streams.Kinds {
		if kind != streams.Open {
			all = append(all, (&streams.Header{ID: 2, Kind: kind, End: kind == streams.Data}).Append(nil),
				(&streams.Header{ID: 99, Kind: kind, End: kind == streams.Data}).Append(nil))
		}
	}
	return append(all, (&streams.Header{ID: 2, Kind: streams.Open, Opens: true}).Append(nil))
}

// opening returns the segments that open n streams of the peer from number 5 on.
func openingOf(n int) (all [][]byte) {
	for i := range uint32(n) {
		all = append(all, badData(func(h *streams.Header) { h.ID, h.Opens = 5+2*i, true }, 3))
	}
	return all
}

var badStreamCases = []badStreamCase{
	{name: "malformed", segments: [][]byte{{1, 0, 0, 0, 99}, {1, 0, 0, 0}, {}}, drops: 3},
	{name: "unknown stream", segments: ofUnknown(), drops: 13},
	{name: "id far ahead", segments: [][]byte{badData(func(h *streams.Header) { h.ID, h.Opens = 1<<32-1, true }, 1)}, drops: 1},
	{name: "priority", segments: [][]byte{badData(func(h *streams.Header) { h.ID, h.Opens, h.Params.Priority = 5, true, 8 }, 1)}, drops: 1},
	{name: "as many streams as allowed", segments: openingOf(2), streams: 2},
	// The peer did not open what is refused here, so it drops what refuses it.
	{name: "more streams than allowed", segments: openingOf(9), streams: 2, atSender: 7},

	{name: "credit used up", segments: badCredit(64, false)},
	{name: "credit exceeded", segments: badCredit(65, false), code: StreamViolation, drops: 1},
	{name: "message beyond limits", segments: badCredit(64, true), code: StreamTooLarge, drops: 1},

	{name: "one message twice", segments: [][]byte{badMessage(1), badMessage(1)}, code: StreamViolation, drops: 1},
	{name: "message too far ahead", segments: [][]byte{badMessage(streams.MaxMessagesAhead + 1)}, code: StreamViolation, drops: 1},
	{name: "message half the circle ahead", segments: [][]byte{badMessage(1 << 31)}, code: StreamViolation, drops: 1},
	{name: "old message", segments: [][]byte{badMessage(1<<32 - 1)}},
	{name: "one fragment twice", segments: [][]byte{badPart(1, false), badPart(1, false)}, code: StreamViolation, drops: 1},
	{name: "two ends", segments: [][]byte{badPart(1, true), badPart(2, true)}, code: StreamViolation, drops: 1},
	{name: "fragment behind the end", segments: [][]byte{badPart(1, true), badPart(2, false)}, code: StreamViolation, drops: 1},
	{name: "end before a fragment", segments: [][]byte{badPart(5, false), badPart(1, true)}, code: StreamViolation, drops: 1},
	{name: "last fragment there is", segments: [][]byte{badPart(1<<32-1, false)}, code: StreamViolation, drops: 1},
	{name: "fragment of a whole message", segments: [][]byte{badMessage(1), badPart(1, false)}, code: StreamViolation, drops: 1},

	{name: "data after FIN", segments: [][]byte{badFin(1), badMessage(1)}, code: StreamViolation, drops: 1},
	{name: "FIN before data", segments: [][]byte{badMessage(3), badFin(3)}, code: StreamViolation, drops: 1},
	{name: "FIN far ahead", segments: [][]byte{badFin(1 << 31)}, code: StreamViolation, drops: 1},
	{name: "another FIN", segments: [][]byte{badFin(5), badFin(6)}, code: StreamViolation, drops: 1},
	{name: "FIN again", segments: [][]byte{badFin(0), badFin(0)}, readErr: io.EOF},
	{name: "data after RESET", segments: [][]byte{badControl(streams.Header{Kind: streams.Reset, Code: 5}), badMessage(0), badFin(0)}, readErr: &StreamError{Code: 5, Remote: true}},

	{name: "abandoned far ahead", segments: [][]byte{badAbandon(1<<31, streams.NoSegment)}, code: StreamViolation, drops: 1},
	{name: "abandoned after FIN", segments: [][]byte{badFin(1), badAbandon(1, streams.NoSegment)}, code: StreamViolation, drops: 1},
	{name: "abandoned when delivered", segments: [][]byte{badMessage(0), badAbandon(0, streams.NoSegment), badAbandon(0, 7)}},
	{name: "abandoned when complete and early", segments: [][]byte{badMessage(1), badAbandon(1, streams.NoSegment), badMessage(0)}},
	{name: "abandoned beyond the credit", segments: [][]byte{badAbandon(0, 65534)}, code: StreamViolation, drops: 1},
	{name: "abandoned twice", segments: [][]byte{badAbandon(1, streams.NoSegment), badAbandon(1, streams.NoSegment)}},
	{name: "abandoned, as many as credit", segments: badAbandons(streams.InitialCredit/streams.SegmentCost, false)},
	{name: "abandoned before they arrive", segments: badAbandons(streams.InitialCredit/streams.SegmentCost, true)},
	{name: "more abandoned than credit", segments: badAbandons(streams.InitialCredit/streams.SegmentCost+1, false), code: StreamViolation, drops: 1},
	{name: "another beside as many abandoned", segments: append(badAbandons(streams.InitialCredit/streams.SegmentCost, false), badMessage(999)), code: StreamViolation, drops: 1},
	{name: "all abandoned far ahead", segments: [][]byte{badAbandonAll(streams.MaxMessagesAhead + 1)}, code: StreamViolation, drops: 1},
	{name: "all abandoned half the circle ahead", segments: [][]byte{badAbandonAll(1 << 31)}, code: StreamViolation, drops: 1},
	{name: "all abandoned after FIN", segments: [][]byte{badFin(2), badAbandonAll(2)}, code: StreamViolation, drops: 1},
	{name: "all abandoned again", segments: [][]byte{badAbandonAll(9), badAbandonAll(9), badAbandonAll(3), badAbandon(3, 7)}},
	{name: "fragment of an abandoned message", segments: [][]byte{badAbandon(1, streams.NoSegment), badPart(0, false)}},

	{name: "credit backwards", segments: [][]byte{badControl(streams.Header{Kind: streams.Credit, Limit: 1})}},
	{name: "credit half the circle ahead", segments: [][]byte{badControl(streams.Header{Kind: streams.Credit, Limit: 1<<31 + 65536})}},
}

// What a peer should not send is a counted drop, or resets its stream with the
// reason. It is acknowledged all the same. Nothing else is disturbed: neither the
// accounts of another stream and of the session, nor what they carry.
func TestBadStreamSegments(t *testing.T) {
	t.Parallel()
	long(t)
	for _, tc := range badStreamCases {
		t.Run(tc.name, func(t *testing.T) {
			inWorld(t, 10, clean, func(t *testing.T, w *world) {
				a, b, _ := w.pair(nil, &Config{Limits: Limits{MaxStreams: 4}, StreamReceiveBuffer: streams.InitialCredit})
				s, r := streamPair(t, a, b, nil)
				require.EqualValues(t, 1, s.ID())
				other, peer := streamPair(t, a, b, nil)
				writeAll(t, other, content(3, 5000))
				writeAll(t, a, content(4, 5000))
				time.Sleep(time.Second)
				before, figures := peer.Stats(), figuresOf(b)
				received := b.Stats().BytesReceived
				n := 0
				for _, p := range tc.segments {
					a.sendRaw(p)
					n += len(p)
				}
				time.Sleep(time.Second)
				st := a.Stats()
				require.Zero(t, st.InFlight+st.Queued, "they are acknowledged")
				require.Equal(t, stats.Drops{Stream: tc.drops}, b.Stats().Dropped)
				require.Equal(t, stats.Drops{Stream: tc.atSender}, st.Dropped)
				tc.checkReset(t, s, r)

				require.Equal(t, before, peer.Stats())
				require.GreaterOrEqual(t, b.Stats().BytesReceived, received+uint64(n))
				now := figuresOf(b)
				opened := tc.streams
				require.Equal(t, figures.fromPeer+opened, now.fromPeer)
				if tc.code != 0 {
					opened-- // stream 1 is over, and counts until the application closes it
					_ = r.Close()
					require.Equal(t, figures.fromPeer+opened, figuresOf(b).fromPeer)
				}
				require.Equal(t, figures.streams+opened, now.streams)
				require.Zero(t, now.refused+now.ahead+now.awaited)
				receive(t, peer, content(3, 5000))
				receive(t, b, content(4, 5000))
				bothWays(t, other, peer, content(1, 100000), content(2, 100000))
				bothWays(t, a, b, content(1, 20000), content(2, 20000))
				if tc.streams == 0 {
					more, accepted := streamPair(t, a, b, nil)
					bothWays(t, more, accepted, content(5, 20000), content(6, 20000))
				}
			})
		})
	}
}

// checkReset checks what has become of stream 1, of which s is the sender's end.
func (tc *badStreamCase) checkReset(t *testing.T, s, r *Stream) {
	if tc.code != 0 {
		_, err := r.Write([]byte{1})
		wantReset(t, err, tc.code, false)
		_, err = s.Write([]byte{1})
		wantReset(t, err, tc.code, true)
		require.Zero(t, r.Stats().ReadBuffered)
		return
	}
	writeAll(t, r, []byte{1})
	receive(t, s, []byte{1})
	if tc.readErr != nil {
		_, err := r.Read(make([]byte, 1))
		require.ErrorContains(t, err, tc.readErr.Error())
	}
}

// sendRaw sends a stream segment with this payload.
func (c *Conn) sendRaw(payload []byte) {
	c.mu.Lock()
	defer c.unlock()
	buf := c.session.Inside().Machine().NewBuffer(len(payload))
	copy(buf[len(buf)-len(payload):], payload)
	c.session.Inside().Machine().QueueStream(new(streams.Tag), buf)
	c.session.StreamTable() // which hears of the acknowledgement
	c.session.Push()
}

// Packets forged by an off-path attacker, in the name of either end.

// attacked is a session under attack, which moves bytes both ways meanwhile.
type attacked struct {
	w      *world
	a, b   *Conn
	random *rand.Rand
}

func (v *attacked) addrOf(c *Conn) netip.AddrPort { return c.LocalAddr().(*net.UDPAddr).AddrPort() }

// attack lets forge make packets for either end, while a transfer goes on, and
// requires that it has no effect; then both ends close in order.
func (v *attacked) attack(forge func(to, from *Conn) (source netip.AddrPort, packet []byte)) {
	t := v.w.t
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			for _, ends := range [][2]*Conn{{v.a, v.b}, {v.b, v.a}} {
				source, packet := forge(ends[0], ends[1])
				v.w.net.Inject(source, v.addrOf(ends[0]), packet)
			}
		}
	}()
	start := time.Now()
	bothWays(t, v.a, v.b, content(1, 1<<20), content(2, 1<<20))
	require.Less(t, time.Since(start), 10*time.Second)
	require.NoError(t, v.a.CloseWrite())
	_, err := v.b.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
	require.NoError(t, v.b.Close())
	require.NoError(t, v.a.Close())
	close(stop)
	<-stopped
}

// inside returns the segments and signals that somebody who knows everything
// would send to end, or break off, or spoil c.
func (v *attacked) inside(c *Conn) [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	in := c.session.Inside()
	k := in.Machine()
	ours, peers := in.Tokens()
	at := k.Position()
	var all [][]byte
	add := func(cmd uint8, sn, ts uint32, payload string) {
		p := segment(cmd, 0, ts, sn, uint32(at.Sent), payload)
		binary.LittleEndian.PutUint32(p, c.session.Inside().Entry().Conv)
		all = append(all, p)
	}
	add(wire.CmdPush, uint32(at.Received), 0, "forged")
	add(wire.CmdPush, uint32(at.Received)+1, 0, "forged")
	add(wire.CmdAck, uint32(at.Acked), uint32(k.Micros()/1000), "")
	add(wire.CmdAck, uint32(at.Sent)-1, 0, "")
	add(wire.CmdWask, 0, 0, "")
	shut := segment(wire.CmdWins, 0, 0, 0, uint32(at.Acked), "")
	binary.LittleEndian.PutUint32(shut, c.session.Inside().Entry().Conv)
	binary.LittleEndian.PutUint16(shut[6:], 0)
	all = append(all, shut)
	for _, s := range []wire.Signal{
		{Code: wire.Hello, SN: 0, TS: peers}, {Code: wire.Hello, SN: 0, TS: 1}, {Code: wire.Welcome, SN: 1, TS: ours},
		{Code: wire.Fin, SN: uint32(at.Received), TS: ours}, {Code: wire.Close, SN: uint32(at.Received), TS: ours},
		{Code: wire.Abort, SN: ours, TS: 0}, {Code: wire.Reset, SN: in.Opening().Of(opening.Ping).Signal.SN, TS: in.Opening().Of(opening.Ping).Signal.TS},
		{Code: wire.Close | wire.Answer, SN: uint32(k.Position().End), TS: peers},
	} {
		all = append(all, packetOf(c.session.Inside().Entry().Conv, testenv.SegmentOf(s)))
	}
	return all
}

// forging is a way to forge packets for an end in the name of the other.
type forging struct {
	aead  bool // and the attacker has not its key
	forge func(v *attacked, real [][]byte, to, from *Conn) (source netip.AddrPort, packet []byte)
}

// forgings returns ways that have no effect: with an AEAD what is not sealed with its
// key, and what has come before; without a cipher what is of another conversation, or
// from another address; and signals of who does not know the tokens.
func forgings(t *testing.T) map[string]forging {
	other, err := crypt.AESGCM(bytes.Repeat([]byte{2}, 16))
	require.NoError(t, err)
	inside := func(v *attacked, to *Conn) []byte {
		all := v.inside(to)
		return all[v.random.IntN(len(all))]
	}
	return map[string]forging{
		"clear": {true, func(v *attacked, _ [][]byte, to, from *Conn) (netip.AddrPort, []byte) {
			return v.addrOf(from), inside(v, to)
		}},
		"another key": {true, func(v *attacked, _ [][]byte, to, from *Conn) (netip.AddrPort, []byte) {
			return v.addrOf(from), sealed(t, other, inside(v, to))
		}},
		"damaged": {true, func(v *attacked, real [][]byte, _, from *Conn) (netip.AddrPort, []byte) {
			p := bytes.Clone(real[v.random.IntN(len(real))])
			p[v.random.IntN(len(p))] ^= 1 << v.random.IntN(8)
			return v.addrOf(from), p[:len(p)-v.random.IntN(2)*v.random.IntN(len(p))]
		}},
		"replayed": {true, func(v *attacked, real [][]byte, _, from *Conn) (netip.AddrPort, []byte) {
			return v.addrOf(from), real[v.random.IntN(len(real))]
		}},
		"another conversation": {false, func(v *attacked, _ [][]byte, to, from *Conn) (netip.AddrPort, []byte) {
			p := inside(v, to)
			binary.LittleEndian.PutUint32(p, to.Conv()^1<<v.random.IntN(32))
			return v.addrOf(from), p
		}},
		"another address": {false, func(v *attacked, _ [][]byte, to, from *Conn) (netip.AddrPort, []byte) {
			return netip.AddrPortFrom(v.addrOf(from).Addr(), 9), inside(v, to)
		}},
		"signals": {false, (*attacked).signals},
	}
}

// signals returns a signal of who does not know the tokens.
func (v *attacked) signals(_ [][]byte, to, from *Conn) (netip.AddrPort, []byte) {
	r := v.random
	code := wire.Code(1 + r.IntN(9))
	if r.IntN(3) == 0 {
		code = wire.Code(r.Uint32()) | 1
	}
	to.mu.Lock()
	una, final := to.session.Inside().Machine().Position().Acked, uint32(to.session.Inside().Machine().Position().Received)
	to.mu.Unlock()
	args := []uint32{0, 1, final, final + 1, final - 1, r.Uint32()}
	p := make([]byte, wire.HeaderSize)
	wire.Signal{Code: code, SN: args[r.IntN(len(args))], TS: args[r.IntN(len(args))]}.Encode(wire.Header{Conv: to.Conv(), Wnd: 1000, Una: una}, p)
	return v.addrOf(from), p
}

// What an attacker off the path forges in the name of either end has no effect. An AEAD
// is not helped by the memory of its replay filter: what is too old for that is refused.
func TestForgedPackets(t *testing.T) {
	t.Parallel()
	long(t)
	theirs, err := crypt.AESGCM(bytes.Repeat([]byte{1}, 16))
	require.NoError(t, err)
	for name, f := range forgings(t) {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 8, clean, func(t *testing.T, w *world) {
				var mu sync.Mutex
				sent := make(map[netip.AddrPort][][]byte) // by receiver
				w.net.SetFilter(func(_, to netip.AddrPort, p []byte) bool {
					mu.Lock()
					defer mu.Unlock()
					if len(sent[to]) < 5000 {
						sent[to] = append(sent[to], bytes.Clone(p))
					}
					return true
				})
				cfg := new(Config)
				if f.aead {
					cfg.Cipher = theirs
				}
				old, _, l := w.pair(cfg, cfg) // leaves packets of another session
				require.NoError(t, old.Abort(0, ""))
				a := w.dial(old.Endpoint())
				b := accepted(t, l)
				v := &attacked{w, a, b, rand.New(rand.NewPCG(8, 8))}
				v.attack(func(to, from *Conn) (netip.AddrPort, []byte) {
					if f.aead {
						to.ep.shared.Protection.Forget()
					}
					mu.Lock()
					defer mu.Unlock()
					return f.forge(v, sent[v.addrOf(to)], to, from)
				})
				time.Sleep(time.Minute)
				require.Zero(t, l.Endpoint().Stats().Sessions)
			})
		})
	}
}

// A FIN says where the data ends, once and for all, and not before what has come; what
// says otherwise, with the right token even, does nothing. It may come before the data.
func TestImpossibleFins(t *testing.T) {
	inWorld(t, 8, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		writeAll(t, a, []byte("four"))
		receive(t, b, []byte("four"))
		time.Sleep(time.Second)
		from, to := a.LocalAddr().(*net.UDPAddr).AddrPort(), b.LocalAddr().(*net.UDPAddr).AddrPort()
		fin := func(code wire.Code, final uint32) {
			w.net.Inject(from, to, packetOf(a.Conv(), testenv.SegmentOf(wire.Signal{Code: code, SN: final, TS: ourToken(b)})))
			synctest.Wait()
		}
		next := uint32(b.session.Inside().Machine().Position().Received)
		for _, final := range []uint32{0, next - 1, next - 1<<30} {
			fin(wire.Fin, final)
			fin(wire.Close, final)
		}
		require.False(t, b.session.Inside().Closing().Read != closing.ReadOpen)
		require.NoError(t, a.CloseWrite())
		_, err := b.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		fin(wire.Close, next+1)
		send(t, b, []byte("still here"))
		receive(t, a, []byte("still here"))
	})
	inWorld(t, 1, clean, func(t *testing.T, w *world) { // a FIN below what has arrived early
		a, b, l := w.pair(nil, nil)
		from, to := a.LocalAddr().(*net.UDPAddr).AddrPort(), l.Addr().(*net.UDPAddr).AddrPort()
		w.net.Inject(from, to, packetOf(a.Conv(), push(3, 0, "late"), push(2, 0, "y")))
		w.net.Inject(from, to, packetOf(a.Conv(), testenv.SegmentOf(wire.Signal{Code: wire.Fin, SN: 2, TS: ourToken(b)})))
		w.net.Inject(from, to, packetOf(a.Conv(), push(1, 0, "x")))
		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Minute)))
		all, err := io.ReadAll(b)
		require.NoError(t, err)
		require.Equal(t, "xylate", string(all))
	})
}
