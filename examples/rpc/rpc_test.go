package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/examples/internal/lab"
)

// watched reports how reading from its sessions ended, when they are closed.
type watched struct {
	net.Listener
	ended chan error
}

func (w watched) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &watchedConn{Conn: conn, ended: w.ended}, nil
}

type watchedConn struct {
	net.Conn
	err   error
	ended chan<- error
}

func (w *watchedConn) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.err = err
	return n, err
}

func (w *watchedConn) Close() error {
	err := w.Conn.Close()
	w.ended <- w.err
	return err
}

// The server learns that a client has gone.
func TestServerSeesTheEnd(t *testing.T) {
	lab.Run(t, nil, func(t *testing.T, l net.Listener, dial lab.Dial) {
		w := watched{l, make(chan error, 3)}
		go serve(w)
		for range 3 {
			conn, err := dial(t.Context())
			require.NoError(t, err)
			client := rpc.NewClient(conn)
			var count int
			require.NoError(t, client.Call("Store.Put", Item{"name", []byte("value")}, &count))
			require.NoError(t, client.Close())
			require.Equal(t, io.EOF, <-w.ended)
		}
	})
}

func TestCalls(t *testing.T) {
	lab.Run(t, nil, func(t *testing.T, l net.Listener, dial lab.Dial) {
		go serve(l)
		conn, err := dial(t.Context())
		require.NoError(t, err)
		client := rpc.NewClient(conn)
		defer client.Close()
		const values = 20
		var calls sync.WaitGroup
		for i := range uint64(values) {
			calls.Go(func() {
				name, value := fmt.Sprint(i), lab.Content(i, 10_000)
				var count int
				assert.NoError(t, client.Call("Store.Put", Item{name, value}, &count))
				assert.LessOrEqual(t, count, values)
				var got []byte
				assert.NoError(t, client.Call("Store.Get", name, &got))
				assert.True(t, bytes.Equal(value, got))
			})
		}
		calls.Wait()
		var got []byte
		require.EqualError(t, client.Call("Store.Get", "nothing", &got), `there is no "nothing"`)
	})
}
