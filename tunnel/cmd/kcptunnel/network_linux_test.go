package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/arqnet/kcp/internal/testenv/netns"
	"github.com/stretchr/testify/require"
	"github.com/things-go/go-socks5/statute"
)

// runAt is run at a host.
func runAt(t *testing.T, h *netns.Host, args ...string) (p *process) {
	t.Helper()
	require.NoError(t, h.Do(func() error {
		p = run(t, "", nil, args...)
		return nil
	}))
	return p
}

// dialAt connects at a host.
func dialAt(h *netns.Host, network, address string) (conn net.Conn, err error) {
	err = h.Do(func() error {
		conn, err = net.Dial(network, address)
		return err
	})
	return conn, err
}

// echoesAt has a host send back what comes by TCP and UDP to the address.
func echoesAt(t *testing.T, h *netns.Host, address string) {
	t.Helper()
	require.NoError(t, h.Do(func() error {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		serveEcho(t, l)
		pc, err := net.ListenPacket("udp", address)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = pc.Close() })
		go func() {
			buf := make([]byte, 2000)
			for {
				n, from, err := pc.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = pc.WriteTo(buf[:n], from)
			}
		}()
		return nil
	}))
}

// laptop returns a host with two ways to a server, and what the server is reached by over
// both: in the network lan it is host 2, the server 1, as in the network air, and the
// address is one of the server alone.
func laptop(t *testing.T, v6 bool) (client, server *netns.Host, address string) {
	t.Helper()
	client, server = netns.New(t), netns.New(t)
	client.Must(t, "ip link set lo up")
	server.Must(t, "ip link set lo up")
	lan, air, own, bits := "10.77.1.", "10.77.2.", "10.77.9.9", "24"
	if v6 {
		lan, air, own, bits = "fd77:1::", "fd77:2::", "fd77:9::9", "64"
	}
	for dev, prefix := range map[string]string{"lan": lan, "air": air} {
		client.Must(t, fmt.Sprintf("ip link add %s type veth peer name %s netns %s", dev, dev, server.Path))
		t.Cleanup(func() { _ = client.Do(func() error { return exec.Command("ip", "link", "del", dev).Run() }) })
		for _, h := range []*netns.Host{client, server} {
			require.NoError(t, h.Do(func() error {
				return os.WriteFile("/proc/sys/net/ipv6/conf/"+dev+"/accept_dad", []byte("0"), 0)
			}), "%s", dev)
		}
		client.Must(t, fmt.Sprintf("ip addr add %s2/%s dev %s\nip link set %s up", prefix, bits, dev, dev))
		server.Must(t, fmt.Sprintf("ip addr add %s1/%s dev %s\nip link set %s up", prefix, bits, dev, dev))
	}
	server.Must(t, "ip addr add "+own+" dev lo")
	client.Must(t, fmt.Sprintf("ip route add %s via %s1 metric 10\nip route add %s via %s1 metric 20", own, lan, own, air))
	return client, server, own
}

// The address of the client goes away, with what it has open: connections and packets of
// each kind of remote go on over another network, in the same session.
func TestOwnAddressChanges(t *testing.T) {
	for name, c := range map[string]struct {
		v6          bool
		gone, again string // what happens at the client
	}{
		"address":   {false, "ip addr del 10.77.1.2/24 dev lan", "ip addr add 10.77.1.2/24 dev lan\nip route add 10.77.9.9 via 10.77.1.1 metric 10"},
		"interface": {false, "ip link set lan down", "ip link set lan up\nip route add 10.77.9.9 via 10.77.1.1 metric 10"},
		"IPv6":      {true, "ip addr del fd77:1::2/64 dev lan\nip route del fd77:9::9 via fd77:1::1", "ip addr add fd77:1::2/64 dev lan\nip route add fd77:9::9 via fd77:1::1 metric 10"},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Getenv("KCP_LONG") == "" && name != "address" {
				t.Skip("takes seconds")
			}
			client, server, address := laptop(t, c.v6)
			ownAddressChanges(t, client, server, address, c.gone, c.again)
		})
	}
}

func ownAddressChanges(t *testing.T, client, server *netns.Host, address, gone, again string) {
	echoesAt(t, client, "127.0.0.1:7")
	echoesAt(t, server, "127.0.0.1:7")
	s := runAt(t, server, "server", "-auth", file(t, "users.json", `{"me:secret": [""]}`), "-key", filepath.Join(t.TempDir(), "server.pem"), net.JoinHostPort(address, "4000"))
	fingerprint := find(t, s.out, `fingerprint (SHA256:\S+)\n`)
	find(t, s.err, "msg=listening")
	c := runAt(t, client, "client", "-v", "-fingerprint", fingerprint, "-auth", "me:secret", net.JoinHostPort(address, "4000"),
		"1001:127.0.0.1:7", "1002:127.0.0.1:7/udp", "1080:socks", "R:1003:127.0.0.1:7", "R:1004:127.0.0.1:7/udp", "R:1081:socks")
	for _, port := range []string{"1003", "1004", "1081"} {
		find(t, c.err, `the server listens".* port=`+port)
	}
	var running sync.WaitGroup
	failed, stop, rounds := make(chan error, 16), make(chan struct{}), [8]atomic.Int64{}
	n := 0
	for _, one := range []struct {
		host    *netns.Host
		network string
		port    string
		socks   bool
	}{
		{client, "tcp", "1001", false}, {client, "udp", "1002", false}, {client, "tcp", "1080", true}, {client, "udp", "1080", true},
		{server, "tcp", "1003", false}, {server, "udp", "1004", false}, {server, "tcp", "1081", true}, {server, "udp", "1081", true},
	} {
		conn := openAt(t, one.host, one.network, "127.0.0.1:"+one.port, "127.0.0.1:7", one.socks)
		defer conn.Close()
		count := &rounds[n]
		n++
		running.Go(func() { failed <- talks(conn, one.network == "udp", stop, count) })
	}
	advance := func(what string) {
		var before [8]int64
		for i := range rounds {
			before[i] = rounds[i].Load()
		}
		await.True(t, func() bool {
			for i := range rounds {
				if rounds[i].Load() < before[i]+5 {
					return len(failed) > 0
				}
			}
			return true
		})
		require.Empty(t, failed, what)
	}
	advance("before")
	client.Must(t, gone)
	advance("on the other network")
	client.Must(t, again)
	advance("back")
	client.Must(t, strings.NewReplacer("lan", "air", "77.1.", "77.2.", "77:1:", "77:2:").Replace(gone))
	advance("on the first network again")
	close(stop)
	running.Wait()
	require.Equal(t, 1, strings.Count(c.err.String(), "session begun"), c.err)
	require.NotContains(t, c.err.String(), "no session")
}

// openAt opens a connection, or a flow, at an address: with socks, to the target.
func openAt(t *testing.T, h *netns.Host, network, at, target string, socks bool) net.Conn {
	t.Helper()
	if !socks {
		conn, err := dialAt(h, network, at)
		require.NoError(t, err)
		return conn
	}
	control, err := dialAt(h, "tcp", at)
	require.NoError(t, err)
	t.Cleanup(func() { _ = control.Close() })
	to, err := statute.ParseAddrSpec(target)
	require.NoError(t, err)
	command := map[string]byte{"tcp": statute.CommandConnect, "udp": statute.CommandAssociate}[network]
	_, err = control.Write(append([]byte{5, 1, 0}, statute.Request{Version: 5, Command: command, DstAddr: to}.Bytes()...))
	require.NoError(t, err)
	_, err = io.ReadFull(control, make([]byte, 2))
	require.NoError(t, err)
	reply, err := statute.ParseReply(control)
	require.NoError(t, err)
	require.EqualValues(t, statute.RepSuccess, reply.Response)
	if network == "tcp" {
		return control
	}
	conn, err := dialAt(h, "udp", reply.BndAddr.String())
	require.NoError(t, err)
	return &associated{conn, to}
}

// associated packs what is written for UDP ASSOCIATE.
type associated struct {
	net.Conn
	to statute.AddrSpec
}

func (a *associated) Write(b []byte) (int, error) {
	d, err := statute.NewDatagram(a.to.String(), b)
	if err != nil {
		return 0, err
	}
	_, err = a.Conn.Write(d.Bytes())
	return len(b), err
}

func (a *associated) Read(b []byte) (int, error) {
	n, err := a.Conn.Read(b)
	if err != nil {
		return 0, err
	}
	d, err := statute.ParseDatagram(b[:n])
	return copy(b, d.Data), err
}

// talks sends to an echo and compares what returns. Packets may be lost.
func talks(conn net.Conn, packets bool, stop <-chan struct{}, rounds *atomic.Int64) error {
	for n := uint32(0); ; n++ {
		select {
		case <-stop:
			return nil
		case <-time.After(2 * time.Millisecond):
		}
		want := content(100 + n%1000)
		if packets {
			_ = conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		}
		if _, err := conn.Write(want); err != nil {
			return fmt.Errorf("%v: %w", conn.LocalAddr(), err)
		}
		got, k, err := make([]byte, 2000), 0, error(nil)
		if packets { // until it is the answer: earlier ones may be late
			for err == nil && string(got[:k]) != string(want) {
				k, err = conn.Read(got)
			}
			if err != nil {
				continue // lost
			}
		} else if k, err = io.ReadFull(conn, got[:len(want)]); err != nil {
			return fmt.Errorf("%v: %w", conn.LocalAddr(), err)
		}
		if string(got[:k]) != string(want) {
			return errors.New("other bytes")
		}
		rounds.Add(1)
	}
}
