package netsim

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// pair returns two sockets of a perfect network.
func pair(t testing.TB) (n *Network, a, b *PacketConn) {
	n = NewNetwork(1, LinkConfig{})
	return n, listen(t, n, "10.0.0.1:1"), listen(t, n, "10.0.0.2:2")
}

// requireOpError checks that an error is what package net would return.
func requireOpError(t *testing.T, err error, op string, cause error) {
	t.Helper()
	var opError *net.OpError
	require.ErrorAs(t, err, &opError)
	require.Equal(t, op, opError.Op)
	require.ErrorIs(t, err, cause)
	require.Equal(t, cause == os.ErrDeadlineExceeded, opError.Timeout())
	require.NotEmpty(t, err.Error())
}

func TestConnReadFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := pair(t)
		size, err := a.WriteTo([]byte("whole"), b.LocalAddr())
		require.NoError(t, err)
		require.Equal(t, 5, size)
		send(t, a, b, []byte("truncated"))
		send(t, a, b, nil)
		send(t, a, b, []byte("next"))

		buf := make([]byte, 5)
		for _, want := range []string{"whole", "trunc", "", "next"} {
			size, from, err := b.ReadFrom(buf)
			require.NoError(t, err)
			require.Equal(t, want, string(buf[:size]))
			require.Equal(t, "10.0.0.1:1", from.(*net.UDPAddr).String())
		}
		require.IsType(t, &net.UDPAddr{}, a.LocalAddr())
		require.Equal(t, netip.MustParseAddrPort("10.0.0.1:1"), a.AddrPort())
	})
}

func TestConnWriteErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, a, b := pair(t)
		_, err := a.WriteTo([]byte("x"), &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 2})
		requireOpError(t, err, "write", syscall.EINVAL)
		_, err = a.WriteTo([]byte("x"), (*net.UDPAddr)(nil))
		requireOpError(t, err, "write", syscall.EINVAL)
		_, err = a.WriteTo([]byte("x"), nil)
		requireOpError(t, err, "write", syscall.EINVAL)
		_, err = a.WriteToAddrPort([]byte("x"), netip.AddrPort{})
		requireOpError(t, err, "write", syscall.EINVAL)
		_, err = a.WriteToAddrPort(make([]byte, maxPayload+1), b.AddrPort())
		requireOpError(t, err, "write", syscall.EMSGSIZE)
		require.Zero(t, n.Stats())
		send(t, a, b, make([]byte, maxPayload))
	})
}

func TestConnDeadlineReachesBlockedReads(t *testing.T) {
	for name, test := range map[string]struct {
		first, then time.Duration // from the start and from a second later
		want        time.Duration // from the start
	}{
		"set":            {0, 2 * time.Second, 3 * time.Second},
		"in the past":    {0, -time.Minute, time.Second},
		"sooner":         {time.Hour, time.Second, 2 * time.Second},
		"later":          {2 * time.Second, time.Hour, time.Hour + time.Second},
		"the same again": {2 * time.Second, time.Second, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, _, b := pair(t)
				start := time.Now()
				if test.first != 0 {
					require.NoError(t, b.SetReadDeadline(start.Add(test.first)))
				}
				type result struct {
					after time.Duration
					err   error
				}
				results := make(chan result, 3)
				for range 3 {
					go func() {
						_, _, err := b.ReadFrom(nil)
						results <- result{time.Since(start), err}
					}()
				}
				time.Sleep(time.Second)
				require.NoError(t, b.SetDeadline(time.Now().Add(test.then)))
				for range 3 {
					got := <-results
					requireOpError(t, got.err, "read", os.ErrDeadlineExceeded)
					require.Equal(t, test.want, got.after)
				}
			})
		})
	}
}

func TestConnWriteDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, a, b := pair(t)
		require.NoError(t, a.SetWriteDeadline(time.Now().Add(time.Second)))
		send(t, a, b, nil)
		time.Sleep(time.Second)
		_, err := a.WriteTo(nil, b.LocalAddr())
		requireOpError(t, err, "write", os.ErrDeadlineExceeded)
		require.EqualValues(t, 1, n.Stats().Sent.Packets)
		send(t, b, a, nil)
		_, _, err = a.ReadFrom(nil)
		require.NoError(t, err, "the write deadline reached a read")
		require.NoError(t, a.SetDeadline(time.Time{}))
		send(t, a, b, nil)
	})
}

func TestConnClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := pair(t)
		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Hour)))
		done := make(chan error)
		go func() {
			_, _, err := b.ReadFrom(nil)
			done <- err
		}()
		synctest.Wait()
		start := time.Now()
		require.NoError(t, b.Close())
		requireOpError(t, <-done, "read", net.ErrClosed)
		require.Zero(t, time.Since(start))

		_, _, err := b.ReadFrom(nil)
		requireOpError(t, err, "read", net.ErrClosed)
		_, err = b.WriteTo(nil, a.LocalAddr())
		requireOpError(t, err, "write", net.ErrClosed)
		requireOpError(t, b.Close(), "close", net.ErrClosed)
		for _, set := range []func(time.Time) error{b.SetDeadline, b.SetReadDeadline, b.SetWriteDeadline} {
			requireOpError(t, set(time.Now()), "set", net.ErrClosed)
		}
	})
}

func TestConnFailReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := pair(t)
		broken := errors.New("broken")
		done := make(chan error)
		go func() {
			_, _, err := b.ReadFrom(nil)
			done <- err
		}()
		synctest.Wait()
		b.FailReads(broken, 3)
		require.Equal(t, broken, <-done)
		send(t, a, b, []byte("waiting"))
		for range 2 {
			_, _, err := b.ReadFrom(nil)
			require.Equal(t, broken, err)
		}
		size, _, err := b.ReadFrom(make([]byte, 10))
		require.NoError(t, err)
		require.Equal(t, 7, size, "a failed read took the packet")

		b.FailReads(broken, 100)
		b.FailReads(nil, 0)
		send(t, a, b, nil)
		_, _, err = b.ReadFrom(nil)
		require.NoError(t, err)
	})
}

func TestConnFailWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, a, b := pair(t)
		broken := errors.New("broken")
		a.FailWrites(broken, 2)
		for range 2 {
			_, err := a.WriteTo([]byte("x"), b.LocalAddr())
			require.Equal(t, broken, err)
		}
		require.Zero(t, n.Stats().Sent)
		send(t, a, b, []byte("x"))
		require.Equal(t, Tally{1, 1}, n.Stats().Delivered)
	})
}

func TestConnReadBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, a, b := pair(t)
		for range defaultReadBuffer/1024 + 3 {
			send(t, a, b, make([]byte, 1024))
		}
		require.Equal(t, Tally{3, 3 * 1024}, b.Dropped())
		require.Equal(t, b.Dropped(), n.Stats().Overflow)
		requireBalanced(t, n.Stats())

		_, _, err := b.ReadFrom(nil)
		require.NoError(t, err)
		send(t, a, b, make([]byte, 1024)) // in the room that made
		require.EqualValues(t, 3, b.Dropped().Packets)

		require.NoError(t, b.SetReadBuffer(1024))
		send(t, a, b, nil)
		require.EqualValues(t, 4, b.Dropped().Packets, "the bound is not in force")
		require.Len(t, receiveAll(t, b, time.Now()), defaultReadBuffer/1024, "queued packets were dropped")
		for range 1024/minCharge + 1 {
			send(t, a, b, nil)
		}
		require.EqualValues(t, 5, b.Dropped().Packets, "empty packets must count for something")
	})
}
