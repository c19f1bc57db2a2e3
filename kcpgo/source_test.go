package kcp

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"testing"
)

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
