package contract

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/xtaci/kcp-go/v5"
)

// patience is the limit of calls that need one. The test binary has a shorter one.
const patience = time.Hour

// setup is how both ends of a test are made.
type setup struct {
	block        kcp.BlockCrypt
	data, parity int
	tune         func(s *kcp.UDPSession) // of both ends; nil: fast
}

// fast makes a session quick enough for a test: kcp-go's defaults wait for up to
// 100 ms at every step.
func fast(s *kcp.UDPSession) {
	s.SetNoDelay(1, 10, 2, 1)
	s.SetWindowSize(256, 256)
}

func listen(t *testing.T, c setup) *kcp.Listener {
	t.Helper()
	l, err := kcp.ListenWithOptions("127.0.0.1:0", c.block, c.data, c.parity)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

func dial(t *testing.T, c setup, addr net.Addr) *kcp.UDPSession {
	t.Helper()
	s, err := kcp.DialWithOptions(addr.String(), c.block, c.data, c.parity)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	c.tuned(s)
	return s
}

func (c setup) tuned(s *kcp.UDPSession) {
	if c.tune == nil {
		c.tune = fast
	}
	c.tune(s)
}

// accept returns the next session, which must come soon.
func accept(t *testing.T, c setup, l *kcp.Listener) *kcp.UDPSession {
	t.Helper()
	l.SetDeadline(time.Now().Add(patience))
	defer l.SetDeadline(time.Time{})
	s, err := l.AcceptKCP()
	must(t, err)
	t.Cleanup(func() { s.Close() })
	c.tuned(s)
	return s
}

// join returns both ends of a session over which a byte has gone each way.
func join(t *testing.T, c setup) (client, server *kcp.UDPSession, l *kcp.Listener) {
	t.Helper()
	l = listen(t, c)
	client = dial(t, c, l.Addr())
	write(t, client, "c")
	server = accept(t, c, l)
	want(t, server, "c")
	write(t, server, "s")
	want(t, client, "s")
	return client, server, l
}

func write(t *testing.T, s *kcp.UDPSession, text string) {
	t.Helper()
	if n, err := s.Write([]byte(text)); n != len(text) || err != nil {
		t.Fatal("Write:", n, err)
	}
}

// want expects one Read to return text.
func want(t *testing.T, s *kcp.UDPSession, text string) {
	t.Helper()
	s.SetReadDeadline(time.Now().Add(patience))
	defer s.SetReadDeadline(time.Time{})
	b := make([]byte, 1<<16)
	n, err := s.Read(b)
	if err != nil || string(b[:n]) != text {
		t.Fatalf("Read: %q, %v, want %q", b[:n], err, text)
	}
}

// A Read that is too small gets the rest with the next ones, and nothing of the
// next message with it.
func TestReadTheRest(t *testing.T) {
	client, server, _ := join(t, setup{})
	write(t, client, "abcdef")
	write(t, client, "ghi")
	server.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, 4)
	for _, text := range []string{"abcd", "ef", "ghi"} {
		n, err := server.Read(b)
		if err != nil || string(b[:n]) != text {
			t.Fatalf("%q, %v, want %q", b[:n], err, text)
		}
	}
}

// A Write of more than a packet comes in pieces of a packet.
func TestLongWriteIsCut(t *testing.T) {
	client, server, _ := join(t, setup{})
	sent := pattern(3000)
	if n, err := client.Write(sent); n != 3000 || err != nil {
		t.Fatal(n, err)
	}
	var got []byte
	server.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, 1<<16)
	for _, size := range []int{1376, 1376, 248} {
		n, err := server.Read(b)
		if n != size || err != nil {
			t.Fatal(n, err, "want", size)
		}
		got = append(got, b[:n]...)
	}
	wrong(t, !bytes.Equal(got, sent), "other bytes")
}

// errorsOf has calls wait at once, and returns what they return.
func errorsOf(calls ...func() error) <-chan error {
	errs := make(chan error, len(calls))
	for _, call := range calls {
		go func() { errs <- call() }()
	}
	return errs
}

// read is a Read, accepting an Accept, for errorsOf.
func read(s *kcp.UDPSession) func() error {
	return func() error { _, err := s.Read(make([]byte, 10)); return err }
}

func accepting(l *kcp.Listener) func() error {
	return func() error { _, err := l.AcceptKCP(); return err }
}

func wantTimeout(t *testing.T, err error) {
	t.Helper()
	var e net.Error
	if !errors.As(err, &e) || !e.Timeout() || err.Error() != "timeout" {
		t.Errorf("%v, want a timeout", err)
	}
}

func wantClosed(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, io.ErrClosedPipe) || err.Error() != io.ErrClosedPipe.Error() {
		t.Errorf("%v, want %v", err, io.ErrClosedPipe)
	}
}

// must fails the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wrong reports an error if something is so, with what is known of it.
func wrong(t testing.TB, so bool, what ...any) {
	t.Helper()
	if so {
		t.Error(what...)
	}
}
