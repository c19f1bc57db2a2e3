package kcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/opening"
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
	up, down := content(1, 3<<20), content(2, 3<<20)
	start := time.Now()
	done := make(chan error, 2)
	for _, s := range []struct {
		from, to *Conn
		data     []byte
	}{{v.a, v.b, up}, {v.b, v.a, down}} {
		send(t, s.from, s.data)
		go func() {
			_ = s.to.SetReadDeadline(time.Now().Add(time.Minute))
			got := make([]byte, len(s.data))
			n, err := io.ReadFull(s.to, got)
			if err == nil && !bytes.Equal(got, s.data) {
				err = errors.New("changed")
			}
			if err != nil {
				t.Errorf("after %d bytes: %v", n, err)
			}
			done <- err
		}()
	}
	_, _ = <-done, <-done
	require.False(t, t.Failed())
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
	k, l := c.kcp, &c.hs
	var all [][]byte
	add := func(cmd uint8, sn, ts uint32, payload string) {
		p := segment(cmd, 0, ts, sn, uint32(k.snd.nxt), payload)
		binary.LittleEndian.PutUint32(p, c.entry.Conv)
		all = append(all, p)
	}
	add(cmdPush, uint32(k.rcv.nxt), 0, "forged")
	add(cmdPush, uint32(k.rcv.nxt)+1, 0, "forged")
	add(cmdAck, uint32(k.snd.una), uint32(k.clock.now), "")
	add(cmdAck, uint32(k.snd.nxt)-1, 0, "")
	add(cmdWask, 0, 0, "")
	shut := segment(cmdWins, 0, 0, 0, uint32(k.snd.una), "")
	binary.LittleEndian.PutUint32(shut, c.entry.Conv)
	binary.LittleEndian.PutUint16(shut[6:], 0)
	all = append(all, shut)
	for _, s := range []signal{
		{sigHello, 0, l.peerToken}, {sigHello, 0, 1}, {sigHello | sigAnswer, 1, l.token},
		{sigFin, uint32(k.rcv.nxt), l.token}, {sigClose, uint32(k.rcv.nxt), l.token},
		{sigAbort, l.token, 0}, {sigReset, l.Of(opening.Ping).Signal.sn, l.Of(opening.Ping).Signal.ts},
		{sigClose | sigAnswer, uint32(k.position().end), l.peerToken},
	} {
		all = append(all, packetOf(c.entry.Conv, bytesOf(s)))
	}
	return all
}

// With an AEAD, what is not sealed with the key has no effect, even if all of it
// is right; nor has what was sealed with it but has come before.
func TestForgedWithAEAD(t *testing.T) {
	t.Parallel()
	long(t)
	key := func(b byte) crypt.Cipher {
		c, err := crypt.AESGCM(bytes.Repeat([]byte{b}, 16))
		require.NoError(t, err)
		return c
	}
	theirs, mine := key(1), key(2)
	head, tail := mine.Overhead()
	seal := func(p []byte) []byte {
		b := append(make([]byte, head, head+len(p)+tail), p...)
		b = b[:head+len(p)+tail]
		require.NoError(t, mine.Seal(b))
		return b
	}
	attacks := map[string]func(v *attacked, real [][]byte, to *Conn) []byte{
		"clear": func(v *attacked, _ [][]byte, to *Conn) []byte {
			all := v.inside(to)
			return all[v.random.IntN(len(all))]
		},
		"another key": func(v *attacked, _ [][]byte, to *Conn) []byte {
			all := v.inside(to)
			return seal(all[v.random.IntN(len(all))])
		},
		"damaged": func(v *attacked, real [][]byte, _ *Conn) []byte {
			p := bytes.Clone(real[v.random.IntN(len(real))])
			p[v.random.IntN(len(p))] ^= 1 << v.random.IntN(8)
			return p
		},
		"cut off": func(v *attacked, real [][]byte, _ *Conn) []byte {
			p := real[v.random.IntN(len(real))]
			return p[:v.random.IntN(len(p))]
		},
		"replayed": func(v *attacked, real [][]byte, _ *Conn) []byte { return real[v.random.IntN(len(real))] },
	}
	for name, forge := range attacks {
		// Without its memory the replay filter stands for packets that are so
		// old that it has forgotten them.
		for _, forgetful := range []bool{false, true} {
			if testing.Short() && !forgetful {
				continue // the other is harder
			}
			if repeated() && name != "replayed" && name != "damaged" {
				continue
			}
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
					cfg := &Config{Cipher: theirs}
					old, _, l := w.pair(cfg, cfg) // leaves packets of another session
					require.NoError(t, old.Abort())
					a := w.dial(old.ep)
					b, err := l.AcceptKCP(context.Background())
					require.NoError(t, err)
					v := &attacked{w, a, b, rand.New(rand.NewPCG(8, 8))}
					v.attack(func(to, from *Conn) (netip.AddrPort, []byte) {
						if forgetful {
							to.ep.protection.Forget()
						}
						mu.Lock()
						defer mu.Unlock()
						return v.addrOf(from), forge(v, sent[v.addrOf(to)], to)
					})
				})
			})
		}
	}
}

// Without a cipher, who does not know the conversation, or sends from another
// address, has no effect, even if all the rest is right.
func TestForgedConvOrAddress(t *testing.T) {
	t.Parallel()
	long(t)
	for _, wrongConv := range []bool{true, false} {
		inWorld(t, 8, clean, func(t *testing.T, w *world) {
			a, b, l := w.pair(nil, nil)
			v := &attacked{w, a, b, rand.New(rand.NewPCG(8, 8))}
			v.attack(func(to, from *Conn) (netip.AddrPort, []byte) {
				all := v.inside(to)
				p := all[v.random.IntN(len(all))]
				if !wrongConv {
					return netip.AddrPortFrom(v.addrOf(from).Addr(), 9), p
				}
				binary.LittleEndian.PutUint32(p, to.Conv()^1<<v.random.IntN(32))
				return v.addrOf(from), p
			})
			time.Sleep(time.Minute)
			require.Zero(t, l.Stats().Sessions)
		})
	}
}

// Who knows conversation and address, but not the tokens, neither ends nor
// stalls nor corrupts the session by signals.
func TestForgedSignals(t *testing.T) {
	long(t)
	inWorld(t, 8, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		v := &attacked{w, a, b, rand.New(rand.NewPCG(8, 8))}
		v.attack(func(to, from *Conn) (netip.AddrPort, []byte) {
			r := v.random
			code := signalCode(1 + r.IntN(9))
			if r.IntN(3) == 0 {
				code = signalCode(r.Uint32()) | 1
			}
			to.mu.Lock()
			una, wnd := uint32(to.kcp.snd.una), uint16(1000)
			final := uint32(to.kcp.rcv.nxt)
			to.mu.Unlock()
			args := []uint32{0, 1, final, final + 1, final - 1, r.Uint32()}
			s := signal{code, args[r.IntN(len(args))], args[r.IntN(len(args))]}
			p := make([]byte, headerSize)
			s.encode(header{conv: to.Conv(), wnd: wnd, una: seq(una)}, p)
			return v.addrOf(from), p
		})
	})
}

// Nor does who forges signals while the session is being opened.
func TestForgedWhileDialling(t *testing.T) {
	for seed := range fewer(20) {
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			l := w.listen(nil)
			e, _ := w.endpoint("10.0.0.2:5000", nil)
			random := rand.New(rand.NewPCG(seed, 8))
			server, client := netip.MustParseAddrPort(serverAddr), netip.MustParseAddrPort("10.0.0.2:5000")
			var conv atomic.Uint32
			w.net.SetFilter(func(_, _ netip.AddrPort, p []byte) bool {
				conv.Store(decodeHeader(p).conv)
				return true
			})
			stop := make(chan struct{})
			go func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(5 * time.Millisecond):
					}
					for _, ends := range [][2]netip.AddrPort{{server, client}, {client, server}} {
						s := signal{signalCode(1 + random.IntN(9)), random.Uint32() * uint32(random.IntN(2)), random.Uint32()}
						if s.code == sigHello && ends[1] == server {
							continue // who is first with a hello has the session
						}
						w.net.Inject(ends[0], ends[1], packetOf(conv.Load(), bytesOf(s)))
					}
				}
			}()
			a := w.dial(e)
			b, err := l.AcceptKCP(context.Background())
			require.NoError(t, err)
			want := content(seed, 100000)
			send(t, a, want)
			receive(t, b, want)
			closed := make(chan error, 1)
			go func() { closed <- a.Close() }()
			_, err = b.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			require.NoError(t, <-closed)
			close(stop)
			require.NoError(t, b.Close())
		})
	}
}

// A FIN says where the data ends, once and for all, and not before what has
// come; what says otherwise, with the right token even, does nothing.
func TestImpossibleFins(t *testing.T) {
	inWorld(t, 8, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		_, err := a.Write([]byte("four"))
		require.NoError(t, err)
		receive(t, b, []byte("four"))
		time.Sleep(time.Second)
		from, to := a.LocalAddr().(*net.UDPAddr).AddrPort(), b.LocalAddr().(*net.UDPAddr).AddrPort()
		fin := func(code signalCode, final uint32) {
			b.mu.Lock()
			token := b.hs.token
			b.mu.Unlock()
			w.net.Inject(from, to, packetOf(a.Conv(), bytesOf(signal{code, final, token})))
			synctest.Wait()
		}
		next := uint32(b.kcp.rcv.nxt)
		for _, final := range []uint32{0, next - 1, next - 1<<30} {
			fin(sigFin, final)
			fin(sigClose, final)
		}
		require.False(t, b.closing.Read != closing.ReadOpen)
		require.NoError(t, a.CloseWrite())
		_, err = b.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		fin(sigClose, next+1)
		send(t, b, []byte("still here"))
		receive(t, a, []byte("still here"))
	})
}

// A CONFIRM validates the address only if it shows the tokens of both ends. One with a
// wrong token of the receiver is answered by RESET, as it may be meant for a session
// before.
func TestConfirmShowsBothTokens(t *testing.T) {
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		l := w.listen(&Config{KeepAlive: -1})
		pc, err := w.net.Listen("10.0.0.9:9")
		require.NoError(t, err)
		defer pc.Close()
		const ours = 12345
		ask := func(code uint8, sn, ts uint32) (answers []uint8, theirs uint32) {
			_, err := pc.WriteTo(packetOf(77, segment(cmdWask, code, ts, sn, 0, "")), l.Addr())
			require.NoError(t, err)
			for b := make([]byte, 2000); ; {
				_ = pc.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
				n, _, err := pc.ReadFrom(b)
				if err != nil {
					return answers, theirs
				}
				for p := b[:n]; len(p) >= headerSize; p = p[headerSize:] {
					if answers = append(answers, p[5]); p[5] == 0x81 {
						theirs = binary.LittleEndian.Uint32(p[12:])
					}
				}
			}
		}
		_, theirs := ask(1, 0, ours)
		require.NotZero(t, theirs)
		answers, _ := ask(3, theirs+1, ours)
		require.Equal(t, []uint8{8}, answers)
		answers, _ = ask(3, theirs, ours+1)
		require.Empty(t, answers)
		require.Equal(t, 1, l.Stats().HalfOpen)
		answers, _ = ask(3, theirs, ours)
		require.Equal(t, []uint8{0x83, 2}, answers)
		require.Zero(t, l.Stats().HalfOpen)
		require.NoError(t, accepted(t, l).Abort())
	})
}
