package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/examples/internal/lab"
	"github.com/arqnet/kcp/netsim"
)

// An outage is longer than either end believes in the session: the client goes on
// in a new one.
func TestOutage(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		w.serve()
		require.NoError(t, w.net.Play("", "", netsim.Outage(2*time.Second, 3*peerTimeout)))
		require.NoError(t, w.put(t.Context(), "10.0.0.2"))
		require.Greater(t, w.net.Elapsed(), 3*peerTimeout)
		w.requireComplete()
		w.requireSentOnce("10.0.0.2")
	})
}

// What the server knows after a restart is what is on its disk. The client learns of
// the restart before it would take the server for lost.
func TestServerRestart(t *testing.T) {
	for name, config := range map[string]func(*testing.T) *kcp.Config{"plain": plain, "tls": secure} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, config, func(t *testing.T, w *world) {
				_, kill := w.serve()
				w.net.At(2*time.Second, func() {
					go func() {
						kill()
						time.Sleep(time.Second)
						w.serve()
					}()
				})
				require.NoError(t, w.put(t.Context(), "10.0.0.2"))
				require.Less(t, w.net.Elapsed(), peerTimeout)
				w.requireComplete()
				w.requireSentOnce("10.0.0.2")
			})
		})
	}
}

// Of two sessions the later one wins. From the moment at which it knows how much there
// is, nothing of the earlier one is written, whose packets still arrive.
func TestLaterSessionWins(t *testing.T) {
	inWorld(t, plain, func(t *testing.T, w *world) {
		w.serve()
		earlier, later := w.dial("10.0.0.2"), w.dial("10.0.0.3")
		at, err := ask(earlier, w.request())
		require.NoError(t, err)
		require.Zero(t, at)
		ended := make(chan error)
		go func() {
			_, err := earlier.Write(w.data)
			if err == nil {
				_, err = earlier.Read(make([]byte, 1))
			}
			ended <- err
		}()
		time.Sleep(2 * time.Second)
		at, err = ask(later, w.request())
		require.NoError(t, err)
		require.Greater(t, at, int64(fileSize/4))
		for range 50 {
			require.Equal(t, at, w.stored())
			time.Sleep(100 * time.Millisecond)
		}
		var closed *kcp.PeerCloseError
		require.ErrorAs(t, <-ended, &closed)
		require.EqualValues(t, codeTakenOver, closed.Code)
		require.False(t, mayPass(closed), "it would take over again")
		_, err = later.Write(w.data[at:])
		require.NoError(t, err)
		sum := w.request().sum
		got := make([]byte, len(sum))
		_, err = later.Read(got)
		require.NoError(t, err)
		require.Equal(t, sum[:], got)
		w.requireComplete()
	})
}

// The program, over loopback and with TLS: both ends name the same SHA-256.
func TestRun(t *testing.T) {
	dir, files := t.TempDir(), t.TempDir()
	cert, _ := certificate(t)
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	require.NoError(t, err)
	write := func(name string, b []byte) string {
		path := filepath.Join(files, name)
		require.NoError(t, os.WriteFile(path, b, 0o600))
		return path
	}
	certFile := write("cert", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}))
	keyFile := write("key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	path := write("hello", []byte("hello, world\n"))

	ctx, stop := context.WithCancel(t.Context())
	var served, sent lab.Output
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"serve", "-addr", "localhost:0", "-dir", dir, "-cert", certFile, "-key", keyFile}, &served, &served)
	}()
	var port []string
	await.True(t, func() bool {
		port = regexp.MustCompile(`serving on .*:(\d+)\n`).FindStringSubmatch(served.String())
		return port != nil
	})
	require.NoError(t, run(t.Context(), []string{"put", "-ca", certFile, path, "localhost:" + port[1]}, &sent, &sent))
	stop()
	require.NoError(t, <-ended)
	got, err := os.ReadFile(filepath.Join(dir, "hello"))
	require.NoError(t, err)
	require.Equal(t, "hello, world\n", string(got))
	const sum = "853ff93762a06ddbf722c4ebe9ddd66d8f63ddaea97f521c3ecc20da7c976020"
	require.Contains(t, served.String(), "complete, sha256 "+sum)
	require.Contains(t, sent.String(), "the server has sha256 "+sum)
}
