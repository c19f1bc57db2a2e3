package kcp

import (
	"context"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// Checks of rules that the larger tests would not miss: each brings about what one of
// them refuses.

// To an address that is not validated only the oldest segment is retransmitted.
func TestUnvalidatedGetsTheOldestOnly(t *testing.T) {
	h := newHarness(t, nil)
	h.k.limitUnvalidated(0, false)
	h.k.received(10_000)
	for _, s := range []string{"a", "b", "c"} {
		h.send(s)
	}
	h.advance(0)
	h.want(`push 0 frg=0 "a"`, `push 1 frg=0 "b"`, `push 2 frg=0 "c"`)
	h.advance(250)
	h.want(`push 0 frg=0 "a"`)
	h.k.snd.validation.credit = 0
	h.advance(1000)
	h.want()
}

// A HELLO that is sent once more, when its session is forgotten, opens none.
func TestReplayedHelloOpensNothing(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		config := &Config{Cipher: testAEAD(t)}
		l := w.listen(config)
		e, _ := w.endpoint("10.0.0.2:0", config)
		seen := w.watched()
		a := w.dial(e)
		b := accepted(t, l)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		time.Sleep(70 * time.Second)
		hello := seen.all(w)[0]
		require.Zero(t, l.Stats().DropReplay)
		w.net.Inject(hello.from, hello.to, hello.data)
		time.Sleep(time.Second)
		require.EqualValues(t, 1, l.Stats().DropReplay)
		require.Zero(t, l.Stats().Sessions)
	})
}

// Only ECONNREFUSED says that nobody listens. Other errors of a read end no session.
func TestOtherErrorsRefuseNobody(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		e, _ := w.endpoint("10.0.0.2:0", nil)
		e.socket.connected = true
		failed := make(chan error)
		go func() {
			_, err := e.Dial(context.Background(), udpAddr("10.0.0.9:9"))
			failed <- err
		}()
		time.Sleep(time.Second)
		e.refused(io.ErrUnexpectedEOF)
		time.Sleep(time.Second)
		require.Equal(t, 1, e.Stats().Sessions)
		e.refused(syscall.ECONNREFUSED)
		require.ErrorIs(t, <-failed, ErrRefused)
	})
}

// A listener with TLS drops a HELLO without CRYPTO, of which nothing could open.
func TestTLSHelloWithoutCrypto(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(&Config{TLS: testenv.TLS()})
		pc, err := w.net.Listen("10.0.0.9:9")
		require.NoError(t, err)
		defer pc.Close()
		packet := packetOf(77, segment(cmdWask, 1, 12345, 0, 0, ""), segment(cmdWins, 2, capTLS, handshake.Version, 0, ""))
		_, err = pc.WriteTo(packet, l.Addr())
		require.NoError(t, err)
		time.Sleep(time.Second)
		s := l.Stats()
		require.EqualValues(t, []uint64{1, 0}, []uint64{s.DropHandshake, s.DropCipher})
	})
}

// What a session seals has to be of its own conversation inside, too.
func TestTLSOtherConversationInside(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		config := &Config{TLS: testenv.TLS(), KeepAlive: -1}
		a, b, l := w.pair(config, config)
		time.Sleep(time.Second)
		inject := func(conv uint32) {
			a.mu.Lock()
			head, tail := a.tls.app.Overhead()
			content := packetOf(conv, segment(cmdWins, 0, 0, 0, 0, ""))
			p := append(make([]byte, head), content...)
			p = append(p, make([]byte, tail)...)
			require.NoError(t, a.tls.app.Seal(p, nil))
			a.mu.Unlock()
			w.net.Inject(a.LocalAddr().(*net.UDPAddr).AddrPort(), b.LocalAddr().(*net.UDPAddr).AddrPort(), p)
			time.Sleep(100 * time.Millisecond)
		}
		was := b.Stats().PacketsReceived
		inject(a.Conv())
		require.Equal(t, was+1, b.Stats().PacketsReceived)
		require.Zero(t, l.Stats().DropUnknown)
		inject(a.Conv() + 1)
		require.Equal(t, was+1, b.Stats().PacketsReceived)
		require.EqualValues(t, 1, l.Stats().DropUnknown)
		require.NoError(t, a.Close())
	})
}

// The nonces of packets without a number are left to the cipher, but in runs that
// repeat.
func TestNoncesAreTheCiphers(t *testing.T) {
	var none *repetition
	require.True(t, none.nonces() == nil)
	require.False(t, new(repetition).nonces() == nil)
}

// The first retransmission that is scheduled counts, unless the time-out is sooner.
func TestScheduledOnce(t *testing.T) {
	h := newHarness(t, nil)
	h.send("a")
	h.advance(0)
	h.want(`push 0 frg=0 "a"`)
	s := h.k.snd.ring.at(0)
	timeout := s.resendTS
	h.k.retransmitAt(s, timeout, LossReordering)
	require.False(t, s.early)
	h.k.retransmitAt(s, timeout-20, LossReordering)
	h.k.retransmitAt(s, timeout-10, LossFastRetransmit)
	require.Equal(t, timeout-20, s.resendTS)
	require.Equal(t, LossReordering, s.cause)
}

// Without fast retransmission all segments that time out are sent, and no probe.
func TestNoProbeWithoutFastResend(t *testing.T) {
	for fast, want := range map[uint32]int{0: 2, 2: 1} {
		h := newHarness(t, func(k *KCP) {
			k.SetFastResend(fast)
			k.SetExtensions(Extensions{OutageProbe: 200, EarlyRetransmit: true, TailProbe: true})
		})
		for range 2 {
			h.send(string(make([]byte, 1000)))
		}
		h.advance(0)
		h.out = nil
		h.later(1)
		for len(h.out) == 0 {
			h.advance(1)
		}
		require.Len(t, h.out, want, "%d", fast)
		h.out = nil
	}
}

// A segment is suspected after 5 transmissions no more.
func TestFastResendLimit(t *testing.T) {
	for sent, want := range map[uint32]bool{5: true, 6: false} {
		h := recoveryHarness(t, 2, Extensions{EarlyRetransmit: true, SendOrder: true})
		s := h.k.snd.ring.at(1)
		s.xmit = sent
		h.later(80)
		h.input(ack(3, 1080, 1))
		require.Equal(t, want, s.early, "after %d", sent)
		h.out = nil
	}
}

// After the MTU has shrunk, a message is cut anew unless it would need too many
// segments.
func TestMessagesAreCutAnew(t *testing.T) {
	h := newHarness(t, func(k *KCP) { k.SetExtensions(Extensions{SendPieces: true}) })
	was := h.k.cfg.mss
	h.k.shrinkMTU(600)
	require.Less(t, h.k.cfg.mss, was)
	require.Equal(t, h.k.cfg.mss, h.k.segmentSize(1000))
	require.Equal(t, h.k.cfg.mss, h.k.segmentSize(h.k.fragmentLimit()*h.k.cfg.mss))
	require.Equal(t, was, h.k.segmentSize(h.k.fragmentLimit()*h.k.cfg.mss+1))
}
