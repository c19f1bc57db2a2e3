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
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

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
		all = append(all, packetOf(c.session.Inside().Entry().Conv, bytesOf(s)))
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
				a := w.dial(old.ep)
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
			w.net.Inject(from, to, packetOf(a.Conv(), bytesOf(wire.Signal{Code: code, SN: final, TS: ourToken(b)})))
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
		w.net.Inject(from, to, packetOf(a.Conv(), bytesOf(wire.Signal{Code: wire.Fin, SN: 2, TS: ourToken(b)})))
		w.net.Inject(from, to, packetOf(a.Conv(), push(1, 0, "x")))
		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Minute)))
		all, err := io.ReadAll(b)
		require.NoError(t, err)
		require.Equal(t, "xylate", string(all))
	})
}

// A CONFIRM validates the address only if it shows the tokens of both ends. One with a
// wrong token of the receiver is answered by RESET, as it may be meant for a session
// before.
func TestConfirmShowsBothTokens(t *testing.T) {
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		l := w.listen(&Config{KeepAlive: -1})
		from, to := netip.MustParseAddrPort("10.0.0.9:9"), netip.MustParseAddrPort(serverAddr)
		var answers []wire.Signal
		w.net.SetFilter(func(_, _ netip.AddrPort, p []byte) bool {
			answers = append(answers, signalsOf(p)...)
			return true
		})
		const ours = 12345
		ask := func(s wire.Signal) []wire.Signal {
			answers = nil
			w.net.Inject(from, to, packetOf(77, bytesOf(s)))
			time.Sleep(50 * time.Millisecond)
			return answers
		}
		welcome := ask(wire.Signal{Code: wire.Hello, SN: 0, TS: ours})
		require.NotEmpty(t, welcome)
		theirs := welcome[0].SN
		require.Equal(t, wire.Signal{Code: wire.Welcome, SN: theirs, TS: ours}, welcome[0])
		reset := ask(wire.Signal{Code: wire.Confirm, SN: theirs + 1, TS: ours})
		require.Len(t, reset, 1)
		require.Equal(t, wire.Reset, reset[0].Code)
		require.Empty(t, ask(wire.Signal{Code: wire.Confirm, SN: theirs, TS: ours + 1}))
		require.Equal(t, 1, l.Endpoint().Stats().HalfOpen)
		require.NotEmpty(t, ask(wire.Signal{Code: wire.Confirm, SN: theirs, TS: ours}))
		require.Zero(t, l.Endpoint().Stats().HalfOpen)
		require.NoError(t, accepted(t, l).Abort(0, ""))
	})
}
