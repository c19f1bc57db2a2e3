package e2e

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/stretchr/testify/require"
)

// Receipts of what was not delivered say why, and Close says ErrNotDelivered only if
// something is missing that was not given up.
func TestSendMessageThatFails(t *testing.T) {
	brief, givenUp := kcp.MessageOptions{Lifetime: 100 * time.Millisecond}, kcp.ErrMessageAbandoned
	closes := func(_ *world, a, _ *kcp.Conn) error { return a.Close() }
	for _, tc := range []struct {
		name string
		send []kcp.MessageOptions
		end  func(w *world, a, b *kcp.Conn) error
		want []error
		err  error // of end
	}{
		{"close", []kcp.MessageOptions{{MaxRetransmits: -1}, brief, brief}, closes, []error{givenUp, givenUp, givenUp}, nil},
		{"close with a loss", []kcp.MessageOptions{brief, {}, brief}, closes, []error{givenUp, kcp.ErrNotDelivered, givenUp}, kcp.ErrNotDelivered},
		{"abort", []kcp.MessageOptions{{}, {Lifetime: time.Hour}}, func(_ *world, a, _ *kcp.Conn) error { return a.Abort(0, "") },
			[]error{net.ErrClosed, net.ErrClosed}, nil},
		{"peer closes", []kcp.MessageOptions{{}, {Lifetime: time.Hour}}, func(w *world, _, b *kcp.Conn) error {
			w.heal()
			return b.Close()
		}, []error{kcp.ErrPeerClosed, kcp.ErrPeerClosed}, nil},
	} {
		inWorld(t, 6, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(&kcp.Config{MessageMode: true, Linger: time.Second}, nil)
			time.Sleep(time.Second)
			w.cut()
			var mu sync.Mutex
			got := make([][]error, len(tc.send))
			for i, o := range tc.send {
				o.Done = func(err error) {
					mu.Lock()
					defer mu.Unlock()
					got[i] = append(got[i], err)
				}
				require.NoError(t, a.WriteMessage(content(uint64(i), 5000), &o))
			}
			time.Sleep(time.Second)
			require.ErrorIs(t, tc.end(w, a, b), tc.err, tc.name)
			time.Sleep(2 * time.Minute)
			mu.Lock()
			defer mu.Unlock()
			for i, want := range tc.want {
				require.True(t, len(got[i]) == 1 && errors.Is(got[i][0], want), "%s: message %d: %v", tc.name, i, got[i])
			}
		})
	}
}
