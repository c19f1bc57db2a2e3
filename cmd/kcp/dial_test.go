package main

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
)

// deafToFirst is a socket behind a NAT that sends the packets of the first client port
// to a host that is gone.
type deafToFirst struct {
	net.PacketConn
	first net.Addr // the reader uses it
}

func (d *deafToFirst) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n, from, err := d.PacketConn.ReadFrom(b)
		if err != nil {
			return n, from, err
		}
		if d.first == nil {
			d.first = from
		}
		if from.String() != d.first.String() {
			return n, from, nil
		}
	}
}

// A dial that waits for long does so from several ports.
func TestDialChangesItsPort(t *testing.T) {
	t.Parallel()
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer pc.Close()
	e, err := kcp.NewEndpoint(&deafToFirst{PacketConn: pc}, nil)
	require.NoError(t, err)
	defer e.Close()
	_, err = e.Listen()
	require.NoError(t, err)
	n := newNetcat(streams{in: strings.NewReader(""), out: io.Discard, err: io.Discard}, "dial")
	require.NoError(t, n.parse(dialOptions(n), []string{pc.LocalAddr().String(), "-wait", "-1"}))
	n.portPatience = 100 * time.Millisecond
	conn, err := n.open(t.Context())
	require.NoError(t, err)
	require.NoError(t, conn.Abort())
}
