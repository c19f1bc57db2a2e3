package kcp

import (
	"testing"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// An upload beside peers that send little has all that the reader gets done, but no long
// queue in the socket's buffer, behind which the others would wait.
func TestUploadBesideChat(t *testing.T) {
	t.Parallel()
	for name, chats := range map[string]int{"alone": 0, "20 chats": 20} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 7, netsim.LinkConfig{Delay: 50 * time.Microsecond}, func(t *testing.T, w *world) {
				const pace = 20 * time.Microsecond
				c := newCrowd(w, nil, 8<<20, pace)
				go c.serve()
				c.join(&Config{CongestionControl: congestion.NewNone})
				for range chats {
					c.joinWith(nil, 32, 50*time.Millisecond)
				}
				time.Sleep(1500 * time.Millisecond)
				before, waits := c.senders[0].received.Load(), 0
				for range 500 {
					time.Sleep(time.Millisecond)
					waits += c.socket.Unread() / 500
				}
				got := float64(c.senders[0].received.Load() - before)
				t.Logf("%.2f of what the reader gets done, %d KB wait", got/1448*2*pace.Seconds(), waits>>10)
				require.Greater(t, got, 0.9/2/pace.Seconds()*1448)
				if chats > 0 {
					require.Less(t, waits, 160<<10)
				} else {
					require.Greater(t, waits, 1<<20, "one that is alone is not limited")
				}
				require.Zero(t, c.failed.Load())
				for _, s := range c.senders {
					s.stop.Store(true)
				}
				time.Sleep(3 * time.Second)
			})
		})
	}
}
