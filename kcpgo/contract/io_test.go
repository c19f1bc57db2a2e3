package contract

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/xtaci/kcp-go/v5"
)

// readAll reads n bytes.
func readAll(t *testing.T, s *kcp.UDPSession, n int) []byte {
	t.Helper()
	s.SetReadDeadline(time.Now().Add(patience))
	defer s.SetReadDeadline(time.Time{})
	b := make([]byte, n)
	if _, err := io.ReadFull(s, b); err != nil {
		t.Fatal(err)
	}
	return b
}

// arrive writes texts, and returns when they have arrived at the other end: with
// a window of one segment a Write waits for the acknowledgement of the one
// before.
func arrive(t *testing.T, s *kcp.UDPSession, texts ...string) {
	t.Helper()
	s.SetWindowSize(1, 256)
	s.SetWriteDeadline(time.Now().Add(patience))
	for _, text := range append(texts, "and this may not have") {
		write(t, s, text)
	}
}

// Data that has arrived is read although the deadline has passed.
func TestDataBeforeDeadline(t *testing.T) {
	client, server, _ := join(t, setup{})
	server.SetReadDeadline(time.Now().Add(-time.Second))
	b := make([]byte, 10)
	_, err := server.Read(b)
	wantTimeout(t, err)
	arrive(t, client, "one", "two")
	for _, text := range []string{"one", "two"} {
		if n, err := server.Read(b); string(b[:n]) != text || err != nil {
			t.Errorf("%q, %v", b[:n], err)
		}
	}
}

// nobody returns an address at which nothing answers.
func nobody(t *testing.T) net.Addr {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { pc.Close() })
	return pc.LocalAddr()
}

// The default send window is 32 segments.
func TestDefaultWindow(t *testing.T) {
	client := dial(t, setup{tune: func(*kcp.UDPSession) {}}, nobody(t))
	for range 32 {
		if _, err := client.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	client.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	_, err := client.Write([]byte("x"))
	wantTimeout(t, err)
}

// A Write that may begin takes everything, whatever the window and its size, and
// all of it arrives.
func TestWriteTakesAll(t *testing.T) {
	client, server, _ := join(t, setup{})
	sent := pattern(8 << 20)
	client.SetWriteDeadline(time.Now().Add(patience))
	if n, err := client.Write(sent); n != len(sent) || err != nil {
		t.Fatal(n, err)
	}
	wrong(t, !bytes.Equal(readAll(t, server, len(sent)), sent), "other bytes")
}

// A Write that waits goes on when the peer has acknowledged.
func TestWriteWaitsForAcks(t *testing.T) {
	client, server, _ := join(t, setup{tune: func(s *kcp.UDPSession) { fast(s); s.SetWindowSize(2, 128) }})
	sent := pattern(100 * 1376)
	go func() {
		for b := sent; len(b) > 0; b = b[1376:] {
			client.Write(b[:1376])
		}
	}()
	wrong(t, !bytes.Equal(readAll(t, server, len(sent)), sent), "other bytes")
}

// The slices of WriteBuffers are messages of their own, one after the other.
func TestWriteBuffers(t *testing.T) {
	client, server, _ := join(t, setup{})
	n, err := client.WriteBuffers([][]byte{[]byte("abc"), nil, []byte("de")})
	if n != 5 || err != nil {
		t.Fatal(n, err)
	}
	want(t, server, "abc")
	want(t, server, "de")
}

// In stream mode all bytes arrive in order, in whatever pieces.
func TestStreamMode(t *testing.T) {
	client, server, _ := join(t, setup{tune: func(s *kcp.UDPSession) { fast(s); s.SetStreamMode(true) }})
	sent := pattern(300000)
	go func() {
		for i, b := 1, sent; len(b) > 0; i = (i*7 + 1) % 5000 {
			n, err := client.WriteBuffers([][]byte{b[:min(i/2, len(b))], b[min(i/2, len(b)):min(i, len(b))]})
			if err != nil {
				t.Error(err)
				return
			}
			b = b[n:]
		}
	}()
	wrong(t, !bytes.Equal(readAll(t, server, len(sent)), sent), "other bytes")
}

// An empty Write sends nothing, and the next message is whole.
func TestEmptyWrite(t *testing.T) {
	client, server, _ := join(t, setup{})
	if n, err := client.Write(nil); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	write(t, client, "abc")
	want(t, server, "abc")
}
