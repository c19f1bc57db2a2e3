package takeover

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkTakeover measures sessions of a process that has handed over, beside those of
// its successor: the time of an echo of 64 bytes, and of 1 MB in either direction.
func BenchmarkTakeover(b *testing.B) {
	for _, kind := range []string{"plain", "aes-gcm", "tls"} {
		for _, what := range []struct {
			name  string
			wants byte
		}{{"echo", wantsEcho}, {"upload", wantsHash}, {"download", wantsBytes}} {
			p := launch(b, kind, "old", "").ready()
			old := dialFor(b, p.addr, kind, "old", what.wants)
			next := p.handsOver("new")
			b.Run("session=new/"+kind+"/"+what.name, func(b *testing.B) {
				dialFor(b, next.addr, kind, "new", what.wants).measure(b, what.wants)
			})
			b.Run("session=old/"+kind+"/"+what.name, func(b *testing.B) { old.measure(b, what.wants) })
			p.kill()
			next.kill()
		}
	}
}

// measure runs one case.
func (c *client) measure(b *testing.B, wants byte) {
	defer c.Abort()
	buf := make([]byte, 1_000_000)
	if wants == wantsEcho {
		buf = buf[:64]
	} else {
		b.SetBytes(int64(len(buf)))
	}
	for b.Loop() {
		if wants != wantsBytes {
			_, err := c.Write(buf)
			require.NoError(b, err)
		}
		if wants != wantsHash {
			_, err := io.ReadFull(c, buf)
			require.NoError(b, err)
		}
	}
}
