package main

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
)

// legacyPeer is a peer that knows no signals: the state machine alone, driven
// the way the reference is.
type legacyPeer struct {
	mu  sync.Mutex
	k   *kcp.KCP
	got bytes.Buffer
}

// inLegacyBubble runs f with a session that a legacy peer has opened with
// "hello". The peer is at the dialler's address.
func inLegacyBubble(t *testing.T, f func(t *testing.T, b *bench, peer *legacyPeer)) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		l := b.listen(t)
		socket, err := b.network.Listen(dialler.String())
		require.NoError(t, err)
		p := &legacyPeer{}
		p.k = kcp.New(7, func(packet []byte) { _, _ = socket.WriteTo(packet, listener) })
		var running sync.WaitGroup
		quit := make(chan struct{})
		running.Go(func() { p.read(socket) })
		running.Go(func() { p.drive(quit) })
		p.send(t, "hello")
		b.accepted, err = l.AcceptKCP(t.Context())
		require.NoError(t, err)
		f(t, b, p)
		close(quit)
		require.NoError(t, socket.Close())
		running.Wait()
	})
}

func (p *legacyPeer) send(t *testing.T, s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.k.Send([]byte(s))
	require.NoError(t, err)
}

func (p *legacyPeer) read(socket net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		n, _, err := socket.ReadFrom(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		_ = p.k.Input(buf[:n]) // bad packets are none of its business
		p.mu.Unlock()
	}
}

func (p *legacyPeer) drive(quit <-chan struct{}) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	buf := make([]byte, 1<<16)
	start := time.Now()
	for {
		select {
		case <-quit:
			return
		case <-tick.C:
		}
		p.mu.Lock()
		p.k.Update(uint32(time.Since(start).Milliseconds()))
		for {
			n, err := p.k.Recv(buf)
			if err != nil {
				break
			}
			p.got.Write(buf[:n])
		}
		p.mu.Unlock()
	}
}

func (p *legacyPeer) received() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.got.String()
}

func TestLegacyPipeEndsWhenAllIsQuiet(t *testing.T) {
	inLegacyBubble(t, func(t *testing.T, b *bench, peer *legacyPeer) {
		a := startPipe(t.Context(), t, b.accepted, nil, nil)
		require.NoError(t, <-a.done)
		require.Equal(t, "hello", a.got.String())
		// A peer that is only listened to is acknowledged after 250 ms (WIRE.md
		// §5.7): it repeats its hello after 200 and 600 ms, and then is silent.
		require.InDelta(t, 3.6, a.took.Seconds(), 0.4)
		require.ErrorIs(t, b.accepted.Close(), net.ErrClosed, "the session is left open")
	})
}

func TestLegacyPipeWaitsThroughPauses(t *testing.T) {
	inLegacyBubble(t, func(t *testing.T, b *bench, peer *legacyPeer) {
		go func() {
			for range 10 {
				time.Sleep(2600 * time.Millisecond)
				peer.send(t, ".")
			}
		}()
		a := startPipe(t.Context(), t, b.accepted, nil, nil)
		require.NoError(t, <-a.done)
		require.Equal(t, "hello..........", a.got.String())
	})
}

// The quiet time begins when stdin has ended and all of it was acknowledged.
func TestLegacyPipeWaitsForStdin(t *testing.T) {
	inLegacyBubble(t, func(t *testing.T, b *bench, peer *legacyPeer) {
		a := startPipe(t.Context(), t, b.accepted, later(20*time.Second, "an", "answer"), nil)
		require.NoError(t, <-a.done)
		require.InDelta(t, 63, a.took.Seconds(), 0.4)
		require.Equal(t, "ananswer", peer.received())
	})
}

func TestLegacyPipeWaitsForEver(t *testing.T) {
	inLegacyBubble(t, func(t *testing.T, b *bench, peer *legacyPeer) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		a := startPipe(ctx, t, b.accepted, nil, func(p *pipe) { p.quiet = -1 })
		require.Equal(t, errInterrupted, <-a.done)
		require.Error(t, ctx.Err(), "ended by itself")
		require.Equal(t, "hello", a.got.String())
	})
}

// As long as something is unacknowledged, silence is an outage and no end.
func TestLegacyPipeSurvivesAnOutage(t *testing.T) {
	inLegacyBubble(t, func(t *testing.T, b *bench, peer *legacyPeer) {
		up := data(t, 0, 100_000)
		b.network.SetLink("", "", netsim.LinkConfig{Loss: 1})
		go func() {
			time.Sleep(8 * time.Second)
			b.network.SetLink("", "", b.link)
			for len(peer.received()) < len(up) {
				time.Sleep(10 * time.Millisecond)
			}
			peer.send(t, ", thanks")
		}()
		a := startPipe(t.Context(), t, b.accepted, bytes.NewReader(up), nil)
		require.NoError(t, <-a.done)
		requireSame(t, "up", up, []byte(peer.received()))
		require.Equal(t, "hello, thanks", a.got.String())
	})
}

// -q 0 ends with the acknowledgements, and no sooner.
func TestLegacyPipeWithoutQuietTime(t *testing.T) {
	inLegacyBubble(t, func(t *testing.T, b *bench, peer *legacyPeer) {
		up := data(t, 0, 100_000)
		a := startPipe(t.Context(), t, b.accepted, bytes.NewReader(up), func(p *pipe) { p.quiet = 0 })
		require.NoError(t, <-a.done)
		time.Sleep(100 * time.Millisecond)
		requireSame(t, "up", up, []byte(peer.received()))
		require.Less(t, a.took, 3*time.Second)
	})
}

// A sender that dies in the middle of a window leaves a hole. That is no end.
func TestLegacyPipeFindsMissingBytes(t *testing.T) {
	inLegacyBubble(t, func(t *testing.T, b *bench, peer *legacyPeer) {
		time.Sleep(time.Second) // hello is acknowledged
		b.cut(dialler)
		peer.send(t, "lost")
		time.Sleep(150 * time.Millisecond)
		b.network.SetLink(dialler.IP.String(), "", b.link)
		peer.send(t, "arrives")
		time.Sleep(110 * time.Millisecond)
		b.cut(dialler)

		a := startPipe(t.Context(), t, b.accepted, nil, func(p *pipe) { p.patience = 10 * time.Second })
		err := <-a.done
		require.ErrorContains(t, err, "data is missing after 5 bytes")
		require.InDelta(t, 10, a.took.Seconds(), 1)
		require.Equal(t, "hello", a.got.String())
	})
}

// A session that we dial is no different, and silence is waited for though the
// end was asked for before the peer was known.
func TestLegacyPipeDialled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		socket, err := b.network.Listen(listener.String())
		require.NoError(t, err)
		p := &legacyPeer{}
		var running sync.WaitGroup
		quit := make(chan struct{})
		running.Go(func() {
			buf := make([]byte, 1500)
			n, _, err := socket.ReadFrom(buf) // it takes the conv from the first packet
			if err != nil {
				return
			}
			p.k = kcp.New(uint32(buf[0])|uint32(buf[1])<<8|uint32(buf[2])<<16|uint32(buf[3])<<24,
				func(packet []byte) { _, _ = socket.WriteTo(packet, dialler) })
			_ = p.k.Input(buf[:n])
			running.Go(func() { p.drive(quit) })
			p.read(socket)
		})
		b.dialed, err = b.endpoint(t, dialler).Dial(t.Context(), listener)
		require.NoError(t, err)
		p.send(t, "welcome")
		d := startPipe(t.Context(), t, b.dialed, bytes.NewReader([]byte("all of it")), nil)
		require.NoError(t, <-d.done)
		require.Equal(t, "welcome", d.got.String())
		require.Equal(t, "all of it", p.received())
		require.InDelta(t, 3.2, d.took.Seconds(), 0.5)
		require.True(t, b.dialed.Peer().Legacy)
		close(quit)
		require.NoError(t, socket.Close())
		running.Wait()
	})
}
