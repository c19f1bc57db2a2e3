package docs

import (
	"bytes"
	"crypto/tls"
	"net/rpc"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
)

// Doubler is a service of net/rpc.
type Doubler struct{}

func (Doubler) Double(of []byte, result *[]byte) error {
	*result = bytes.Repeat(of, 2)
	return nil
}

// TestLibraries has net/rpc over crypto/tls over a session: libraries for net.Conn and
// net.Listener take those of this package.
func TestLibraries(t *testing.T) {
	l, err := kcp.Listen("udp", "127.0.0.1:0", nil)
	require.NoError(t, err)
	defer l.Endpoint().Close()
	server := rpc.NewServer()
	require.NoError(t, server.Register(Doubler{}))
	config := testenv.TLS()
	go func() {
		if conn, err := tls.NewListener(l, config).Accept(); err == nil {
			server.ServeConn(conn)
		}
	}()
	conn, err := kcp.Dial("udp", l.Addr().String(), nil)
	require.NoError(t, err)
	client := rpc.NewClient(tls.Client(conn, config))
	defer client.Close()
	content := testenv.Content(1, 200_000)
	var got []byte
	require.NoError(t, client.Call("Doubler.Double", content, &got))
	require.True(t, bytes.Equal(bytes.Repeat(content, 2), got))
}
