package main

import (
	"bytes"
	"fmt"
	"net"
	"net/rpc"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/examples/internal/lab"
	"github.com/arqnet/kcp/internal/testenv"
)

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
				name, value := fmt.Sprint(i), testenv.Content(i, 10_000)
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
