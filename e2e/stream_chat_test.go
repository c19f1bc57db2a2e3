package e2e

import (
	"context"
	"encoding/binary"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// A line of chat takes hardly longer beside a download than alone: at 20 Mbit/s, 80 ms
// and 2 % loss, the slowest hundredth at most 1.3 times as long.
func TestChatBesideDownload(t *testing.T) {
	t.Parallel()
	long(t)
	alone, _ := chat(t, false)
	beside, downloaded := chat(t, true)
	t.Logf("alone %v, beside the download %v", alone, beside)
	require.Greater(t, downloaded, 80<<20) // of the 100 that the link carries in that time
	require.Less(t, beside, alone*13/10)
}

// chat returns how long the slowest hundredth of a thousand lines takes at least, and how
// many bytes of a download have arrived beside it.
func chat(t *testing.T, download bool) (p99 time.Duration, downloaded int) {
	const lines, size, every = 500, 200, 97 * time.Millisecond
	link := netsim.LinkConfig{Delay: 40 * time.Millisecond, Loss: 0.02, Rate: 20e6 / 8, Queue: 250 << 10}
	var took []time.Duration
	for seed := range uint64(2) {
		inWorld(t, 60+seed, link, func(t *testing.T, w *world) {
			ctx, now := context.Background(), time.Now()
			client, server, _ := w.pair(nil, nil)
			if download {
				s, err := server.OpenStream(ctx, nil)
				require.NoError(t, err)
				go func() { _, _ = io.Copy(s, endless{}) }()
				r, err := client.AcceptStream(ctx)
				require.NoError(t, err)
				go func() {
					n, _ := io.Copy(io.Discard, r)
					downloaded += int(n)
				}()
				time.Sleep(3 * time.Second) // until it is at full speed
			}
			s, err := server.OpenStream(ctx, &kcp.StreamOptions{Priority: 1})
			require.NoError(t, err)
			go func() {
				line := make([]byte, size)
				for range lines {
					time.Sleep(every)
					binary.LittleEndian.PutUint64(line, uint64(time.Since(now)))
					_, _ = s.Write(line)
				}
			}()
			r, err := client.AcceptStream(ctx)
			require.NoError(t, err)
			line := make([]byte, size)
			for range lines {
				_, err := io.ReadFull(r, line)
				require.NoError(t, err)
				took = append(took, time.Since(now)-time.Duration(binary.LittleEndian.Uint64(line)))
			}
			require.NoError(t, client.Abort())
			_ = server.Abort() // the peer may have ended it
		})
	}
	slices.Sort(took)
	return took[len(took)*99/100], downloaded
}

// endless is a reader of zeros without end.
type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }
