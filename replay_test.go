package kcp

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/session"
	"github.com/stretchr/testify/require"
)

// keyID is a cipher that has a name of its key in front of each packet, as for
// the change of keys.
type keyID struct{ crypt.Cipher }

func (k keyID) Overhead() (head, tail int) {
	head, tail = k.Cipher.Overhead()
	return head + 8, tail
}
func (k keyID) Authenticated() bool { return true }
func (k keyID) Open(packet []byte) ([]byte, error) {
	return k.Cipher.Open(packet[min(8, len(packet)):])
}
func (k keyID) Seal(packet []byte) error {
	copy(packet, "key no 1")
	return k.Cipher.Seal(packet[8:])
}

// authenticCiphers returns ciphers of all kinds that authenticate.
func authenticCiphers(t *testing.T) map[string]crypt.Cipher {
	block, err := aes.NewCipher(make([]byte, 16))
	require.NoError(t, err)
	random, err := cipher.NewGCMWithRandomNonce(block)
	require.NoError(t, err)
	long, err := crypt.XChaCha20Poly1305(make([]byte, 32))
	require.NoError(t, err)
	return map[string]crypt.Cipher{
		"GCM":                   testAEAD(t),
		"locked GCM":            crypt.Locked(testAEAD(t)),
		"GCM with its nonces":   crypt.AEAD(random),
		"GCM with a key's name": keyID{testAEAD(t)},
		"XChaCha20":             long,
	}
}

// onPath is somebody who sees and keeps all packets, and has no key.
type onPath struct {
	mu   sync.Mutex
	kept []keptPacket
}

type keptPacket struct {
	from, to netip.AddrPort
	data     []byte
}

func (w *world) watched() *onPath {
	o := new(onPath)
	w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.kept = append(o.kept, keptPacket{from, to, bytes.Clone(p)})
		return true
	})
	return o
}

// all returns what was kept, and ends the watch.
func (o *onPath) all(w *world) []keptPacket {
	w.net.SetFilter(nil)
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kept
}

var elsewhere = netip.MustParseAddrPort("10.0.0.66:6666")

// executes answers commands of 16 bytes in sessions of l, and counts them.
func executes(l *Listener, executed *atomic.Int32) {
	for {
		c, err := l.AcceptKCP(context.Background())
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			for command := make([]byte, 16); ; {
				if _, err := io.ReadFull(c, command); err != nil {
					return
				}
				executed.Add(1)
				_, _ = c.Write([]byte("done"))
			}
		}()
	}
}

// command has three commands executed over a session from e.
func (w *world) command(e *Endpoint) {
	c := w.dial(e)
	for range 3 {
		_, err := c.Write([]byte("transfer 100 EUR"))
		require.NoError(w.t, err)
		receive(w.t, c, []byte("done"))
	}
	require.NoError(w.t, c.Close())
}

// With a cipher that authenticates, or one that hides the content and LegacyRefuse,
// what was recorded of a session has nothing
// done once more: not by the same server, after however much else, nor by
// another one with the key, from whatever address it comes.
func TestRecordedSessionDoesNothing(t *testing.T) {
	ciphers := authenticCiphers(t)
	ciphers["Salsa20"] = hidingCiphers(t)["Salsa20"]
	for name, c := range ciphers {
		for _, f := range []FEC{{}, {Data: 2, Parity: 1}} {
			for _, wait := range []bool{true, false} {
				t.Run(name, func(t *testing.T) {
					inWorld(t, 2, clean, func(t *testing.T, w *world) {
						config := &Config{Cipher: c, FEC: f}
						if !crypt.Authenticated(c) {
							config.LegacyPeers = LegacyRefuse
						}
						var server, other atomic.Int32
						l := w.listen(config)
						go executes(l, &server)
						e, _ := w.endpoint("10.0.0.9:4000", config)
						l2, err := e.Listen()
						require.NoError(t, err)
						go executes(l2, &other)

						dialling := *config
						if !wait {
							dialling.DialTimeout = -1 // data follows the hello at once
						}
						client, _ := w.endpoint("10.0.0.2:5000", &dialling)
						path := w.watched()
						w.command(client)
						require.EqualValues(t, 3, server.Load())
						kept := path.all(w)
						for _, pause := range []time.Duration{0, 2 * session.TimeWaitTime} {
							time.Sleep(pause)
							l.ep.shared.Protection.Forget()
							for _, to := range []string{serverAddr, "10.0.0.9:4000"} {
								for _, from := range []netip.AddrPort{elsewhere, kept[0].from} {
									for _, skip := range []int{2, 1, 0} { // what HELLO opens would take the others' packets
										for _, p := range kept[skip:] {
											if p.from == kept[0].from {
												w.net.Inject(from, netip.MustParseAddrPort(to), p.data)
												time.Sleep(time.Millisecond)
											}
										}
									}
								}
							}
						}
						time.Sleep(time.Minute)
						require.EqualValues(t, 3, server.Load())
						require.Zero(t, other.Load())
						require.Zero(t, l.Endpoint().Stats().Sessions+l2.Endpoint().Stats().Sessions)
					})
				})
			}
		}
	}
}

// sealed returns a packet as c makes it.
func sealed(t *testing.T, c crypt.Cipher, content []byte) []byte {
	head, tail := c.Overhead()
	p := append(make([]byte, head), content...)
	p = append(p, make([]byte, tail)...)
	require.NoError(t, c.Seal(p))
	return p
}

// A peer without signals opens a session if there is no cipher that
// authenticates, or if that is allowed in spite of one.
func TestLegacyPeers(t *testing.T) {
	aead := testAEAD(t)
	for _, v := range []struct {
		config Config
		opens  bool
	}{
		{Config{}, true},
		{Config{LegacyPeers: LegacyRefuse}, false},
		{Config{LegacyPeers: LegacyAllow}, true},
		{Config{Cipher: crypt.None()}, true},
		{Config{Cipher: aead}, false},
		{Config{Cipher: crypt.Locked(aead)}, false},
		{Config{Cipher: aead, LegacyPeers: LegacyAllow}, true},
	} {
		inWorld(t, 3, clean, func(t *testing.T, w *world) {
			l := w.listen(&v.config)
			p := push(0, 0, "hello")
			if v.config.Cipher != nil {
				p = sealed(t, v.config.Cipher, p)
			}
			w.net.Inject(elsewhere, netip.MustParseAddrPort(serverAddr), p)
			time.Sleep(time.Second)
			require.Equal(t, v.opens, l.Endpoint().Stats().Backlog == 1, "%+v", v.config)
		})
	}
}

// What an endpoint has sent and gets back is neither read nor an
// acknowledgement, with a peer with signals and without.
func TestReflection(t *testing.T) {
	for name, c := range authenticCiphers(t) {
		for _, legacy := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				inWorld(t, 5, clean, func(t *testing.T, w *world) {
					config := &Config{Cipher: c, Linger: time.Second, DialTimeout: -1}
					e, _ := w.endpoint("10.0.0.2:5000", config)
					client, server := netip.MustParseAddrPort("10.0.0.2:5000"), netip.MustParseAddrPort(serverAddr)
					if !legacy {
						l := w.listen(config)
						a := w.dial(e)
						b := accepted(t, l)
						bothWays(t, a, b, content(1, 5000), content(2, 5000))
					} else {
						pc, err := w.net.Listen(serverAddr)
						require.NoError(t, err)
						defer pc.Close()
					}
					a := w.dial(e)
					w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
						if from == client {
							w.net.Inject(server, client, p) // instead
						}
						return false
					})
					requireNothingReflected(t, a)
				})
			})
		}
	}
}

// requireNothingReflected checks that a reads and acknowledges nothing of what it
// sends, which comes back to it.
func requireNothingReflected(t *testing.T, a *Conn) {
	t.Helper()
	writeAll(t, a, []byte("important"))
	require.NoError(t, a.SetReadDeadline(time.Now().Add(5*time.Second)))
	n, err := a.Read(make([]byte, 100))
	require.Zero(t, n, "it has read its own data")
	requireTimeout(t, err)
	require.Error(t, a.Close())
}
