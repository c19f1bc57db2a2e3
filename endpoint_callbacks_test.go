package kcp

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Requests are answered with one packet for a batch, and no more of them are
// looked at, however many a packet holds. What follows is taken as ever.
func TestAnswersAreBounded(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		a, b, l := w.pair(nil, nil)
		var answered atomic.Int32
		w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
			for ; from.Port() == 4000 && len(p) >= headerSize; p = p[headerSize:] {
				if h := decodeHeader(p); h.frg == uint8(sigPing|sigAnswer) {
					answered.Add(1)
				}
			}
			return true
		})
		var questions []byte
		for i := range uint32(2000) {
			questions = append(questions, packetOf(a.Conv(), bytesOf(signal{sigPing, i, i}))...)
		}
		from, to := a.LocalAddr().(*net.UDPAddr).AddrPort(), l.Addr().(*net.UDPAddr).AddrPort()
		before := b.Stats().ProbesReceived
		w.net.Inject(from, to, questions)
		time.Sleep(time.Second)
		require.EqualValues(t, maxSignals, answered.Load())
		require.EqualValues(t, maxSignals, b.Stats().ProbesReceived-before)
		require.Equal(t, Drops{Requests: 1}, b.Stats().Dropped)
		send(t, a, content(1, 50000))
		receive(t, b, content(1, 50000))
	})
}

// An unvalidated peer has few requests answered, however many packets bring them.
func TestUnvalidatedPeersAskLittle(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		l := w.listen(nil)
		from, to := floodAddr(1), l.Addr().(*net.UDPAddr).AddrPort()
		replies := 0
		w.net.SetFilter(func(_, to netip.AddrPort, p []byte) bool {
			if to == from {
				replies += len(p) / headerSize
			}
			return true
		})
		w.net.Inject(from, to, packetOf(5, hello(9)))
		time.Sleep(time.Second)
		w.settle()
		replies = 0
		for range 10 {
			for i := range uint32(100) {
				w.net.Inject(from, to, packetOf(5, bytesOf(signal{sigPing, i, i})))
				time.Sleep(time.Millisecond)
			}
		}
		w.settle()
		require.Equal(t, 10*maxSignals, replies)
		require.Equal(t, 1, l.Stats().HalfOpen)
		w.net.Inject(from, to, packetOf(5, bytesOf(signal{sigPing, 1, 1})))
		time.Sleep(time.Second)
		w.settle()
		require.Equal(t, 10*maxSignals+1, replies)
	})
}
