package neterr

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestUnanswered(t *testing.T) {
	require.Equal(t, "kcp: no answer from the peer in 1s (host down, backlog full, or keys differ)", Unanswered(time.Second, nil, nil))
	at := func(port int) net.Addr { return &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: port} }
	require.Equal(t, "kcp: no answer from the peer in 10s (peer did not dial, NATs or firewalls block it, or keys differ), "+
		"tried at 192.0.2.1:1, 192.0.2.1:2: EOF", Unanswered(10*time.Second, []net.Addr{at(1), at(2)}, io.EOF))
}
