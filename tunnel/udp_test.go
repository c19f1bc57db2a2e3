package tunnel

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/tunnel/internal/carrier"
	"github.com/stretchr/testify/require"
)

// udpTarget runs a UDP testenv.Echo, and returns its address.
func udpTarget(t *testing.T) string {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	testenv.EchoPackets(t, pc)
	return pc.LocalAddr().String()
}

// Small packets and such as fit into no datagram of the session pass, both ways, and
// the flow has an end.
func TestUDP(t *testing.T) {
	t.Parallel()
	s := startServer(t, `{"me:secret": ["^.*/udp$"]}`, nil)
	config := clientConfig(t, s, "0:"+udpTarget(t)+"/udp")
	config.UDPTimeout = 200 * time.Millisecond
	c := startClient(t, config)
	at := c.address(t)
	for range 3 {
		conn := dialUDP(t, at)
		waitFor(t, func() bool { return c.Status().Sessions == 1 })
		testenv.ExchangePackets(t, conn, 1, 100, 1200, 1400, 20_000, 60_000, 1, 0)
	}
	if conn, ok := c.pool.all()[0].conn.(carrier.KCP); ok {
		require.Positive(t, conn.Stats().Datagrams.Sent)
	}
	waitFor(t, func() bool { return c.Status().Connections == 0 && s.Status().Connections == 0 })
	require.GreaterOrEqual(t, s.Status().Opened, 3)
}

func TestReverseUDP(t *testing.T) {
	t.Parallel()
	_, c := connected(t, "R:127.0.0.1:0:"+udpTarget(t)+"/udp")
	conn := dialUDP(t, c.address(t))
	testenv.ExchangePackets(t, conn, 1, 1200, 20_000)
}

// A refused flow is not opened again for each packet, and the log says why.
func TestRefusedUDP(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, nil)
	begun := time.Now()
	c := startClient(t, clientConfig(t, s, "0:no-such-name.invalid:53/udp"))
	conn := dialUDP(t, c.address(t))
	waitFor(t, func() bool { return c.Status().Sessions == 1 })
	waitFor(t, func() bool {
		_, err := conn.Write([]byte("x"))
		return err == nil && strings.Contains(c.log.String(), refusal(codeUnresolvable).Error())
	})
	require.LessOrEqual(t, strings.Count(s.log.String(), "msg=refused"), 1+int(time.Since(begun)/refusedRest))
}

// A flow whose target does not listen yet goes on.
func TestUDPTargetBeginsLater(t *testing.T) {
	t.Parallel()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	at := pc.LocalAddr().String()
	require.NoError(t, pc.Close())
	s, c := connected(t, "0:"+at+"/udp")
	conn := dialUDP(t, c.address(t))
	waitFor(t, func() bool { return c.Status().Sessions == 1 })
	for range 20 {
		_, err = conn.Write([]byte("x"))
		require.NoError(t, err)
	}
	waitFor(t, func() bool { return s.Status().Opened == 1 })
	pc, err = net.ListenPacket("udp", at)
	if err != nil {
		t.Skip("somebody has taken the port")
	}
	defer pc.Close()
	waitFor(t, func() bool { // packets may be lost
		_, _ = conn.Write([]byte("y"))
		require.NoError(t, pc.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
		_, _, err = pc.ReadFrom(make([]byte, 10))
		return err == nil
	})
}
