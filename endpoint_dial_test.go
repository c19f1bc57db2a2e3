package kcp

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// dialWith opens a session from e to addr.
func (w *world) dialWith(e *Endpoint, addr string, o DialOptions) *Conn {
	w.t.Helper()
	c, err := e.DialWith(context.Background(), udpAddr(addr), o)
	require.NoError(w.t, err)
	return c
}

// say writes s, and hear reads it.
func (w *world) say(c *Conn, s string) {
	w.t.Helper()
	_, err := c.Write([]byte(s))
	require.NoError(w.t, err)
}

func (w *world) hear(c *Conn, s string) {
	w.t.Helper()
	receive(w.t, c, []byte(s))
}

// Who comes later is served: RESET does not end a quiet session, and neither does
// the system's report of a closed port.
func TestQuietDialIsNotRefused(t *testing.T) {
	for _, config := range []*Config{nil, secured(Config{})} {
		inWorld(t, 1, clean, func(w *world) {
			server, _ := w.endpoint(serverAddr, config)
			e, pc := w.endpoint("10.0.0.2:5000", config)
			e.mu.Lock()
			e.socket.connected = true
			e.mu.Unlock()
			pc.FailWrites(syscall.ECONNREFUSED, 2)
			c := w.dialWith(e, serverAddr, DialOptions{Quiet: true})
			w.say(c, "is there ")
			w.say(c, "anyone?")
			time.Sleep(5 * time.Second)
			require.Positive(t, server.Stats().PacketsSent, "it has sent RESET")
			require.NoError(t, c.Err())
			l, err := server.Listen()
			require.NoError(t, err)
			w.hear(accepted(t, l), "is there anyone?")
		})
	}
	inWorld(t, 1, clean, func(w *world) {
		e, _ := w.endpoint("10.0.0.2:5000", &Config{PeerTimeout: 5 * time.Second})
		c := w.dialWith(e, serverAddr, DialOptions{Quiet: true})
		w.say(c, "no one comes")
		_, err := c.Read(make([]byte, 1))
		var lost *PeerLostError
		require.ErrorAs(t, err, &lost)
	})
}

// In TIME-WAIT of a session with an extended peer the first segment opens
// nothing: that peer may be repeating it. A HELLO with another token does.
func TestSharedConvsTimeWaitOfExtendedPeer(t *testing.T) {
	inWorld(t, 2, clean, func(w *world) {
		a, b, l := w.pair(nil, &Config{SharedConvs: true})
		from, to := a.LocalAddr().(*net.UDPAddr).AddrPort(), l.Addr().(*net.UDPAddr).AddrPort()
		token := a.hs.token
		require.NoError(t, a.Close())
		<-b.Done()
		inject := func(h header, payload []byte) {
			p := make([]byte, headerSize)
			h.len = uint32(len(payload))
			h.encode(p)
			w.net.Inject(from, to, append(p, payload...))
			w.settle()
		}
		hello := func(token uint32) header {
			p := make([]byte, headerSize)
			signal{sigHello, 0, token}.encode(header{conv: a.Conv(), wnd: 100}, p)
			return decodeHeader(p)
		}
		inject(header{conv: a.Conv(), cmd: cmdPush, wnd: 100}, []byte("again"))
		require.Zero(t, l.Stats().Sessions)
		inject(hello(token), nil)
		require.Zero(t, l.Stats().Sessions)
		inject(hello(token+1), nil)
		require.Equal(t, 1, l.Stats().Sessions)
	})
}

// An answer to CLOSE that shows another token than the peer's is of an earlier
// session of the id, and acknowledges nothing.
func TestAnswerOfEarlierSession(t *testing.T) {
	inWorld(t, 2, clean, func(w *world) {
		a, b, _ := w.pair(nil, nil)
		from, to := b.LocalAddr().(*net.UDPAddr).AddrPort(), a.LocalAddr().(*net.UDPAddr).AddrPort()
		w.net.SetFilter(func(f, _ netip.AddrPort, _ []byte) bool { return f != to })
		w.say(a, "lost")
		a.mu.Lock()
		token, end := a.hs.peerToken, uint32(a.kcp.snd.end)
		a.mu.Unlock()
		for i, code := range []signalCode{sigClose, sigFin, sigFin} {
			answer := signal{code | sigAnswer, 1, token + 1}
			if i == 2 {
				answer.ts = token
			}
			p := make([]byte, headerSize)
			answer.encode(header{conv: a.Conv(), wnd: 100, una: seq(end)}, p)
			w.net.Inject(from, to, p)
			w.settle()
			require.Equal(t, i < 2, a.Stats().InFlight > 0, i)
		}
	})
}
