package compat_test

import (
	"context"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	kcp "github.com/arqnet/kcp"
	"github.com/arqnet/kcp/compat"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

const delay = 10 * time.Millisecond

// pair runs f with the two ends of a session with these options, in virtual time. a was
// dialled.
func pair(t *testing.T, config *kcp.Config, o compat.Options, f func(t *testing.T, a, b *kcp.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		// With a rate packets arrive one after another: what follows one is over before the next.
		n := netsim.NewNetwork(1, netsim.LinkConfig{Delay: delay, Rate: 10_000_000})
		var ends [2]*kcp.Endpoint
		for i, addr := range []string{"10.0.0.1:1", "10.0.0.2:2"} {
			pc, err := n.Listen(addr)
			require.NoError(t, err)
			ends[i], err = kcp.NewEndpoint(pc, config)
			require.NoError(t, err)
			compat.Set(ends[i], o)
			defer func() { _, _ = ends[i].Close(), pc.Close() }()
		}
		l, err := ends[0].Listen()
		require.NoError(t, err)
		a, err := ends[1].Dial(t.Context(), ends[0].LocalAddr(), nil)
		require.NoError(t, err)
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		f(t, a, b)
	})
}

// write writes data on another goroutine, and returns where its error arrives.
func write(c *kcp.Conn, data []byte) chan error {
	done := make(chan error, 1)
	go func() {
		n, err := c.Write(data)
		if err == nil && n != len(data) {
			err = io.ErrShortWrite
		}
		done <- err
	}()
	synctest.Wait()
	return done
}

func returned(done chan error) bool { return len(done) == 1 }

// A Write waits for a free segment of the send window, and then takes all that
// it is given, whether anyone reads or not.
func TestSegmentBound(t *testing.T) {
	bound := compat.Options{SegmentBound: true}
	for _, messages := range []bool{false, true} {
		config := &kcp.Config{MessageMode: messages, SendWindow: 32, WriteBuffer: 1 << 19}
		pair(t, config, compat.Options{}, func(t *testing.T, a, b *kcp.Conn) {
			big := make([]byte, 3<<19)
			require.False(t, returned(write(a, big)), "more than WriteBuffer: the way of package kcp")
			require.NoError(t, a.Abort(0, ""))
			_ = b
		})
		pair(t, config, bound, func(t *testing.T, a, b *kcp.Conn) {
			big := make([]byte, 3<<19)
			require.True(t, returned(write(a, big)))
			require.GreaterOrEqual(t, a.Stats().WriteBuffered, 3<<19-40<<10)

			small := write(a, []byte("x"))
			require.False(t, returned(small))
			go func() { _, _ = io.Copy(io.Discard, b) }()
			require.NoError(t, <-small)
			s := a.Stats()
			require.InDelta(t, 28, s.InFlight+s.Queued, 4, "as soon as there is one free segment")
		})
		pair(t, config, bound, func(t *testing.T, a, b *kcp.Conn) {
			first := write(a, make([]byte, 31*1000))
			require.True(t, returned(first))
			require.True(t, returned(write(a, make([]byte, 10<<20))), "there is room for one segment")
			later := write(a, []byte("x"))
			require.False(t, returned(later))
			require.NoError(t, a.SetWindow(20_000, 0))
			require.True(t, returned(waited(later)), "the bound follows the window")
			require.NoError(t, a.SetWriteDeadline(time.Now().Add(-1)))
			_, err := a.Write([]byte("x"))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			require.NoError(t, a.Abort(0, ""))
			_ = b
		})
	}
}

// waited returns done after the goroutines have done what they can.
func waited(done chan error) chan error {
	synctest.Wait()
	return done
}

// received returns what Close does besides its error.
func received(c *kcp.Conn) [][]byte {
	kept, _ := compat.Close(c)
	return kept
}

// Close returns what had arrived before it and was not read, and nothing else.
func TestClose(t *testing.T) {
	for _, messages := range []bool{false, true} {
		config := &kcp.Config{MessageMode: messages, Linger: -1}
		pair(t, config, compat.Options{}, func(t *testing.T, a, b *kcp.Conn) {
			for _, s := range []string{"first", "second", "third"} {
				_, err := a.Write([]byte(s))
				require.NoError(t, err)
			}
			time.Sleep(time.Second)
			_, err := io.ReadFull(b, make([]byte, 2))
			require.NoError(t, err)
			require.Equal(t, [][]byte{[]byte("rst"), []byte("second"), []byte("third")}, received(b))
			_, _ = a.Write([]byte("too late"))
			time.Sleep(time.Minute)
			buf := make([]byte, 100)
			_, err = b.Read(buf)
			require.ErrorIs(t, err, net.ErrClosed)
			_, err = b.ReadMessage(buf)
			require.ErrorIs(t, err, net.ErrClosed)
			require.Zero(t, b.Stats().Held)
			require.Empty(t, received(b), "once")
		})
	}
	pair(t, nil, compat.Options{}, func(t *testing.T, a, b *kcp.Conn) {
		_, err := a.Write([]byte("data"))
		require.NoError(t, err)
		require.NoError(t, a.SetLinger(0))
		require.NoError(t, a.Close()) // the session ends before b closes it
		time.Sleep(time.Second)
		require.Equal(t, [][]byte{[]byte("data")}, received(b))
	})
	pair(t, nil, compat.Options{}, func(t *testing.T, a, b *kcp.Conn) {
		_, err := a.Write([]byte("data"))
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.NoError(t, b.Abort(0, ""))
		require.Empty(t, received(b))
	})
}

// Data, and the end of the session, come before a deadline that has passed.
func TestDataBeforeDeadline(t *testing.T) {
	for _, late := range []bool{false, true} {
		o := compat.Options{DataBeforeDeadline: late}
		pair(t, &kcp.Config{WriteBuffer: 4096}, o, func(t *testing.T, a, b *kcp.Conn) {
			expect := func(err error) {
				t.Helper()
				if late {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				}
			}
			_, err := a.Write([]byte("data"))
			require.NoError(t, err)
			time.Sleep(time.Second)
			require.NoError(t, b.SetReadDeadline(time.Now().Add(-1)))
			buf := make([]byte, 2)
			_, err = b.Read(buf)
			expect(err)
			_, err = b.ReadMessage(buf)
			expect(err)
			_, err = b.Read(buf[:1])
			if late {
				require.ErrorIs(t, err, os.ErrDeadlineExceeded, "nothing is left")
			}

			require.NoError(t, a.SetWriteDeadline(time.Now().Add(-1)))
			_, err = a.Write([]byte("more"))
			expect(err)
			_, err = a.Write(make([]byte, 100_000))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded, "no room for all of it")
			require.NoError(t, a.Abort(0, ""))
			time.Sleep(time.Second)
			if _, err = io.Copy(io.Discard, b); late {
				require.ErrorIs(t, err, kcp.ErrReset)
			} else {
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			}
		})
	}
}

// A Write that has begun takes all, although its deadline has passed.
func TestOptionsTogether(t *testing.T) {
	o := compat.Options{SegmentBound: true, DataBeforeDeadline: true}
	pair(t, &kcp.Config{SendWindow: 32}, o, func(t *testing.T, a, _ *kcp.Conn) {
		require.NoError(t, a.SetWriteDeadline(time.Now().Add(-1)))
		n, err := a.Write(make([]byte, 300_000))
		require.NoError(t, err)
		require.Equal(t, 300_000, n)
		_, err = a.Write([]byte("x"))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	})
}

// Options.Validated is called once for an accepted session, and not for a dialled one.
// Module kcpgo tests peers that validate their addresses later.
func TestValidated(t *testing.T) {
	var calls []*kcp.Conn
	o := compat.Options{Validated: func(c *kcp.Conn) {
		calls = append(calls, c)
	}}
	pair(t, nil, o, func(t *testing.T, a, b *kcp.Conn) {
		require.True(t, compat.Validated(b))
		require.True(t, returned(write(a, []byte("more"))))
		_, err := b.Read(make([]byte, 4))
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, []*kcp.Conn{b}, calls)
	})
}
