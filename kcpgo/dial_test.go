package kcp

import (
	"crypto/cipher"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// descriptors returns the sockets of the process on Linux, and nothing elsewhere.
func descriptors(t *testing.T) map[string]bool {
	t.Helper()
	if runtime.GOOS != "linux" {
		return nil
	}
	const dir = "/proc/self/fd/"
	entries, err := os.ReadDir(dir)
	must(t, err)
	sockets := make(map[string]bool)
	for _, e := range entries {
		if to, err := os.Readlink(dir + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			sockets[to] = true
		}
	}
	return sockets
}

// vast is an AEAD that leaves no room in a packet.
type vast struct{ cipher.AEAD }

func (vast) NonceSize() int { return 12 }
func (vast) Overhead() int  { return maxPacket }

// A call that fails leaves no socket open, and that of its caller is still good.
func TestFailuresCloseTheirSockets(t *testing.T) {
	theirs, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	defer theirs.Close()
	taken, block := theirs.LocalAddr().String(), NewAEADCrypt(vast{})
	for name, call := range map[string]func() error{
		"Dial, address":              func() error { _, err := Dial("nonsense"); return err },
		"DialWithOptions, cipher":    func() error { _, err := DialWithOptions(taken, block, 0, 0); return err },
		"Listen, address":            func() error { _, err := Listen("nonsense"); return err },
		"Listen, address in use":     func() error { _, err := Listen(taken); return err },
		"ListenWithOptions, cipher":  func() error { _, err := ListenWithOptions("127.0.0.1:0", block, 10, 3); return err },
		"ServeConn, cipher":          func() error { _, err := ServeConn(block, 0, 0, theirs); return err },
		"ServeConn, no socket":       func() error { _, err := ServeConn(nil, 0, 0, nil); return err },
		"NewConn, address":           func() error { _, err := NewConn("nonsense", nil, 0, 0, theirs); return err },
		"NewConn, cipher":            func() error { _, err := NewConn(taken, block, 0, 0, theirs); return err },
		"NewConn4, cipher, own conn": func() error { _, err := NewConn4(1, theirs.LocalAddr(), block, 0, 0, true, theirs); return err },
	} {
		before := descriptors(t)
		if call() == nil {
			t.Errorf("%s: no error", name)
		}
		for s := range descriptors(t) {
			if !before[s] {
				t.Errorf("%s: an open socket", name)
			}
		}
	}
	if _, err := theirs.WriteTo([]byte("x"), theirs.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	_ = theirs.SetReadDeadline(time.Now().Add(time.Hour))
	if _, _, err := theirs.ReadFrom(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// A listener on all addresses answers from the one that was dialled. In kcp-go the system
// chooses, and a client with a connected socket hears nothing.
func TestAnswersComeFromDialledAddress(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the host has not all of 127.0.0.0/8")
	}
	block, err := NewAESBlockCrypt(make([]byte, 32))
	must(t, err)
	l, err := ListenWithOptions("0.0.0.0:0", block, 0, 0)
	must(t, err)
	defer l.Close()
	for i, address := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"} {
		to := net.JoinHostPort(address, fmt.Sprint(l.Addr().(*net.UDPAddr).Port))
		addr, err := net.ResolveUDPAddr("udp", to)
		must(t, err)
		pc, err := net.DialUDP("udp", nil, addr)
		must(t, err)
		defer pc.Close()
		client, err := NewConn3(uint32(i), addr, block, 0, 0, pc)
		must(t, err)
		defer client.Close()
		if _, err := client.Write([]byte("asked")); err != nil {
			t.Fatal(err)
		}
		server, err := l.AcceptKCP()
		must(t, err)
		defer server.Close()
		if got := server.LocalAddr().String(); got != to {
			t.Errorf("the session is at %s, dialled at %s", got, to)
		}
		if _, err := server.Write([]byte("answered")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 8)
		if _, err := io.ReadFull(client, got); err != nil || string(got) != "answered" {
			t.Errorf("%s: %q, %v", to, got, err)
		}
	}
}
