// Package interop has sessions of package kcpgo and of kcp-go talk to each other over
// loopback. What the engine does beside kcp-go is tested by interop_test.
package interop

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"

	ours "github.com/arqnet/kcp/kcpgo"
	theirs "github.com/xtaci/kcp-go/v5"
)

// session is what both implementations have.
type session interface {
	net.Conn
	SetNoDelay(nodelay, interval, resend, nc int)
	SetWindowSize(send, receive int)
	SetStreamMode(enable bool)
	SetMtu(mtu int) bool
	GetConv() uint32
	SendOOB(data []byte) error
	GetOOBMaxSize() int
}

// end is how one implementation dials, and listens: then it returns its address, and how
// to accept.
type end struct {
	name   string
	dial   func(e envelope, addr string) (session, error)
	listen func(t *testing.T, e envelope) (addr string, accept func() (session, error))
}

// envelope is how packets travel. contract compares the ciphers themselves.
type envelope struct {
	name         string
	ours         ours.BlockCrypt
	theirs       theirs.BlockCrypt
	data, parity int
	stream       bool
}

var ends = []end{
	{"ours", func(e envelope, addr string) (session, error) {
		return ours.DialWithOptions(addr, e.ours, e.data, e.parity)
	}, func(t *testing.T, e envelope) (string, func() (session, error)) {
		l, err := ours.ListenWithOptions("127.0.0.1:0", e.ours, e.data, e.parity)
		must(t, err)
		t.Cleanup(func() { l.Close() })
		return l.Addr().String(), func() (session, error) { return l.AcceptKCP() }
	}},
	{"theirs", func(e envelope, addr string) (session, error) {
		return theirs.DialWithOptions(addr, e.theirs, e.data, e.parity)
	}, func(t *testing.T, e envelope) (string, func() (session, error)) {
		l, err := theirs.ListenWithOptions("127.0.0.1:0", e.theirs, e.data, e.parity)
		must(t, err)
		t.Cleanup(func() { l.Close() })
		return l.Addr().String(), func() (session, error) { return l.AcceptKCP() }
	}},
}

// envelopes returns one of each form, and both modes.
func envelopes(t *testing.T) []envelope {
	key := bytes.Repeat([]byte{7, 91, 3, 200}, 8)
	aes, err := ours.NewAESBlockCrypt(key)
	must(t, err)
	theirAES, err := theirs.NewAESBlockCrypt(key)
	must(t, err)
	salsa, err := ours.NewSalsa20BlockCrypt(key)
	must(t, err)
	theirSalsa, err := theirs.NewSalsa20BlockCrypt(key)
	must(t, err)
	gcm, err := ours.NewAESGCMCrypt(key)
	must(t, err)
	theirGCM, err := theirs.NewAESGCMCrypt(key)
	must(t, err)
	return []envelope{
		{name: "plain", stream: true},
		{name: "AES", ours: aes, theirs: theirAES},
		{name: "Salsa20", ours: salsa, theirs: theirSalsa, stream: true},
		{name: "AES-GCM", ours: gcm, theirs: theirGCM},
		{name: "plain, FEC", data: 10, parity: 3},
		{name: "AES-GCM, FEC", ours: gcm, theirs: theirGCM, data: 10, parity: 3, stream: true},
	}
}

// TestSessions sends through every envelope, whichever of the two dials.
func TestSessions(t *testing.T) {
	for i, dialler := range ends {
		listener := ends[1-i]
		for _, e := range envelopes(t) {
			t.Run(dialler.name+" dials/"+e.name, func(t *testing.T) {
				t.Parallel()
				addr, accept := listener.listen(t, e)
				client, err := dialler.dial(e, addr)
				must(t, err)
				t.Cleanup(func() { client.Close() })
				tune(t, e, client)
				_, err = client.Write([]byte("hello"))
				must(t, err)
				server, err := accept()
				must(t, err)
				t.Cleanup(func() { server.Close() })
				tune(t, e, server)
				b := make([]byte, 5)
				if _, err := io.ReadFull(server, b); err != nil || string(b) != "hello" {
					t.Fatal(string(b), err)
				}
				if client.GetConv() != server.GetConv() {
					t.Error("ids:", client.GetConv(), server.GetConv())
				}
				for _, d := range [][2]session{{client, server}, {server, client}} {
					if e.data > 0 {
						outOfBand(t, d[0], d[1])
					}
				}
				exchange(t, client, server)
			})
		}
	}
}

func tune(t *testing.T, e envelope, s session) {
	t.Helper()
	s.SetNoDelay(1, 10, 2, 1)
	s.SetWindowSize(512, 512)
	s.SetStreamMode(e.stream)
	if !s.SetMtu(1350) {
		t.Error("SetMtu")
	}
}

// exchange sends bytes each way at once, in pieces, and compares them.
func exchange(t *testing.T, a, b session) {
	t.Helper()
	errs := make(chan error, 4)
	for _, d := range []struct {
		from, to session
		seed     byte
	}{{a, b, 1}, {b, a, 2}} {
		content := make([]byte, 200_000)
		_, _ = rand.NewChaCha8([32]byte{d.seed}).Read(content) // cannot fail
		go func() {
			var err error
			for n, rest := 1, content; len(rest) > 0 && err == nil; n = n*7%5003 + 1 {
				n, err = d.from.Write(rest[:min(n, len(rest))])
				rest = rest[n:]
			}
			errs <- err
		}()
		go func() {
			got := make([]byte, len(content))
			_, err := io.ReadFull(d.to, got)
			if err == nil && !bytes.Equal(got, content) {
				err = errors.New("other bytes")
			}
			errs <- err
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// outOfBand sends the largest packet out of band.
func outOfBand(t *testing.T, from, to session) {
	t.Helper()
	got := make(chan []byte, 10)
	handler := func(b []byte) { got <- bytes.Clone(b) }
	switch s := to.(type) { // the argument has another type in each package
	case *ours.UDPSession:
		must(t, s.SetOOBHandler(handler))
	case *theirs.UDPSession:
		must(t, s.SetOOBHandler(handler))
	}
	if from.GetOOBMaxSize() != to.GetOOBMaxSize() {
		t.Error("sizes", from.GetOOBMaxSize(), to.GetOOBMaxSize())
	}
	sent := bytes.Repeat([]byte("out of band"), 200)[:from.GetOOBMaxSize()]
	must(t, from.SendOOB(sent))
	if b := <-got; !bytes.Equal(b, sent) {
		t.Error("other bytes")
	}
}

// must fails the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
