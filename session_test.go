package kcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Every field of Config has an effect on the session that it is given to.
func TestSettingsTakeEffect(t *testing.T) {
	inWorld(t, 33, clean, func(w *world) {
		cfg := &Config{
			MTU: 600, SendWindow: 77, ReceiveWindow: 333, NoDelay: NoDelayTurbo,
			MinRTO: 55 * time.Millisecond, Interval: 20 * time.Millisecond,
			FastResend: 4, FastResendLimit: 9, DeadLink: 3,
			CongestionControl: NewNoControl, MessageMode: true, Redundancy: 0.5,
		}
		a, _, _ := w.pair(cfg, nil)
		k := a.kcp
		require.Equal(t, 600, k.cfg.mtu)
		require.Equal(t, uint32(77), k.cfg.sndWnd)
		require.Equal(t, uint32(333), k.cfg.rcvWnd)
		require.Equal(t, NoDelayTurbo, k.cfg.nodelay)
		require.Equal(t, uint32(55), k.snd.rtt.minRTO)
		require.Equal(t, uint32(20), k.cfg.interval)
		require.Equal(t, uint32(4), k.cfg.fastResend)
		require.Equal(t, uint32(9), k.cfg.fastLimit)
		require.Equal(t, uint32(3), k.cfg.deadLink)
		require.Equal(t, uint32(50), k.cfg.ext.Redundancy)
		require.False(t, k.cfg.stream)
		require.IsType(t, &noControl{}, k.snd.cc)
	})
}
