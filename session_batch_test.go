package kcp

import (
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// Packets of several sessions leave together, and what is written to a session
// meanwhile leaves behind them. A session that ends meanwhile is retired.
func TestSendBatch(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*Config{
		"plain": {},
		"FEC":   {FEC: FEC{Data: 3, Parity: 1}},
		"AEAD":  {Cipher: testAEAD(t)},
		"TLS":   secured(Config{}),
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 3, clean, func(t *testing.T, w *world) {
				const some, sessions = 20, sendBatchSize + 6
				l := w.listen(config)
				e, _ := w.endpoint("10.0.0.2:0", config)
				var clients, servers []*Conn
				for range sessions {
					clients = append(clients, w.dial(e))
					servers = append(servers, accepted(t, l))
				}
				w.settle()
				var b sendBatch
				sent := func() int { return int(l.ep.Stats().PacketsSent) }
				before := sent()
				queue := func(c *Conn, text string) {
					o := Outgoing{Conn: c, Data: []byte(text)}
					require.True(t, c.tryQueue(&o))
					require.NoError(t, o.Err)
					c.flushBatched(&b)
				}
				for i, c := range servers[:some] {
					queue(c, fmt.Sprint("message ", i))
				}
				require.Equal(t, before, sent(), "they leave together")
				require.Len(t, b.writes, some)
				_, err := servers[0].Write([]byte(" and more"))
				require.NoError(t, err)
				require.NoError(t, servers[1].Abort())
				require.Equal(t, before, sent(), "what is written meanwhile leaves behind them")
				for i, c := range servers[some:] {
					queue(c, fmt.Sprint("message ", some+i))
				}
				require.GreaterOrEqual(t, sent()-before, sendBatchSize, "a full batch has left")
				require.Less(t, len(b.batch), sendBatchSize)
				b.send()
				require.Empty(t, b.batch)
				for i, c := range clients {
					want := fmt.Sprint("message ", i)
					if i == 0 {
						want += " and more"
					}
					receive(t, c, []byte(want))
				}
				<-servers[1].Done()
				require.Equal(t, sessions-1, l.ep.Stats().Sessions)
				_, err = clients[1].Read(make([]byte, 1))
				require.ErrorIs(t, err, ErrReset)
				b.send() // nothing
			})
		})
	}
}

// A session that ends while its packets are in a batch tells its peer before its socket
// is closed.
func TestEndInSendBatch(t *testing.T) {
	t.Parallel()
	l, err := Listen("udp4", "127.0.0.1:0", nil)
	require.NoError(t, err)
	defer l.Endpoint().Close()
	d, err := Dial("udp4", l.Addr().String(), nil)
	require.NoError(t, err)
	_, err = d.Write([]byte("a"))
	require.NoError(t, err)
	c, err := l.AcceptKCP(t.Context())
	require.NoError(t, err)
	require.NoError(t, d.Flush(t.Context()))
	var b sendBatch
	o := Outgoing{Conn: d, Data: []byte("b")}
	require.True(t, d.tryQueue(&o))
	d.flushBatched(&b)
	require.Len(t, b.writes, 1)
	require.NoError(t, d.Abort())
	b.send()
	<-d.Done()
	require.Zero(t, d.Endpoint().Stats().WriteErrors)
	_, err = io.ReadAll(c)
	require.ErrorIs(t, err, ErrReset)
}
