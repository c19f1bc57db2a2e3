// Package interop has sessions of package kcpgo and of kcp-go talk to each
// other, over loopback and over a relay that loses and delays.
package interop

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	ours "github.com/arqnet/kcp/kcpgo"
	"github.com/arqnet/kcp/netsim"
	theirs "github.com/xtaci/kcp-go/v5"
)

// patience is the limit of calls that need one. The test binary has a shorter one.
const patience = time.Hour

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

// envelope is how packets travel.
type envelope struct {
	name         string
	ours         func() (ours.BlockCrypt, error)
	theirs       func() (theirs.BlockCrypt, error)
	data, parity int
	stream       bool
}

// dialler and acceptor are one implementation each.
type dialler func(e envelope, addr string) (session, error)

type acceptor func(e envelope) (addr string, accept func() (session, error), stop func(), err error)

func dialOurs(e envelope, addr string) (session, error) {
	block, err := e.ours()
	if err != nil {
		return nil, err
	}
	return ours.DialWithOptions(addr, block, e.data, e.parity)
}

func dialTheirs(e envelope, addr string) (session, error) {
	block, err := e.theirs()
	if err != nil {
		return nil, err
	}
	return theirs.DialWithOptions(addr, block, e.data, e.parity)
}

func listenOurs(e envelope) (string, func() (session, error), func(), error) {
	block, err := e.ours()
	if err != nil {
		return "", nil, nil, err
	}
	l, err := ours.ListenWithOptions("127.0.0.1:0", block, e.data, e.parity)
	if err != nil {
		return "", nil, nil, err
	}
	_ = l.SetDeadline(time.Now().Add(patience)) // always nil
	return l.Addr().String(), func() (session, error) { return l.AcceptKCP() }, func() { l.Close() }, nil
}

func listenTheirs(e envelope) (string, func() (session, error), func(), error) {
	block, err := e.theirs()
	if err != nil {
		return "", nil, nil, err
	}
	l, err := theirs.ListenWithOptions("127.0.0.1:0", block, e.data, e.parity)
	if err != nil {
		return "", nil, nil, err
	}
	return l.Addr().String(), func() (session, error) { return l.AcceptKCP() }, func() { l.Close() }, nil
}

// locked makes kcp-go's SM4 safe: its two goroutines share state.
type locked struct {
	mu sync.Mutex
	theirs.BlockCrypt
}

func (l *locked) Encrypt(dst, src []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.BlockCrypt.Encrypt(dst, src)
}

func (l *locked) Decrypt(dst, src []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.BlockCrypt.Decrypt(dst, src)
}

// envelopes returns every cipher, error correction with some, and both modes.
func envelopes() (all []envelope) {
	add := func(name string, size int, o func([]byte) (ours.BlockCrypt, error), t func([]byte) (theirs.BlockCrypt, error)) {
		key := bytes.Repeat([]byte{7, 91, 3, 200}, 8)[:size]
		e := envelope{
			name:   name,
			ours:   func() (ours.BlockCrypt, error) { return o(key) },
			theirs: func() (theirs.BlockCrypt, error) { return t(key) },
			stream: len(all)%2 == 0,
		}
		if name == "sm4" {
			e.theirs = func() (theirs.BlockCrypt, error) {
				b, err := t(key)
				return &locked{BlockCrypt: b}, err
			}
		}
		all = append(all, e)
	}
	add("plain", 0, func([]byte) (ours.BlockCrypt, error) { return nil, nil }, func([]byte) (theirs.BlockCrypt, error) { return nil, nil })
	add("aes", 32, ours.NewAESBlockCrypt, theirs.NewAESBlockCrypt)
	add("salsa20", 32, ours.NewSalsa20BlockCrypt, theirs.NewSalsa20BlockCrypt)
	add("sm4", 16, ours.NewSM4BlockCrypt, theirs.NewSM4BlockCrypt)
	add("xor", 32, ours.NewSimpleXORBlockCrypt, theirs.NewSimpleXORBlockCrypt)
	add("none", 0, ours.NewNoneBlockCrypt, theirs.NewNoneBlockCrypt)
	add("twofish", 32, ours.NewTwofishBlockCrypt, theirs.NewTwofishBlockCrypt)
	add("3des", 24, ours.NewTripleDESBlockCrypt, theirs.NewTripleDESBlockCrypt)
	add("cast5", 16, ours.NewCast5BlockCrypt, theirs.NewCast5BlockCrypt)
	add("blowfish", 32, ours.NewBlowfishBlockCrypt, theirs.NewBlowfishBlockCrypt)
	add("tea", 16, ours.NewTEABlockCrypt, theirs.NewTEABlockCrypt)
	add("xtea", 16, ours.NewXTEABlockCrypt, theirs.NewXTEABlockCrypt)
	add("aes-gcm", 32, ours.NewAESGCMCrypt, theirs.NewAESGCMCrypt)
	for _, e := range []envelope{all[0], all[1], all[3], all[12]} {
		e.name, e.data, e.parity, e.stream = e.name+", FEC 10/3", 10, 3, !e.stream
		all = append(all, e)
	}
	return all
}

// pairs are the ends of the sessions: at least one is ours.
var pairs = []struct {
	name   string
	dial   dialler
	listen acceptor
}{
	{"ours-theirs", dialOurs, listenTheirs},
	{"theirs-ours", dialTheirs, listenOurs},
	{"ours-ours", dialOurs, listenOurs},
}

// open returns both ends of a session. through, if not nil, returns the address
// that stands for the listener's.
func open(t *testing.T, e envelope, dial dialler, listen acceptor, through func(string) string) (client, server session) {
	t.Helper()
	addr, accept, stop, err := listen(e)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	if through != nil {
		addr = through(addr)
	}
	if client, err = dial(e, addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	tune(t, e, client)
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if server, err = accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	tune(t, e, server)
	b := make([]byte, 5)
	if _, err := io.ReadFull(server, b); err != nil || string(b) != "hello" {
		t.Fatal(string(b), err)
	}
	if client.GetConv() != server.GetConv() {
		t.Error("ids:", client.GetConv(), server.GetConv())
	}
	return client, server
}

func tune(t *testing.T, e envelope, s session) {
	t.Helper()
	s.SetNoDelay(1, 10, 2, 1)
	s.SetWindowSize(512, 512)
	s.SetStreamMode(e.stream)
	if !s.SetMtu(1350) {
		t.Error("SetMtu")
	}
	if err := s.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Error(err)
	}
}

// exchange sends size bytes each way at once and compares them.
func exchange(t *testing.T, a, b session, size int) {
	t.Helper()
	errs := make(chan error, 4)
	for _, d := range []struct {
		from, to session
		seed     byte
	}{{a, b, 1}, {b, a, 2}} {
		content := make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{d.seed}).Read(content) // cannot fail
		go func() {
			luck := rand.New(rand.NewPCG(uint64(d.seed), 1))
			for rest := content; len(rest) > 0; {
				n, err := d.from.Write(rest[:min(1+luck.IntN(5000), len(rest))])
				if err != nil {
					errs <- fmt.Errorf("Write: %w", err)
					return
				}
				rest = rest[n:]
			}
			errs <- nil
		}()
		go func() {
			got := make([]byte, size)
			n, err := io.ReadFull(d.to, got)
			if err != nil {
				errs <- fmt.Errorf("after %d bytes: %w", n, err)
				return
			}
			if !bytes.Equal(got, content) {
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

// TestTransfer sends through every envelope, between every pair.
func TestTransfer(t *testing.T) {
	size := 1 << 20
	if testing.Short() {
		size = 200000
	}
	for _, p := range pairs {
		for _, e := range envelopes() {
			t.Run(p.name+"/"+e.name, func(t *testing.T) {
				client, server := open(t, e, p.dial, p.listen, nil)
				exchange(t, client, server, size)
			})
		}
	}
}

// TestLossyTransfer sends over a relay that loses 3 % and takes 10 ms.
func TestLossyTransfer(t *testing.T) {
	link := netsim.LinkConfig{Delay: 10 * time.Millisecond, Loss: 0.03}
	all := envelopes()
	if testing.Short() {
		all = []envelope{all[0], all[13], all[16]} // plain, with error correction, and an AEAD's
	}
	for _, p := range pairs {
		for _, e := range all {
			t.Run(p.name+"/"+e.name, func(t *testing.T) {
				t.Parallel()
				client, server := open(t, e, p.dial, p.listen, func(addr string) string {
					relay, err := netsim.NewRelay(addr, link, link, 1)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { relay.Close() })
					return relay.Addr().String()
				})
				exchange(t, client, server, 150000)
			})
		}
	}
}

// TestOOB sends the largest packet out of band each way.
func TestOOB(t *testing.T) {
	for _, p := range pairs {
		t.Run(p.name, func(t *testing.T) {
			e := envelopes()[13]
			client, server := open(t, e, p.dial, p.listen, nil)
			for _, d := range [][2]session{{client, server}, {server, client}} {
				got := make(chan []byte, 10)
				if err := handle(d[1], func(b []byte) { got <- bytes.Clone(b) }); err != nil {
					t.Fatal(err)
				}
				if a, b := d[0].GetOOBMaxSize(), d[1].GetOOBMaxSize(); a != 1338 || b != 1338 {
					t.Error("sizes", a, b)
				}
				sent := bytes.Repeat([]byte("out of band"), 200)[:1338]
				if err := d[0].SendOOB(sent); err != nil {
					t.Fatal(err)
				}
				if b := <-got; !bytes.Equal(b, sent) {
					t.Error("other bytes")
				}
			}
		})
	}
}

// handle is SetOOBHandler, whose argument has another type in each package.
func handle(s session, f func([]byte)) error {
	switch s := s.(type) {
	case *ours.UDPSession:
		return s.SetOOBHandler(f)
	case *theirs.UDPSession:
		return s.SetOOBHandler(f)
	}
	return errors.ErrUnsupported
}

// TestMessages keeps what one Write was given apart from the next.
func TestMessages(t *testing.T) {
	for _, p := range pairs {
		t.Run(p.name, func(t *testing.T) {
			client, server := open(t, envelopes()[1], p.dial, p.listen, nil)
			for _, d := range [][2]session{{client, server}, {server, client}} {
				d[0].SetStreamMode(false)
				d[1].SetStreamMode(false)
				var want []string
				for i := range 50 {
					want = append(want, string(bytes.Repeat([]byte{byte(i)}, 1+i*20)))
					if _, err := d[0].Write([]byte(want[i])); err != nil {
						t.Fatal(err)
					}
				}
				b := make([]byte, 1<<16)
				for i, text := range want {
					if n, err := d[1].Read(b); string(b[:n]) != text || err != nil {
						t.Fatalf("message %d: %d bytes, %v", i, n, err)
					}
				}
			}
		})
	}
}
