package interop

import (
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
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
			testenv.Await(t, func() bool { return n.ours().Peer().Known })
			require.ErrorIs(t, n.ours().CloseWrite(), kcp.ErrLegacyPeer)
			require.True(t, n.ours().Peer().Legacy)
			n.transfer(100 * kB)
			n.close()
		})
	}
}

// kcp-go is restarted on its port and knows of nothing. It shows in what it acknowledges,
// which is less than before.
func TestPeerRestarted(t *testing.T) {
	t.Parallel()
	l := them.listen(t)
	config := us.config(t)
	config.KeepAlive = time.Second
	c, err := kcp.Dial("udp", l.address(), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Abort(0, "") })
	testenv.Send(t, c, []byte("hello"))
	e, err := l.accept()
	require.NoError(t, err)
	testenv.Receive(t, e, []byte("hello"))
	testenv.Await(t, func() bool { return c.Stats().WriteBuffered == 0 })
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

// A client of kcp-go is killed and comes back from the same port: it is served at once.
func TestReconnect(t *testing.T) {
	t.Parallel()
	l := us.listen(t)
	local := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}
	for range 3 {
		socket, err := net.ListenUDP("udp4", local)
		require.NoError(t, err)
		local = socket.LocalAddr().(*net.UDPAddr)
		s, err := kcpgo.NewConn(l.address(), nil, 0, 0, socket)
		require.NoError(t, err)
		require.NoError(t, them.tune(s))
		defer s.Close()
		content := testenv.Content(caseSeed(t), 100*kB)
		testenv.Send(t, s, content)
		e, err := l.accept()
		require.NoError(t, err)
		t.Cleanup(func() { closeAtOnce(e) }) // a killed client acknowledges nothing
		testenv.Receive(t, e, content)
		testenv.Send(t, e, []byte("bye"))
		testenv.Receive(t, s, []byte("bye"))
		require.NoError(t, socket.Close()) // as if killed: no word to the peer
	}
}
