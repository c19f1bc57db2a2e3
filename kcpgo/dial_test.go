package kcp

import (
	"crypto/cipher"
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
