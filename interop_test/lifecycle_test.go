package interop

import (
	"context"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
	kcpgo "github.com/xtaci/kcp-go/v5"
)

// What the application sees when kcp-go is not there, goes away, comes back or cannot be
// told. The root package has the same between ends of ours in virtual time.

var (
	us   = ours{tuning: tuning{512, 1400, quick}}
	them = theirs{tuning: us.tuning}
)

// kcp-go is recognised, and cannot be told that one direction has ended: the session goes
// on as if nobody had asked.
func TestHalfCloseOfLegacyPeer(t *testing.T) {
	for _, p := range plansOf(us, them, lossy) {
		t.Run(p.name(), func(t *testing.T) {
			t.Parallel()
			n := open(t, p)
			await.True(t, func() bool { return n.ours().Peer().Known })
			require.ErrorIs(t, n.ours().CloseWrite(), kcp.ErrLegacyPeer)
			require.True(t, n.ours().Peer().Legacy)
			n.transfer(100 * kB)
			n.close()
		})
	}
}

// joined returns a session that we have dialled, and the peer's end, which has "hello".
func joined(t *testing.T, address string, l listener, config *kcp.Config) (*kcp.Conn, end) {
	t.Helper()
	c, err := kcp.Dial("udp", address, config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Abort() })
	testenv.Send(t, c, []byte("hello"))
	e, err := l.accept()
	require.NoError(t, err)
	t.Cleanup(func() { closeAtOnce(e) })
	testenv.Receive(t, e, []byte("hello"))
	return c, e
}

// kcp-go is gone in the middle of a transfer: Read and Write say so.
func TestPeerKilled(t *testing.T) {
	t.Parallel()
	l := them.listen(t)
	relay, err := netsim.NewRelay(l.address(), netsim.LinkConfig{}, netsim.LinkConfig{}, caseSeed(t))
	require.NoError(t, err)
	config := us.config(t)
	config.PeerTimeout = time.Second
	c, e := joined(t, relay.Addr().String(), l, config)
	go func() { _, _ = io.Copy(io.Discard, e) }()
	written := make(chan error, 1)
	go func() {
		for {
			if _, err := c.Write(make([]byte, 1*mB)); err != nil {
				written <- err
				return
			}
		}
	}()
	await.True(t, func() bool { return c.Stats().BytesSent > 100*kB })
	require.NoError(t, relay.Close())
	_, err = c.Read(make([]byte, 1))
	require.ErrorAs(t, err, new(*kcp.PeerLostError))
	require.ErrorAs(t, <-written, new(*kcp.PeerLostError))
}

// kcp-go is restarted on its port and knows of nothing. It shows in what it acknowledges,
// which is less than before.
func TestPeerRestarted(t *testing.T) {
	t.Parallel()
	l := them.listen(t)
	config := us.config(t)
	config.KeepAlive = time.Second
	c, e := joined(t, l.address(), l, config)
	await.True(t, func() bool { return c.Stats().WriteBuffered == 0 })
	require.NoError(t, l.Close())
	closeAtOnce(e)
	again, err := kcpgo.ListenWithOptions(l.address(), nil, 0, 0)
	require.NoError(t, err)
	defer again.Close()
	go func() {
		for err := error(nil); err == nil; time.Sleep(50 * time.Millisecond) {
			_, err = c.Write(make([]byte, 1000))
		}
	}()
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, kcp.ErrReset)
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// A client is killed and comes back from the same port: it is served at once.
func TestReconnect(t *testing.T) {
	for _, p := range plansOf(us, them, direct) {
		t.Run(p.name(), func(t *testing.T) {
			t.Parallel()
			l := p.listener.listen(t)
			remote, err := net.ResolveUDPAddr("udp4", l.address())
			require.NoError(t, err)
			local := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}
			for range 3 {
				socket, err := net.ListenUDP("udp4", local)
				require.NoError(t, err)
				local = socket.LocalAddr().(*net.UDPAddr)
				var dialled net.Conn
				if _, weDial := p.dialler.(ours); weDial {
					e, err := kcp.NewEndpoint(socket, us.config(t))
					require.NoError(t, err)
					dialled, err = e.Dial(context.Background(), remote)
					require.NoError(t, err)
				} else {
					s, err := kcpgo.NewConn(l.address(), nil, 0, 0, socket)
					require.NoError(t, err)
					require.NoError(t, them.tune(s))
					defer s.Close()
					dialled = s
				}
				content := testenv.Content(caseSeed(t), 100*kB)
				testenv.Send(t, dialled, content)
				e, err := l.accept()
				require.NoError(t, err)
				t.Cleanup(func() { closeAtOnce(e) }) // a killed client acknowledges nothing
				testenv.Receive(t, e, content)
				testenv.Send(t, e, []byte("bye"))
				testenv.Receive(t, dialled, []byte("bye"))
				require.NoError(t, socket.Close()) // as if killed: no word to the peer
			}
		})
	}
}

// A listener whose backlog is full lets nobody in until there is room.
func TestBacklogFull(t *testing.T) {
	t.Run("kcp-go listens", func(t *testing.T) {
		t.Parallel()
		l := them.listen(t)
		config := us.config(t)
		for range 128 { // kcp-go has no setting for it
			c, err := kcp.Dial("udp", l.address(), config)
			require.NoError(t, err)
			defer c.Abort()
		}
		config.DialTimeout = time.Second
		_, err := kcp.Dial("udp", l.address(), config)
		require.ErrorAs(t, err, new(*kcp.NoAnswerError))
	})
	t.Run("kcp-go dials", func(t *testing.T) {
		t.Parallel()
		config := us.config(t)
		config.Backlog = 2
		l, err := kcp.Listen("udp", "127.0.0.1:0", config)
		require.NoError(t, err)
		defer l.Endpoint().Close()
		for i := range 5 {
			_, err = them.dial(t, l.Addr().String()).Write([]byte{byte(i)})
			require.NoError(t, err)
		}
		seen := make(map[byte]bool)
		for range 5 {
			c, err := l.Accept()
			require.NoError(t, err)
			b := make([]byte, 1)
			_, err = io.ReadFull(c, b)
			require.NoError(t, err)
			seen[b[0]] = true
		}
		require.Len(t, seen, 5)
	})
}
