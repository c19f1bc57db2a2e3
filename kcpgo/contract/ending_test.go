package contract

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/xtaci/kcp-go/v5"
)

// What has arrived is read after Close.
func TestReadAfterClose(t *testing.T) {
	client, server, _ := join(t, setup{})
	arrive(t, client, "one", "two", "three")
	must(t, server.Close())
	b := make([]byte, 100)
	for _, text := range []string{"one", "two", "three"} {
		if n, err := server.Read(b); string(b[:n]) != text || err != nil {
			t.Fatalf("%q, %v, want %q", b[:n], err, text)
		}
	}
	n, err := server.Read(b)
	for err == nil && string(b[:n]) == "and this may not have"[:n] {
		n, err = server.Read(b) // it has
	}
	wantClosed(t, err)
}

// A Read that waits ends with Close, and so does a Write.
func TestCloseWakes(t *testing.T) {
	client := dial(t, setup{tune: func(s *kcp.UDPSession) { s.SetWindowSize(1, 128) }}, nobody(t))
	write(t, client, "abc")
	errs := errorsOf(read(client), func() error { _, err := client.Write([]byte("def")); return err })
	time.Sleep(10 * time.Millisecond)
	client.Close()
	for range 2 {
		err := <-errs
		// kcp-go may return that of the socket, which is closed as well.
		if !errors.Is(err, net.ErrClosed) {
			wantClosed(t, err)
		}
	}
}

// After Close everything fails or does nothing, and nothing hangs or panics.
func TestAfterClose(t *testing.T) {
	client, _, l := join(t, setup{data: 3, parity: 1})
	if err := client.Close(); err != nil {
		t.Error("Close:", err)
	}
	wantClosed(t, client.Close())
	if _, err := client.Write([]byte("x")); err == nil {
		t.Error("Write works")
	}
	for _, err := range []error{client.SetDeadline(time.Now()), client.SetReadDeadline(time.Time{}), client.SetWriteDeadline(time.Time{})} {
		wrong(t, err != nil, "SetDeadline:", err)
	}
	client.SetNoDelay(0, 20, 0, 0)
	client.SetWindowSize(10, 10)
	client.SetStreamMode(true)
	client.SetWriteDelay(true)
	client.SetACKNoDelay(true)
	client.SetDUP(0)
	client.SetRateLimit(1000)
	client.SetLogger(kcp.IKCP_LOG_ALL, nil)
	wrong(t, !client.SetMtu(1000), "SetMtu")
	_ = client.SetOOBHandler(func([]byte) {})
	_, _, _, _ = client.GetConv(), client.GetRTO(), client.GetSRTT(), client.GetSRTTVar()
	wrong(t, client.RemoteAddr().String() != l.Addr().String() || client.LocalAddr() == nil, "addresses:", client.LocalAddr(), client.RemoteAddr())
}

// Close of a listener ends its sessions and frees its port at once.
func TestListenerClose(t *testing.T) {
	_, server, l := join(t, setup{})
	errs := errorsOf(read(server), accepting(l))
	time.Sleep(10 * time.Millisecond)
	must(t, l.Close())
	again, err := net.ListenPacket("udp", l.Addr().String())
	if err != nil {
		t.Error("the port is not free:", err)
	} else {
		again.Close()
	}
	for range 2 {
		if err := <-errs; err == nil {
			t.Error("no error")
		}
	}
	wantClosed(t, l.Close())
	if _, err := l.AcceptKCP(); err == nil {
		t.Error("Accept works")
	}
}

// A listener on a socket of the program leaves the socket and its sessions.
func TestServeConn(t *testing.T) {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	defer pc.Close()
	l, err := kcp.ServeConn(nil, 0, 0, pc)
	must(t, err)
	client := dial(t, setup{}, l.Addr())
	write(t, client, "abc")
	server := accept(t, setup{}, l)
	want(t, server, "abc")
	must(t, l.Close())
	write(t, client, "def")
	want(t, server, "def")
	write(t, server, "ghi")
	want(t, client, "ghi")
	if _, err := pc.WriteTo([]byte("x"), pc.LocalAddr()); err != nil {
		t.Error("the socket is closed:", err)
	}
}

// NewConn4 closes what it owns, NewConn3 nothing.
func TestSocketOwnership(t *testing.T) {
	for _, own := range []bool{true, false} {
		l := listen(t, setup{})
		pc, err := net.ListenPacket("udp", "127.0.0.1:0")
		must(t, err)
		defer pc.Close()
		client, err := kcp.NewConn4(77, l.Addr(), nil, 0, 0, own, pc)
		must(t, err)
		fast(client)
		write(t, client, "abc")
		server := accept(t, setup{}, l)
		want(t, server, "abc")
		must(t, client.Close())
		open := func() bool {
			_, err := pc.WriteTo([]byte("x"), pc.LocalAddr())
			return err == nil
		}
		if own {
			waitFor(t, func() bool { return !open() })
		} else if !open() {
			t.Error("the program's socket was closed")
		}
	}
}

// The program has its socket back after Close.
func TestSocketAfterClose(t *testing.T) {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	defer pc.Close()
	client, err := kcp.NewConn3(78, nobody(t), nil, 0, 0, pc)
	must(t, err)
	write(t, client, "abc")
	client.Close()
	// kcp-go's reader takes one packet more.
	other, err := net.Dial("udp", pc.LocalAddr().String())
	must(t, err)
	defer other.Close()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case <-stop:
				return
			default:
				other.Write([]byte("hello"))
				time.Sleep(5 * time.Millisecond)
			}
		}
	}()
	pc.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, 100)
	if n, _, err := pc.ReadFrom(b); string(b[:n]) != "hello" || err != nil {
		t.Errorf("%q, %v", b[:n], err)
	}
}
