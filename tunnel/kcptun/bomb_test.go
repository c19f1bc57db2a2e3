package kcptun

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
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
	if testing.Short() {
		t.Skip("takes seconds")
	}
	release := make(chan struct{})
	at := target(t, func(*net.TCPConn) { <-release })
	defer close(release)
	for _, version := range []byte{1, 2} {
		s := ServerDefaults()
		s.Listen, s.Target, s.Crypt, s.DataShard, s.ParityShard, s.SmuxVer = "127.0.0.1:0", at, "null", 0, 0, int(version)
		server := start(t, Serve, s)
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const sessions, streams = 4, 16
		zeros := make([]byte, 65535)
		for range sessions {
			conn, err := kcp.DialWithOptions(server, nil, 0, 0)
			require.NoError(t, err)
			defer conn.Close()
			conn.SetStreamMode(true)
			conn.SetNoDelay(1, 10, 2, 1)
			conn.SetWindowSize(1024, 1024)
			require.NoError(t, conn.SetWriteDeadline(time.Now().Add(5*time.Second)))
			w := snappy.NewBufferedWriter(conn)
			for id := uint32(1); id < 2*streams; id += 2 {
				_, err = w.Write(frame(version, 0, id, nil)) // SYN
				require.NoError(t, err)
			}
			sent := 0
			for n := uint32(0); n < 4000 && err == nil; n++ { // 260 MB in 12 MB
				_, err = w.Write(frame(version, 2, 1+2*(n%streams), zeros)) // PSH
				sent += len(zeros)
			}
			t.Logf("version %d: %d bytes until %v", version, sent, err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
		t.Logf("version %d: the heap has grown by %d bytes", version, grown)
		require.Less(t, grown, int64(sessions*(s.SmuxBuf+8<<20)))
	}
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
