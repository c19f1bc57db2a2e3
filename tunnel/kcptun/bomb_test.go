package kcptun

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	kcp "github.com/arqnet/kcp/kcpgo"
	"github.com/golang/snappy"
	"github.com/stretchr/testify/require"
)

// frame returns a frame of smux.
func frame(version, command byte, stream uint32, payload []byte) []byte {
	b := []byte{version, command}
	b = binary.LittleEndian.AppendUint16(b, uint16(len(payload)))
	b = binary.LittleEndian.AppendUint32(b, stream)
	return append(b, payload...)
}

// Somebody with the key sends bombs: what takes little to send becomes much when it is
// decompressed, for targets that read nothing. A server buffers what the settings say.
func TestSnappyBombs(t *testing.T) {
	release := make(chan struct{})
	at := target(t, func(*net.TCPConn) { <-release })
	defer close(release)
	sessions := 1
	if os.Getenv("KCP_LONG") != "" {
		sessions = 4
	}
	for _, version := range []byte{1, 2} {
		s := ServerDefaults()
		s.Listen, s.Target, s.Crypt, s.DataShard, s.ParityShard, s.SmuxVer = "127.0.0.1:0", at, "null", 0, 0, int(version)
		server := start(t, Serve, s)
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const streams = 16
		var sending sync.WaitGroup
		for range sessions {
			conn, err := kcp.DialWithOptions(server, nil, 0, 0)
			require.NoError(t, err)
			defer conn.Close()
			conn.SetStreamMode(true)
			conn.SetNoDelay(1, 10, 2, 1)
			conn.SetWindowSize(1024, 1024)
			sending.Go(func() {
				t.Logf("version %d: %d bytes until nothing more was taken", version, bomb(conn, version, streams))
			})
		}
		sending.Wait()
		runtime.GC()
		runtime.ReadMemStats(&after)
		grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
		t.Logf("version %d: the heap has grown by %d bytes", version, grown)
		require.Less(t, grown, int64(sessions*(s.SmuxBuf+8<<20)+8<<20))
	}
}

// bomb sends 260 MB in 12 MB, until nothing has been taken for a while, and returns how
// much that was.
func bomb(conn *kcp.UDPSession, version byte, streams uint32) (sent int) {
	zeros, err := make([]byte, 65535), error(nil)
	w := snappy.NewBufferedWriter(conn)
	for n := uint32(0); n < 4000+streams && err == nil; n++ {
		_ = conn.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)) // always nil
		id := 1 + 2*(n%streams)
		if n < streams {
			_, err = w.Write(frame(version, 0, id, nil)) // SYN
			continue
		}
		_, err = w.Write(frame(version, 2, id, zeros)) // PSH
		sent += len(zeros)
	}
	return sent
}

// What arrives is decompressed to at most a block at a time, and ends truly.
func FuzzCompressed(f *testing.F) {
	var b bytes.Buffer
	w := snappy.NewBufferedWriter(&b)
	_, _ = w.Write(make([]byte, 100_000))
	_ = w.Close()
	f.Add(b.Bytes())
	f.Add([]byte("\xff\x06\x00\x00sNaPpY\xfe\xff\xff\xff"))
	f.Add([]byte("\xff\x06\x00\x00sNaPpY\x00\x08\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x0f"))
	f.Fuzz(func(t *testing.T, in []byte) {
		here, there := net.Pipe()
		go func() {
			_, _ = there.Write(in)
			_ = there.Close()
		}()
		r := compress(here)
		defer here.Close()
		n, err := io.Copy(io.Discard, struct{ io.Reader }{r})
		require.LessOrEqual(t, n, int64(len(in)+1)*65536)
		if err != nil {
			require.True(t, errors.Is(err, snappy.ErrCorrupt) || errors.Is(err, snappy.ErrUnsupported) || errors.Is(err, io.ErrUnexpectedEOF), "%v", err)
		}
	})
}
