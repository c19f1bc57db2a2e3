package takeover

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// links returns one end of an exchange, and a socket that is its other end.
func links(t *testing.T, ctx context.Context) (*Link, net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", t.TempDir()+"/socket")
	require.NoError(t, err)
	defer l.Close()
	conn, err := net.Dial("unix", l.Addr().String())
	require.NoError(t, err)
	other, err := l.Accept()
	require.NoError(t, err)
	link, err := NewLink(ctx, conn.(*net.UnixConn), "the new process")
	require.NoError(t, err)
	t.Cleanup(func() { link.Close(); _ = conn.Close(); _ = other.Close() })
	return link, other
}

// An error of the Link says what the other process did, and wraps that of the socket.
func TestLinkErrors(t *testing.T) {
	link, other := links(t, context.Background())
	link.Limit(10 * time.Millisecond)
	_, _, err := link.Receive(AgreeKind)
	require.EqualError(t, err, "the new process does not answer within 10ms")
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.True(t, err.(interface{ Timeout() bool }).Timeout())

	link.Wait()
	require.NoError(t, link.Send(OfferKind, nil))
	require.NoError(t, other.Close())
	for _, want := range []error{syscall.ECONNRESET, io.EOF} {
		_, _, err = link.Receive(AgreeKind)
		require.EqualError(t, err, "the new process has ended, or closed the socket")
		require.ErrorIs(t, err, want)
		require.False(t, err.(interface{ Timeout() bool }).Timeout())
	}
	err = link.Send(OfferKind, nil)
	require.EqualError(t, err, "the new process has ended, or closed the socket")
	require.ErrorIs(t, err, syscall.EPIPE)
}

// What is no message of the exchange is named so, whatever size it seems to have.
func TestLinkJunk(t *testing.T) {
	for _, junk := range []string{"GET / HTTP/1.1\r\n", "x\x02\x00\x00\x00hi", "A\xff\xff\xff\xff"} {
		link, other := links(t, context.Background())
		_, err := io.WriteString(other, junk)
		require.NoError(t, err)
		_, _, err = link.Receive(AgreeKind)
		require.EqualError(t, err, fmt.Sprintf("the new process does not speak the exchange of a takeover: it begins a message with %q", junk[:5]))
	}
}

// If the deadline of the context ends the exchange, the context has ended: callers
// return its error.
func TestLinkContext(t *testing.T) {
	for range 30 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		link, _ := links(t, ctx)
		_, _, err := link.Receive(AgreeKind)
		require.Error(t, err)
		require.Error(t, ctx.Err())
		cancel()
	}
}
