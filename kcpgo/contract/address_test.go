package contract

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/xtaci/kcp-go/v5"
)

func socket(t *testing.T) net.PacketConn {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { pc.Close() })
	return pc
}

func conn3(t *testing.T, conv uint32, to net.Addr, pc net.PacketConn) *kcp.UDPSession {
	t.Helper()
	s, err := kcp.NewConn3(conv, to, nil, 0, 0, pc)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	fast(s)
	return s
}

// Dialling sends nothing, and it is no error that there is nobody.
func TestDialSaysNothing(t *testing.T) {
	pc := socket(t)
	client := dial(t, setup{}, pc.LocalAddr())
	pc.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	b := make([]byte, 2000)
	if n, _, err := pc.ReadFrom(b); err == nil {
		t.Errorf("a packet of %d bytes before the first Write", n)
	}
	write(t, client, "abc")
	pc.SetReadDeadline(time.Now().Add(patience))
	if _, _, err := pc.ReadFrom(b); err != nil {
		t.Error("no packet after it:", err)
	}
}

// A peer that comes later is served.
func TestPeerComesLater(t *testing.T) {
	pc := socket(t)
	addr := pc.LocalAddr()
	pc.Close()
	client := dial(t, setup{}, addr)
	write(t, client, "abc")
	write(t, client, "def")
	time.Sleep(50 * time.Millisecond) // its packets are refused meanwhile
	l, err := kcp.ListenWithOptions(addr.String(), nil, 0, 0)
	if err != nil {
		t.Skip("the port is taken:", err)
	}
	defer l.Close()
	server := accept(t, setup{}, l)
	want(t, server, "abc")
	want(t, server, "def")
}

// Both ends have the conversation id that was chosen.
func TestChosenConv(t *testing.T) {
	l := listen(t, setup{})
	client := conn3(t, 0, l.Addr(), socket(t))
	write(t, client, "abc")
	server := accept(t, setup{}, l)
	want(t, server, "abc")
	wrong(t, client.GetConv() != 0 || server.GetConv() != 0, client.GetConv(), server.GetConv())
}

// Two that dial each other with the same id have one session.
func TestBothDial(t *testing.T) {
	a, b := socket(t), socket(t)
	first, second := conn3(t, 1, b.LocalAddr(), a), conn3(t, 1, a.LocalAddr(), b)
	write(t, first, "abc")
	write(t, second, "def")
	want(t, second, "abc")
	want(t, first, "def")
	write(t, first, "ghi")
	want(t, second, "ghi")
}

// After both ends have closed a session, the same address may begin another
// with the same id.
func TestSameConvAgain(t *testing.T) {
	l, pc := listen(t, setup{}), socket(t)
	for _, text := range []string{"abc", "def", "ghi"} {
		client := conn3(t, 5, l.Addr(), pc)
		write(t, client, text)
		server := accept(t, setup{}, l)
		want(t, server, text)
		write(t, server, text)
		want(t, client, text)
		server.Close()
		client.Close()
		drain(t, pc)
	}
}

// drain reads from a socket until nothing has come for a while. What was sent again, as
// the machine was busy, would be of the next session with its conversation id.
func drain(t *testing.T, pc net.PacketConn) {
	t.Helper()
	for b := make([]byte, 1500); ; {
		must(t, pc.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
		if _, _, err := pc.ReadFrom(b); err != nil {
			break
		}
	}
	must(t, pc.SetReadDeadline(time.Time{}))
}

// A session with another id from the same address takes the place of the first,
// which fails.
func TestOtherConvReplaces(t *testing.T) {
	l, pc := listen(t, setup{}), socket(t)
	first := conn3(t, 5, l.Addr(), pc)
	write(t, first, "abc")
	old := accept(t, setup{}, l)
	want(t, old, "abc")
	errs := errorsOf(read(old))
	// The peer has gone without a word, and begins again: a new process.
	addr := pc.LocalAddr().String()
	pc.Close()
	again, err := net.ListenPacket("udp", addr)
	if err != nil {
		t.Skip("the port is taken:", err)
	}
	defer again.Close()
	second := conn3(t, 6, l.Addr(), again)
	write(t, second, "def")
	server := accept(t, setup{}, l)
	want(t, server, "def")
	wrong(t, server.GetConv() != 6, "id", server.GetConv())
	// The new process of ours answers an ACK that is for the old one.
	if err := <-errs; !ours || !errors.Is(err, syscall.ECONNRESET) {
		wantClosed(t, err)
	}
}

// named is an address that is no UDP address.
type named struct{ name string }

func (n named) Network() string { return "named" }
func (n named) String() string  { return n.name }

// renamed is a socket whose addresses have names.
type renamed struct {
	net.PacketConn
	peer net.Addr
}

func (r renamed) ReadFrom(b []byte) (int, net.Addr, error) {
	n, _, err := r.PacketConn.ReadFrom(b)
	return n, named{"peer"}, err
}

func (r renamed) WriteTo(b []byte, _ net.Addr) (int, error) { return r.PacketConn.WriteTo(b, r.peer) }
func (r renamed) LocalAddr() net.Addr                       { return named{"here"} }

// Addresses of any kind do, and are returned as they are.
func TestAddressesOfAnyKind(t *testing.T) {
	a, b := socket(t), socket(t)
	l, err := kcp.ServeConn(nil, 0, 0, renamed{b, a.LocalAddr()})
	must(t, err)
	defer l.Close()
	client, err := kcp.NewConn2(named{"peer"}, nil, 0, 0, renamed{a, b.LocalAddr()})
	must(t, err)
	defer client.Close()
	fast(client)
	write(t, client, "abc")
	server := accept(t, setup{}, l)
	want(t, server, "abc")
	write(t, server, "def")
	want(t, client, "def")
	if client.RemoteAddr() != (named{"peer"}) || server.RemoteAddr() != (named{"peer"}) ||
		client.LocalAddr() != (named{"here"}) || l.Addr() != (named{"here"}) {
		t.Error(client.RemoteAddr(), server.RemoteAddr(), client.LocalAddr(), l.Addr())
	}
}

// stubborn is a socket that has no deadlines and whose ReadFrom cannot be
// interrupted.
type stubborn struct {
	net.PacketConn
	block chan struct{}
}

func (s stubborn) ReadFrom([]byte) (int, net.Addr, error) {
	<-s.block
	return 0, nil, net.ErrClosed
}
func (stubborn) SetReadDeadline(time.Time) error { return nil }
func (stubborn) SetDeadline(time.Time) error     { return nil }
func (stubborn) Close() error                    { return nil }

// Close returns although the socket does not let its reader go.
func TestStubbornSocket(t *testing.T) {
	pc := stubborn{socket(t), make(chan struct{})}
	client, err := kcp.NewConn4(1, nobody(t), nil, 0, 0, true, pc)
	must(t, err)
	l, err := kcp.ServeConn(nil, 0, 0, pc)
	must(t, err)
	done := make(chan struct{})
	go func() {
		client.Close()
		l.Close()
		close(done)
	}()
	<-done
	close(pc.block)
}

// The program may clear the deadlines of its socket: those of sessions count.
func TestProgramClearsDeadlines(t *testing.T) {
	pc := socket(t)
	client := conn3(t, 3, nobody(t), pc)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case <-stop:
				return
			default:
				pc.SetDeadline(time.Time{})
				time.Sleep(100 * time.Microsecond)
			}
		}
	}()
	for range 20 {
		client.SetReadDeadline(time.Now().Add(time.Millisecond))
		wantTimeout(t, <-errorsOf(read(client)))
	}
}

// broken is a socket that has failed, without being closed.
type broken struct{ net.PacketConn }

func (broken) ReadFrom([]byte) (int, net.Addr, error) { return 0, nil, errBroken }

var errBroken = errors.New("this socket is broken")

// Errors of a socket that is closed, or of one that is broken for long, reach Read and
// Accept. In kcp-go the first error of a socket does so, here those of five seconds.
func TestSocketFails(t *testing.T) {
	for name, pc := range map[string]net.PacketConn{"closed": socket(t), "broken": broken{socket(t)}} {
		if name == "broken" && ours && testing.Short() {
			continue // takes 5 s
		}
		client := conn3(t, 9, nobody(t), pc)
		l, err := kcp.ServeConn(nil, 0, 0, pc)
		must(t, err)
		defer l.Close()
		if name == "closed" {
			pc.Close()
		}
		errs := errorsOf(read(client), accepting(l))
		for range 2 {
			if err := <-errs; err == nil || name == "broken" && !errors.Is(err, errBroken) {
				t.Error(name, err)
			}
		}
	}
}
