package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/examples/internal/lab"
	"github.com/arqnet/kcp/internal/testenv"
)

// A client sends messages and fetches a file, while the server is killed and comes back,
// the network goes and comes back, a NAT forgets the client, and the client is woken. The
// server has each message once, in order, and the client the file. A socket is kept
// through all that, unless an outage is long enough for dials without an answer.
func TestThroughRestartsAndOutages(t *testing.T) {
	for name, config := range map[string]func(t *testing.T) (server, client *kcp.Config){"plain": plain, "TLS": secure} {
		seeds := uint64(1)
		if os.Getenv("KCP_LONG") != "" {
			seeds = 10
		}
		for seed := range seeds {
			t.Run(fmt.Sprintf("%s, seed %d", name, seed), func(t *testing.T) {
				inWorld(t, seed, config, func(t *testing.T, w *world) { throughAll(w, rand.New(rand.NewPCG(seed, 1))) })
			})
		}
	}
}

func throughAll(w *world, r *rand.Rand) {
	const messages, size = 150, 3 << 20 // the file takes 31 s at least
	content := lab.Content(1, size)
	require.NoError(w, os.WriteFile(filepath.Join(w.dir, filesDir, "file"), content, 0o600))
	d := w.start(1, "10.0.0.2")
	fetched := make(chan error, 1)
	f, err := os.Create(filepath.Join(w.TempDir(), "file"))
	require.NoError(w, err)
	defer f.Close()
	go func() { fetched <- d.fetch(w.Context(), "file", f, 0) }()
	go func() {
		for i := range messages {
			d.send(fmt.Appendf(nil, "message %d", i))
			time.Sleep(time.Second)
		}
	}()
	_, err = d.link.await(w.Context())
	require.NoError(w, err)
	port, outages := 6000, 0
	for end := time.Now().Add(messages * time.Second); time.Now().Before(end); time.Sleep(time.Duration(r.Int64N(int64(40 * time.Second)))) {
		switch r.IntN(4) {
		case 0:
			outages++
			w.restart(time.Duration(r.Int64N(int64(30 * time.Second))))
		case 1:
			outages++
			w.net.Cut("10.0.0.1", "10.0.0.2")
			time.Sleep(time.Duration(r.Int64N(int64(40 * time.Second))))
			w.net.Heal("10.0.0.1", "10.0.0.2")
		case 2:
			port++
			select {
			case err := <-d.ended:
				require.NoError(w, err, "the client has ended")
			default:
			}
			all := d.sockets()
			err := all[len(all)-1].Rebind(fmt.Sprintf("10.0.0.2:%d", port))
			require.True(w, err == nil || errors.Is(err, net.ErrClosed), err) // the client may be about to open another
		case 3:
			outages++
			w.net.Cut("10.0.0.1", "10.0.0.2")
			time.Sleep(time.Duration(r.Int64N(int64(time.Minute))))
			w.net.Heal("10.0.0.1", "10.0.0.2")
			d.link.wake(w.Context())
		}
	}
	ctx, cancel := context.WithTimeout(w.Context(), 10*time.Minute)
	defer cancel()
	require.NoError(w, d.flush(ctx))
	require.NoError(w, <-fetched)
	got, err := os.ReadFile(f.Name())
	require.NoError(w, err)
	require.True(w, bytes.Equal(content, got))
	require.Equal(w, numbered(messages), w.log(1))
	require.LessOrEqual(w, len(d.sockets()), 1+outages, "a socket is kept unless two dials are not answered")
	// What had arrived once was not sent again, except what was under way.
	require.Less(w, w.net.LinkStats("10.0.0.1", "").Delivered.Bytes, int64(size+size/2))
	d.stop()
}

// A client that wakes notices in seconds that the server has forgotten it, and not only
// with the next keep-alive.
func TestWake(t *testing.T) {
	for name, config := range map[string]func(t *testing.T) (server, client *kcp.Config){"plain": plain, "TLS": secure} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, config, func(t *testing.T, w *world) {
				d := w.start(1, "10.0.0.2")
				time.Sleep(10 * time.Second)
				conn, changed := d.link.current()
				require.NotNil(t, conn)
				d.link.wake(w.Context())
				again, _ := d.link.current()
				require.Same(t, conn, again, "it lives")
				w.net.Cut("10.0.0.1", "")
				d.link.wake(w.Context())
				require.Error(t, conn.Err(), "there is no answer")
				w.net.Heal("10.0.0.1", "")
				_, err := d.link.await(w.Context())
				require.NoError(t, err)
				w.restart(time.Millisecond)
				d.link.wake(w.Context())
				<-changed
				ctx, cancel := context.WithTimeout(w.Context(), 3*time.Second)
				defer cancel()
				_, err = d.link.await(ctx)
				require.NoError(t, err)
				d.stop()
			})
		})
	}
}

// Of two clients with one id the second takes over, and the first does not dial again.
func TestTakenOver(t *testing.T) {
	inWorld(t, 1, plain, func(t *testing.T, w *world) {
		first := w.start(1, "10.0.0.2")
		first.send([]byte("message 0"))
		require.NoError(t, first.flush(w.Context()))
		second := w.start(1, "10.0.0.3")
		var closed *kcp.PeerCloseError
		require.ErrorAs(t, <-first.ended, &closed)
		require.EqualValues(t, codeTakenOver, closed.Code)
		second.send([]byte("message 1"))
		time.Sleep(time.Second)
		require.NoError(t, second.flush(w.Context()))
		require.Equal(t, numbered(2), w.log(1))
		second.stop()
	})
}

// A file that is not there is not asked for again; one that has changed comes whole.
func TestFetch(t *testing.T) {
	inWorld(t, 1, plain, func(t *testing.T, w *world) {
		d := w.start(1, "10.0.0.2")
		f, err := os.Create(filepath.Join(t.TempDir(), "file"))
		require.NoError(t, err)
		defer f.Close()
		for _, name := range []string{"nothing", "../" + hex.EncodeToString(d.id[:]) + ".log", ".", ""} {
			var refused *kcp.StreamError
			require.ErrorAs(t, d.fetch(w.Context(), name, f, 0), &refused, name)
			require.EqualValues(t, codeNoFile, refused.Code)
		}
		want := lab.Content(3, 100_000)
		path := filepath.Join(w.dir, filesDir, "file")
		require.NoError(t, os.WriteFile(path, want, 0o600))
		info, err := os.Stat(path)
		require.NoError(t, err)
		for _, version := range []uint64{uint64(info.ModTime().UnixNano()), 17} { // of a part: the same, and another
			require.NoError(t, f.Truncate(0))
			_, err = f.WriteAt(want[:50_000], 0)
			require.NoError(t, err)
			before := w.net.LinkStats("10.0.0.1", "").Delivered.Bytes
			require.NoError(t, d.fetch(w.Context(), "file", f, version))
			got, err := os.ReadFile(f.Name())
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
			sent := w.net.LinkStats("10.0.0.1", "").Delivered.Bytes - before
			require.Equal(t, version == 17, sent > 80_000, sent)
		}
		d.stop()
	})
}

// staleNAT is a NAT in front of the server. It sends what comes from an address that it
// knows to where it did before, until nothing has come from there for a while.
type staleNAT struct {
	mu       sync.Mutex
	replaced bool                         // the server that the known ones were sent to is gone
	known    map[netip.AddrPort]time.Time // when the last packet came from there
	forgets  time.Duration
}

// pass is the filter of the network.
func (n *staleNAT) pass(from, to netip.AddrPort, _ []byte) bool {
	if to.String() != serverAddr {
		return true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	last, known := n.known[from]
	if known = known && time.Since(last) < n.forgets; known || !n.replaced {
		n.known[from] = time.Now()
	}
	return !n.replaced || !known
}

// A NAT that sends the client's packets to a server that was replaced, for as long as
// they come, does not keep the client away: it dials from another port.
func TestNATRemembersAServerThatIsGone(t *testing.T) {
	for name, config := range map[string]func(t *testing.T) (server, client *kcp.Config){"plain": plain, "TLS": secure} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, config, func(t *testing.T, w *world) {
				nat := &staleNAT{known: make(map[netip.AddrPort]time.Time), forgets: 2 * time.Minute}
				w.net.SetFilter(nat.pass)
				w.host = "10.0.0.2:0"
				d := w.start(1, "10.0.0.2")
				d.send([]byte("message 0"))
				time.Sleep(5 * time.Second)
				require.NoError(t, d.flush(w.Context()))
				nat.mu.Lock()
				nat.replaced = true
				nat.mu.Unlock()
				w.restart(time.Second)
				d.send([]byte("message 1"))
				time.Sleep(2 * time.Minute)
				require.NoError(t, d.flush(w.Context()))
				require.Equal(t, numbered(2), w.log(1))
				require.Len(t, d.sockets(), 2)
				require.NotEqual(t, d.sockets()[0].LocalAddr(), d.sockets()[1].LocalAddr())
				d.stop()
			})
		})
	}
}

// The program, over loopback and with TLS.
func TestRun(t *testing.T) {
	dir, files := t.TempDir(), t.TempDir()
	t.Chdir(t.TempDir())
	require.NoError(t, os.Mkdir(filepath.Join(dir, filesDir), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, filesDir, "greeting"), []byte("hello, world\n"), 0o600))
	cert, key := filepath.Join(files, "cert"), filepath.Join(files, "key")
	pair := testenv.Certificate(t, nil, false, "localhost")
	private, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var served, talked lab.Output
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"serve", "-addr", "localhost:0", "-dir", dir, "-cert", cert, "-key", key}, nil, &served)
	}()
	var port []string
	await.True(t, func() bool {
		port = regexp.MustCompile(`serving on .*:(\d+)\n`).FindStringSubmatch(served.String())
		return port != nil
	})
	id := strings.Repeat("0a", idSize)
	typed := strings.NewReader("one\ntwo\n/get greeting\nthree\n")
	require.NoError(t, run(t.Context(), []string{"talk", "-ca", cert, "-id", id, "localhost:" + port[1]}, typed, &talked))
	stop()
	err = <-ended
	require.True(t, errors.Is(err, net.ErrClosed), err)
	got, err := os.ReadFile("greeting")
	require.NoError(t, err)
	require.Equal(t, "hello, world\n", string(got))
	b, err := os.ReadFile(filepath.Join(dir, id+".log"))
	require.NoError(t, err)
	require.Equal(t, "\x00\x00\x00\x03one\x00\x00\x00\x03two\x00\x00\x00\x05three", string(b))
}
