package kcp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Who makes room where tables are full: strangers of one site end each other's sessions,
// and not those of others, who get in at once.

// strangers dial without end from many networks, 51 times a second, and leave each
// handshake unfinished, until stop is called.
func (w *world) strangers(l *Listener, config *Config, networks int, addr func(i int) string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all []*Endpoint
	theirs := make(map[netip.Addr]bool)
	for i := range networks {
		e, _ := w.endpoint(addr(i), config)
		all = append(all, e)
		theirs[e.LocalAddr().(*net.UDPAddr).AddrPort().Addr()] = true
	}
	w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
		return p[4] != 0xa1 || !theirs[from.Addr()] && !theirs[to.Addr()] // under the handshake keys
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ctx.Err() == nil; i++ {
			go func() { _, _ = all[i%networks].Dial(ctx, l.Addr()) }()
			time.Sleep(time.Second / 51)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// All dials of others succeed within 2 s while strangers of one site, in as many subnets
// as they like, fill the table of handshakes, or that of all sessions; and so do dials
// from the strangers' own site while the strangers have one subnet.
func TestStrangersOfOneSite(t *testing.T) {
	t.Parallel()
	long(t)
	v6 := func(i int) string { return fmt.Sprintf("[2001:db8:1:%x::1]:0", i) }
	for name, test := range map[string]struct {
		config   Config
		networks int
		filling  time.Duration
		addr     func(i int) string
		honest   string
		shaking  int // handshakes in the full table
	}{
		"600 networks of a /48": {Config{MaxHalfOpen: 256}, 600, 6 * time.Second, v6, "192.0.%d.1:0", 256},
		"behind cookies":        {Config{MaxHalfOpen: 64, AddressValidation: ValidateAlways}, 100, 2 * time.Second, v6, "[2001:db9:%x::1]:0", 64},
		"addresses of a /24":    {Config{MaxHalfOpen: 64}, 100, 2 * time.Second, func(i int) string { return fmt.Sprintf("172.16.0.%d:0", i+1) }, "192.0.%d.1:0", 64},
		"MaxSessions":           {Config{MaxSessions: 64, MaxHalfOpen: 1000}, 100, 2 * time.Second, v6, "192.0.%d.1:0", 63},
		"their own /24":         {Config{MaxHalfOpen: 64}, 6, 4 * time.Second, func(i int) string { return fmt.Sprintf("172.16.0.%d:0", i+1) }, "172.16.0.%d:7", 60},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && test.networks == 600 {
				t.Skip("the others show the same")
			}
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				config := secured(test.config)
				l := w.listen(config)
				stop := w.strangers(l, config, test.networks, test.addr)
				defer stop()
				time.Sleep(test.filling)
				for i := range 20 {
					e, _ := w.endpoint(fmt.Sprintf(test.honest, i+10), config)
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
					c, err := e.Dial(ctx, l.Addr())
					cancel()
					require.NoError(t, err, "dial %d", i)
					bothWays(t, c, accepted(t, l), []byte("up"), []byte("down"))
					e.mu.RLock()
					require.GreaterOrEqual(t, l.ep.table.Shaking(), test.shaking*3/4, "there is no attack")
					e.mu.RUnlock()
					require.NoError(t, c.Close())
					time.Sleep(100 * time.Millisecond)
				}
			})
		})
	}
}
