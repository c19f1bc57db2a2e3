package main

import (
	"bytes"
	"cmp"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv/life"
	"github.com/arqnet/kcp/internal/testenv/life/ends"
	"github.com/arqnet/kcp/netsim"
)

// legacyPeer is a peer that knows no signals.
type legacyPeer struct {
	*ends.Bare
	got bytes.Buffer
}

// inLegacyBubble runs f with a session of a legacy peer, which says "hello". It has dialled
// from the dialler's address, or if dialled is set was dialled at the listener's.
func inLegacyBubble(t *testing.T, dialled bool, f func(t *testing.T, b *bench, conn *kcp.Conn, peer *legacyPeer)) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		at, us := dialler, listener
		if dialled {
			at, us = us, at
		}
		e := b.endpoint(t, us)
		socket, err := b.network.Listen(at.String())
		require.NoError(t, err)
		stop := make(chan struct{})
		defer close(stop)
		o := ends.BareOptions{Conv: 7, To: us, Messages: true, Stop: stop}
		if dialled {
			o.To = nil
		}
		p := &legacyPeer{Bare: ends.NewBare(socket, o)}
		var conn *kcp.Conn
		if dialled {
			conn, err = e.Dial(t.Context(), at, nil)
			require.NoError(t, err)
			p.send(t, "hello")
		} else {
			p.send(t, "hello")
			l, err := e.Listen()
			require.NoError(t, err)
			conn = ends.Accepted(t, l)
		}
		f(t, b, conn, p)
	})
}

func (p *legacyPeer) send(t *testing.T, s string) {
	require.NoError(t, p.SendMessage(0, []byte(s), life.Options{}, false))
}

// received returns all that has arrived.
func (p *legacyPeer) received() string {
	for len(p.Got) > 0 {
		p.got.Write(<-p.Got)
	}
	return p.got.String()
}

// How a pipe to a legacy peer ends, which can say nothing of its end: when all is quiet.
// A peer that is only listened to is acknowledged after 250 ms (WIRE.md §5.7): it repeats
// its hello after 200 and 600 ms, and then is silent.
func TestLegacyPipe(t *testing.T) {
	up := data(t, 0, 100_000)
	for name, c := range map[string]struct {
		dialled  bool
		stdin    func() io.Reader
		patience time.Duration // 0: 30 s
		quiet    time.Duration // 0: 3 s; the least: no quiet time
		meanwhile,
		before func(t *testing.T, b *bench, peer *legacyPeer)

		want        string // what is printed
		sent        string // what the peer gets
		after, give float64
		err         string
	}{
		"quiet": {want: "hello", after: 3.6, give: 0.4},
		"pauses": {meanwhile: func(t *testing.T, _ *bench, peer *legacyPeer) {
			for range 10 {
				time.Sleep(2600 * time.Millisecond)
				peer.send(t, ".")
			}
		}, want: "hello..........", after: 29, give: 1},
		"stdin, whose end and acknowledgement the quiet time waits for": {
			stdin: func() io.Reader { return later(20*time.Second, "an", "answer") }, want: "hello", sent: "ananswer", after: 63, give: 0.4,
		},
		"dialled, with an end before the peer is known": {
			dialled: true, stdin: func() io.Reader { return strings.NewReader("all of it") }, want: "hello", sent: "all of it", after: 3.2, give: 0.5,
		},
		// As long as something is unacknowledged, silence is an outage and no end.
		"outage": {stdin: func() io.Reader { return bytes.NewReader(up) },
			before: func(_ *testing.T, b *bench, _ *legacyPeer) { b.network.SetLink("", "", netsim.LinkConfig{Loss: 1}) },
			meanwhile: func(t *testing.T, b *bench, peer *legacyPeer) {
				time.Sleep(8 * time.Second)
				b.network.SetLink("", "", b.link)
				for len(peer.received()) < len(up) {
					time.Sleep(10 * time.Millisecond)
				}
				peer.send(t, ", thanks")
			}, want: "hello, thanks", sent: string(up), after: 14, give: 6},
		// -q 0 ends with the acknowledgements, and no sooner.
		"no quiet time": {stdin: func() io.Reader { return bytes.NewReader(up) }, quiet: 1, want: "hello", sent: string(up), after: 1.5, give: 1.5},
		// A sender that dies in the middle of a window leaves a hole. That is no end.
		"hole": {patience: 10 * time.Second, before: func(t *testing.T, b *bench, peer *legacyPeer) {
			time.Sleep(time.Second) // hello is acknowledged
			b.cut(dialler)
			peer.send(t, "lost")
			time.Sleep(150 * time.Millisecond)
			b.network.SetLink(dialler.IP.String(), "", b.link)
			peer.send(t, "arrives")
			time.Sleep(110 * time.Millisecond)
			b.cut(dialler)
		}, want: "hello", after: 10, give: 1, err: "data is missing after 5 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			inLegacyBubble(t, c.dialled, func(t *testing.T, b *bench, conn *kcp.Conn, peer *legacyPeer) {
				if c.before != nil {
					c.before(t, b, peer)
				}
				if c.meanwhile != nil {
					go c.meanwhile(t, b, peer)
				}
				var stdin io.Reader
				if c.stdin != nil {
					stdin = c.stdin()
				}
				a := startPipe(t.Context(), t, conn, stdin, func(p *pipe) {
					p.patience = cmp.Or(c.patience, p.patience)
					p.quiet = cmp.Or(c.quiet, p.quiet).Truncate(time.Second)
				})
				if err := <-a.done; c.err == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, c.err)
				}
				require.Equal(t, c.want, a.got.String())
				require.InDelta(t, c.after, a.took.Seconds(), c.give)
				time.Sleep(100 * time.Millisecond)
				requireSame(t, "sent", []byte(c.sent), []byte(peer.received()))
				require.ErrorIs(t, conn.Close(), net.ErrClosed, "the session is left open")
				require.True(t, !c.dialled || conn.Peer().Legacy)
			})
		})
	}
}
