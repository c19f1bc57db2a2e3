package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"log"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/examples/internal/lab"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

const fileSize = 4_000_000 // at 1 MB/s

var serverAddr = net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.0.0.1:4000"))

// world is a server with a directory, on a simulated network in virtual time.
type world struct {
	*testing.T
	net  *netsim.Network
	dir  string // of the server
	path string // of the client's file
	data []byte // of that file
}

func inWorld(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		link := netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: 1_000_000, Queue: 100_000, Loss: 0.01}
		w := &world{T: t, net: netsim.NewNetwork(1, link), dir: t.TempDir(), data: testenv.Content(1, fileSize)}
		w.path = filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(w.path, w.data, 0o600))
		test(w)
	})
}

// serve starts a server. kill ends it as a process that is killed: nobody is told.
func (w *world) serve() (kill func()) {
	root, err := os.OpenRoot(w.dir)
	require.NoError(w, err)
	e, end := lab.Endpoint(w, w.net, serverAddr.String(), config)
	l, err := e.Listen()
	require.NoError(w, err)
	var running sync.WaitGroup
	running.Go(func() { _ = newServer(root, 1<<30, log.New(w.Output(), "server: ", 0)).run(w.Context(), l) })
	kill = func() {
		end()
		running.Wait()
		root.Close()
	}
	w.Cleanup(kill)
	return kill
}

// put sends the file.
func (w *world) put() error {
	e, _ := lab.Endpoint(w, w.net, "10.0.0.2:0", config)
	dial := func(ctx context.Context) (*kcp.Conn, error) { return e.Dial(ctx, serverAddr, nil) }
	return (&client{dial, log.New(w.Output(), "client: ", 0)}).put(w.Context(), w.path)
}

// sum returns the SHA-256 of the file.
func (w *world) sum() []byte {
	sum := sha256.Sum256(w.data)
	return sum[:]
}

// complete checks that the server has the file, and nothing else, and that what had
// arrived was not sent again, but for what was under way when a session was lost.
func (w *world) complete() {
	w.Helper()
	got, err := os.ReadFile(filepath.Join(w.dir, "file"))
	require.NoError(w, err)
	require.Equal(w, testenv.Sum(w.data), testenv.Sum(got))
	parts, err := os.ReadDir(filepath.Join(w.dir, partsDir))
	require.NoError(w, err)
	require.Empty(w, parts)
	require.Less(w, w.net.LinkStats("10.0.0.2", "").Delivered.Bytes, int64(fileSize*5/4))
}

// An outage is longer than either end believes in the session. Later the server has the
// file already.
func TestOutage(t *testing.T) {
	inWorld(t, func(w *world) {
		w.serve()
		require.NoError(w, w.net.Play("", "", netsim.Outage(2*time.Second, 3*config.PeerTimeout)))
		require.NoError(w, w.put())
		w.complete()
		require.NoError(w, w.put())
		w.complete()
		w.data[0]++
		require.NoError(w, os.WriteFile(w.path, w.data, 0o600))
		require.ErrorContains(w, w.put(), "another file of that name")
	})
}

// What the server knows after a restart is what is on its disk. The client learns of
// the restart before it would take the server for lost.
func TestServerRestart(t *testing.T) {
	inWorld(t, func(w *world) {
		kill := w.serve()
		w.net.At(2*time.Second, func() {
			go func() {
				kill()
				time.Sleep(time.Second)
				w.serve()
			}()
		})
		require.NoError(w, w.put())
		require.Less(w, w.net.Elapsed(), config.PeerTimeout)
		w.complete()
	})
}

// Of two sessions the later one wins. From the moment at which it knows how much there
// is, nothing of the earlier one is written, whose packets still arrive.
func TestLaterSessionWins(t *testing.T) {
	inWorld(t, func(w *world) {
		w.serve()
		ended := make(chan error)
		go func() { ended <- w.put() }()
		time.Sleep(2 * time.Second)
		e, _ := lab.Endpoint(w, w.net, "10.0.0.3:0", config)
		later, err := e.Dial(w.Context(), serverAddr, nil)
		require.NoError(w, err)
		parts, err := filepath.Glob(filepath.Join(w.dir, partsDir, "*"))
		require.NoError(w, err)
		require.Len(w, parts, 1)
		sum := make([]byte, 32)
		require.NoError(w, json.NewEncoder(later).Encode(request{"file", fileSize, w.sum()}))
		var at int64
		require.NoError(w, binary.Read(later, binary.BigEndian, &at))
		require.Greater(w, at, int64(fileSize/4))
		for range 50 {
			info, err := os.Stat(parts[0])
			require.NoError(w, err)
			require.Equal(w, at, info.Size())
			time.Sleep(100 * time.Millisecond)
		}
		var closed *kcp.PeerCloseError
		require.ErrorAs(w, <-ended, &closed)
		require.EqualValues(w, codeTakenOver, closed.Code)
		_, err = later.Write(w.data[at:])
		require.NoError(w, err)
		_, err = later.Read(sum)
		require.NoError(w, err)
		require.Equal(w, w.sum(), sum)
		w.complete()
	})
}

// The program, over loopback.
func TestRun(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "hello")
	require.NoError(t, os.WriteFile(file, []byte("hello, world\n"), 0o600))
	ctx, stop := context.WithCancel(t.Context())
	var served, sent testenv.Records
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, []string{"serve", "-addr", "localhost:0", "-dir", dir}, &served) }()
	addr := served.Find(t, `serving on (.*)`)
	require.NoError(t, run(t.Context(), []string{"put", file, addr}, &sent))
	stop()
	require.NoError(t, <-ended)
	got, err := os.ReadFile(filepath.Join(dir, "hello"))
	require.NoError(t, err)
	require.Equal(t, "hello, world\n", string(got))
}
