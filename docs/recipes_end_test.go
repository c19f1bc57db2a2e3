package docs

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
)

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
		_, err := h.client.Dial(t.Context(), h.listener.Addr(), nil)
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
		require.NoError(t, h.accepted[2].Abort(0, ""))
		require.Equal(t, "the peer has aborted, was restarted, or found the session idle: dial again", read(h.dialled[2]))
		require.NoError(t, h.dialled[3].SetReadDeadline(time.Now().Add(time.Second)))
		require.Equal(t, "a deadline has passed; the session goes on", read(h.dialled[3]))
		require.NoError(t, h.accepted[5].Close())
		time.Sleep(time.Second)
		_, err := h.dialled[5].Write([]byte("too late"))
		require.Equal(t, "the peer has closed, and takes no more", explain(err))
		_, err = h.listener.Endpoint().Dial(t.Context(), h.client.LocalAddr(), nil)
		require.Equal(t, "no server there, or not yet, or it has all the sessions it takes", explain(err))
		h.outage(time.Hour)
		_, err = h.dialled[6].Write([]byte("anybody?"))
		require.NoError(t, err)
		require.NoError(t, h.dialled[6].SetLinger(time.Second))
		require.Equal(t, "the peer may not have all that was written", explain(h.dialled[6].Close()))
		require.Equal(t, "the peer has vanished, or was idle for too long: dial again", read(h.dialled[4]))
		_, err = h.client.Dial(t.Context(), h.listener.Addr(), nil)
		require.Equal(t, "no answer: wrong address, a firewall, another key, or a full backlog", explain(err))
		require.Equal(t, "unexpected EOF", explain(io.ErrUnexpectedEOF))
	})
	client := testenv.TLS()
	client.ServerName = "elsewhere"
	_, err := reconnectTo(t, testenv.TLS(), client)
	require.Contains(t, explain(err), "one end refuses the other's certificate, name, protocol or version: ")
}
