package contract

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/xtaci/kcp-go/v5"
)

// Accept fails with a timeout after the deadline, and works again without.
func TestAcceptDeadline(t *testing.T) {
	l := listen(t, setup{})
	must(t, l.SetDeadline(time.Now().Add(20*time.Millisecond)))
	_, err := l.AcceptKCP()
	wantTimeout(t, err)
	must(t, l.SetReadDeadline(time.Now().Add(-time.Second)))
	_, err = l.Accept()
	wantTimeout(t, err)
	wrong(t, l.SetWriteDeadline(time.Now()) == nil, "SetWriteDeadline works")
	client := dial(t, setup{}, l.Addr())
	write(t, client, "abc")
	want(t, accept(t, setup{}, l), "abc")
}

// Settings of sockets are for those that have opened or given them.
func TestSocketSettings(t *testing.T) {
	client, server, l := join(t, setup{})
	for name, err := range map[string]error{
		"client DSCP":          client.SetDSCP(46),
		"client read buffer":   client.SetReadBuffer(1 << 16),
		"client write buffer":  client.SetWriteBuffer(1 << 16),
		"listener DSCP":        l.SetDSCP(46),
		"listener read buffer": l.SetReadBuffer(1 << 16),
		"listener write buf":   l.SetWriteBuffer(1 << 16),
	} {
		wrong(t, err != nil, name, err)
	}
	for name, err := range map[string]error{
		"DSCP":         server.SetDSCP(46),
		"read buffer":  server.SetReadBuffer(1 << 16),
		"write buffer": server.SetWriteBuffer(1 << 16),
	} {
		wrong(t, err == nil || err.Error() != "invalid operation", "accepted session,", name, err)
	}
}

// dscp is a socket that sets its DSCP field by itself.
type dscp struct {
	net.PacketConn
	value int
}

func (d *dscp) SetDSCP(v int) error {
	d.value = v
	return errors.New("remembered")
}

// bare hides all but the methods of net.PacketConn.
type bare struct{ net.PacketConn }

// A socket may have the method SetDSCP, or none of the settings.
func TestOwnDSCP(t *testing.T) {
	d := &dscp{PacketConn: socket(t)}
	client := conn3(t, 1, nobody(t), d)
	if err := client.SetDSCP(12); err == nil || err.Error() != "remembered" || d.value != 12 {
		t.Error(err, d.value)
	}
	client = conn3(t, 1, nobody(t), bare{socket(t)})
	for _, err := range []error{client.SetDSCP(1), client.SetReadBuffer(1000), client.SetWriteBuffer(1000)} {
		wrong(t, err == nil || err.Error() != "invalid operation", err)
	}
}

// Control gives the socket to those that own it.
func TestControl(t *testing.T) {
	client, server, l := join(t, setup{})
	mark := errors.New("mark")
	var got net.PacketConn
	f := func(pc net.PacketConn) error {
		got = pc
		return mark
	}
	if err := client.Control(f); err != mark || got.LocalAddr().String() != client.LocalAddr().String() {
		t.Error(err)
	}
	if err := l.Control(f); err != mark || got.LocalAddr().String() != l.Addr().String() {
		t.Error(err)
	}
	pc := socket(t)
	for name, s := range map[string]*kcp.UDPSession{"accepted": server, "not owned": conn3(t, 1, nobody(t), pc)} {
		if err := s.Control(f); err == nil || err.Error() != "not the owner of this connection" {
			t.Error(name, err)
		}
	}
}

// SetMtu says whether the size leaves room for a segment.
func TestSetMtu(t *testing.T) {
	gcm, err := kcp.NewAESGCMCrypt(pattern(16))
	must(t, err)
	aes, err := kcp.NewAESBlockCrypt(pattern(16))
	must(t, err)
	for name, c := range map[string]struct {
		setup
		room int
	}{
		"plain": {setup{}, 0},
		"FEC":   {setup{data: 10, parity: 3}, 8},
		"AES":   {setup{block: aes}, 20},
		"GCM":   {setup{block: gcm, data: 1, parity: 1}, 12 + 16 + 8},
	} {
		s := dial(t, c.setup, nobody(t))
		for mtu, ok := range map[int]bool{
			c.room + 24: false, c.room: false, 0: false, -1: false,
			c.room + 25: true, 500: true, 1500: true, 1501: true, 9000: true,
		} {
			if s.SetMtu(mtu) != ok {
				t.Errorf("%s: SetMtu(%d) is %v", name, mtu, !ok)
			}
		}
	}
}

// measured is a socket that knows the size of the largest packet it has sent.
type measured struct {
	net.PacketConn
	most atomic.Int64
}

func (m *measured) WriteTo(b []byte, to net.Addr) (int, error) {
	n := int64(len(b))
	for most := m.most.Load(); n > most && !m.most.CompareAndSwap(most, n); most = m.most.Load() {
	}
	return m.PacketConn.WriteTo(b, to)
}

// No packet is larger than SetMtu says, with all that is around the content.
func TestMtuIsKept(t *testing.T) {
	aes, err := kcp.NewAESBlockCrypt(pattern(16))
	must(t, err)
	for _, mtu := range []int{400, 1400, 1500} {
		l := listen(t, setup{block: aes, data: 3, parity: 2})
		pc := &measured{PacketConn: socket(t)}
		client, err := kcp.NewConn2(l.Addr(), aes, 3, 2, pc)
		must(t, err)
		defer client.Close()
		fast(client)
		if mtu != 1400 && !client.SetMtu(mtu) { // it is the default
			t.Fatal("SetMtu")
		}
		if _, err := client.Write(pattern(100000)); err != nil {
			t.Fatal(err)
		}
		readAll(t, accept(t, setup{}, l), 100000)
		if most := pc.most.Load(); most != int64(mtu) {
			t.Errorf("the largest packet has %d bytes, not %d", most, mtu)
		}
	}
}

// Out-of-band packets up to the largest arrive at the handlers, which may answer, beside
// the stream. A larger one is an error.
func TestOOB(t *testing.T) {
	aes, err := kcp.NewAESBlockCrypt(pattern(16))
	must(t, err)
	for _, c := range []struct {
		setup
		size int
	}{{setup{data: 10, parity: 3}, 1388}, {setup{block: aes, data: 10, parity: 3}, 1368}} {
		client, server, _ := join(t, c.setup)
		wrong(t, client.GetOOBMaxSize() != c.size, "size", client.GetOOBMaxSize(), "want", c.size)
		got := make(chan string, 10)
		must(t, server.SetOOBHandler(func(b []byte) {
			got <- "server " + string(b)
			must(t, server.SendOOB(b))
		}))
		must(t, client.SetOOBHandler(func(b []byte) { got <- "client " + string(b) }))
		for _, n := range []int{0, 1, c.size} {
			text := string(pattern(n))
			must(t, client.SendOOB([]byte(text)))
			for _, want := range []string{"server " + text, "client " + text} {
				if s := <-got; s != want {
					t.Errorf("%q, want %q", s, want)
				}
			}
		}
		if err := client.SendOOB(pattern(c.size + 1)); err == nil || err.Error() != "OOB payload too large" {
			t.Error(err)
		}
		must(t, client.SetOOBHandler(nil))
		must(t, server.SendOOB([]byte("unheard")))
		write(t, server, "def")
		want(t, client, "def")
		wrong(t, len(got) != 0, "heard after the handler was removed")
	}
}

// Without error correction there is nothing out of band, and it is off with ratios that
// make no sense.
func TestOOBNeedsFEC(t *testing.T) {
	for _, ratio := range [][2]int{{0, 0}, {0, 3}, {3, 0}, {-1, -1}, {1 << 30, 1 << 30}} {
		client, server, _ := join(t, setup{data: ratio[0], parity: ratio[1]})
		write(t, client, "abc")
		want(t, server, "abc")
		for _, err := range []error{client.SendOOB([]byte("x")), client.SetOOBHandler(func([]byte) {}), client.SetOOBHandler(nil)} {
			wrong(t, err == nil || err.Error() != "OOB requires FEC to be enabled", ratio, err)
		}
		wrong(t, client.GetOOBMaxSize() != 0, ratio, client.GetOOBMaxSize())
	}
}

// The round-trip figures are in milliseconds, and begin as in the reference.
func TestRoundTripFigures(t *testing.T) {
	s := dial(t, setup{}, nobody(t))
	wrong(t, s.GetRTO() != 200 || s.GetSRTT() != 0 || s.GetSRTTVar() != 0, s.GetRTO(), s.GetSRTT(), s.GetSRTTVar())
	client, server, _ := join(t, setup{})
	for range 5 {
		write(t, client, "abc")
		want(t, server, "abc")
		write(t, server, "abc")
		want(t, client, "abc")
	}
	if rto := client.GetRTO(); rto < 30 || rto > 60000 {
		t.Error("RTO", rto)
	}
	if srtt := client.GetSRTT(); srtt < 0 || srtt > 10000 {
		t.Error("SRTT", srtt)
	}
}

// DefaultSnmp counts sessions and bytes of the process.
func TestSnmpCounts(t *testing.T) {
	before := kcp.DefaultSnmp.Copy()
	client, server, l := join(t, setup{})
	write(t, client, "abc")
	want(t, server, "abc")
	now := kcp.DefaultSnmp.Copy()
	for name, c := range map[string][2]uint64{
		"ActiveOpens":   {now.ActiveOpens - before.ActiveOpens, 1},
		"PassiveOpens":  {now.PassiveOpens - before.PassiveOpens, 1},
		"CurrEstab":     {now.CurrEstab - before.CurrEstab, 2},
		"BytesSent":     {now.BytesSent - before.BytesSent, 5},
		"BytesReceived": {now.BytesReceived - before.BytesReceived, 5},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: %d, want %d", name, c[0], c[1])
		}
	}
	wrong(t, now.MaxConn < now.CurrEstab, "MaxConn", now.MaxConn)
	// The fields are read as such, and follow soon.
	waitFor(t, func() bool {
		s := kcp.DefaultSnmp
		return atomic.LoadUint64(&s.OutPkts) >= before.OutPkts+3 && atomic.LoadUint64(&s.InPkts) >= before.InPkts+3 &&
			atomic.LoadUint64(&s.OutBytes) >= before.OutBytes+3*24 && atomic.LoadUint64(&s.InSegs) >= before.InSegs+3
	})
	client.Close()
	server.Close()
	l.Close()
	if n := kcp.DefaultSnmp.Copy().CurrEstab; n != before.CurrEstab {
		t.Error("CurrEstab", n, "before", before.CurrEstab)
	}
}

// A handler of out-of-band packets may close the session.
func TestCloseInOOBHandler(t *testing.T) {
	for _, own := range []bool{true, false} {
		c := setup{data: 10, parity: 3}
		l, pc := listen(t, c), socket(t)
		client, err := kcp.NewConn4(3, l.Addr(), nil, c.data, c.parity, own, pc)
		must(t, err)
		fast(client)
		write(t, client, "abc")
		server := accept(t, c, l)
		want(t, server, "abc")
		done := make(chan error, 1)
		must(t, client.SetOOBHandler(func([]byte) { done <- client.Close() }))
		must(t, server.SendOOB([]byte("close")))
		must(t, <-done)
	}
}
