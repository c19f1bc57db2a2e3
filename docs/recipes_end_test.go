package docs

import (
	"context"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

// TestUnreadStreamShows writes messages to a stream that is not read, and to one of
// which one message was: when does WriteQueued show what is unread?
func TestUnreadStreamShows(t *testing.T) {
	for _, read := range []int{0, 1} {
		inHall(t, 1, nil, func(t *testing.T, h *hall) {
			stream, err := h.dialled[0].OpenStream(t.Context(), nil)
			require.NoError(t, err)
			most := 64 << 10 / (100 + 128)
			if read > 0 {
				most = 1<<20/(100+128) + read
			}
			for i := range most + 2 {
				require.NoError(t, stream.WriteMessage(make([]byte, 100)))
				if i == 0 && read > 0 {
					peer, err := h.accepted[0].AcceptStream(t.Context())
					require.NoError(t, err)
					_, err = peer.ReadMessage(make([]byte, 100))
					require.NoError(t, err)
				}
				if i < 10 || i > most-10 {
					time.Sleep(10 * time.Second)
					require.Equal(t, i >= most, stream.Stats().WriteQueued > 0, "%d: %d", i, stream.Stats().WriteQueued)
				}
			}
		})
	}
}

// TestScoreboard has a game of datagrams only, on paths of different length.
func TestScoreboard(t *testing.T) {
	inHall(t, 1, nil, func(t *testing.T, h *hall) {
		far, err := h.net.Listen("10.0.0.3:4000")
		require.NoError(t, err)
		defer far.Close()
		h.net.SetLink("10.0.0.3", "", netsim.LinkConfig{Delay: 70 * time.Millisecond})
		e, err := kcp.NewEndpoint(far, nil)
		require.NoError(t, err)
		defer e.Close()
		conn, err := e.Dial(t.Context(), h.listener.Addr())
		require.NoError(t, err)
		play := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second / 20) {
				for _, c := range []*kcp.Conn{h.dialled[0], conn} {
					require.NoError(t, c.SendDatagram([]byte("input")))
				}
				for c := range h.listener.Endpoint().Sessions() {
					require.NoError(t, c.SendDatagram([]byte("positions")))
				}
			}
		}
		near, distant := netip.MustParseAddrPort("10.0.0.2:4000").String(), netip.MustParseAddrPort("10.0.0.3:4000").String()
		play(3 * time.Second)
		require.Equal(t, map[string]time.Duration{near: 40 * time.Millisecond, distant: 90 * time.Millisecond}, scoreboard(h.listener.Endpoint()))
		h.net.SetLink("10.0.0.2", "", netsim.LinkConfig{Delay: 120 * time.Millisecond}) // the path gets longer
		play(30 * time.Second)
		require.InDelta(t, 140, scoreboard(h.listener.Endpoint())[near].Milliseconds(), 8)
	})
}

// TestStop ends a server with a hundred clients in one line: all get the last
// word.
func TestStop(t *testing.T) {
	const clients = 100
	inHall(t, clients, nil, func(t *testing.T, h *hall) {
		for _, c := range h.accepted {
			_, err := io.WriteString(c, "good night")
			require.NoError(t, err)
		}
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		require.NoError(t, stop(ctx, h.listener))
		require.Less(t, time.Since(start), 4*time.Second)
		for _, c := range h.dialled {
			word, err := io.ReadAll(c)
			require.NoError(t, err)
			require.Equal(t, "good night", string(word))
		}
		_, err := h.client.Dial(t.Context(), h.listener.Addr())
		require.Error(t, err)
	})
}

// TestKickAndExplain causes each of the errors that explain tells apart.
func TestKickAndExplain(t *testing.T) {
	inHall(t, 7, &kcp.Config{PeerTimeout: 3 * time.Second}, func(t *testing.T, h *hall) {
		read := func(c *kcp.Conn) string {
			_, err := c.Read(make([]byte, 1))
			require.Error(t, err)
			return explain(err)
		}
		start := time.Now()
		kick(h.accepted[0], "be polite")
		require.Equal(t, start, time.Now())
		require.Equal(t, `the peer has closed: "be polite"`, read(h.dialled[0]))
		require.NoError(t, h.accepted[1].CloseWrite())
		require.Equal(t, "the peer has ended its side", read(h.dialled[1]))
		require.NoError(t, h.accepted[2].Abort())
		require.Equal(t, "the peer has aborted, was restarted, or found the session idle: dial again", read(h.dialled[2]))
		require.NoError(t, h.dialled[3].SetReadDeadline(time.Now().Add(time.Second)))
		require.Equal(t, "a deadline has passed; the session goes on", read(h.dialled[3]))
		require.NoError(t, h.accepted[5].Close())
		time.Sleep(time.Second)
		_, err := h.dialled[5].Write([]byte("too late"))
		require.Equal(t, "the peer has closed, and takes no more", explain(err))
		_, err = h.listener.Endpoint().Dial(t.Context(), h.client.LocalAddr())
		require.Equal(t, "no server there, or not yet, or it has all the sessions it takes", explain(err))
		h.outage(time.Hour)
		_, err = h.dialled[6].Write([]byte("anybody?"))
		require.NoError(t, err)
		require.NoError(t, h.dialled[6].SetLinger(time.Second))
		require.Equal(t, "the peer may not have all that was written", explain(h.dialled[6].Close()))
		require.Equal(t, "the peer has vanished, or was idle for too long: dial again", read(h.dialled[4]))
		_, err = h.client.Dial(t.Context(), h.listener.Addr())
		require.Equal(t, "no answer: wrong address, a firewall, another key, or a full backlog", explain(err))
		require.Equal(t, "unexpected EOF", explain(io.ErrUnexpectedEOF))
	})
	client := testenv.TLS()
	client.ServerName = "elsewhere"
	_, err := reconnectTo(t, testenv.TLS(), client)
	require.Contains(t, explain(err), "one end refuses the other's certificate, name, protocol or version: ")
}
