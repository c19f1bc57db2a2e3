package kcptun

import (
	"testing"

	engine "github.com/arqnet/kcp"
	"github.com/stretchr/testify/require"
)

// The names of endpoints are used again: sessions that come and go make no new ones.
func TestNamesOfEndpoints(t *testing.T) {
	shown := make(map[string]bool)
	config := &Config{Observe: func(name string, _ *engine.Endpoint) func() {
		require.False(t, shown[name], name)
		shown[name] = true
		return func() { delete(shown, name) }
	}}
	var o observed
	first, second := o.add(config, "client", nil), o.add(config, "client", nil)
	require.Equal(t, map[string]bool{"client 1": true, "client 2": true}, shown)
	for range 100 {
		first()
		first = o.add(config, "client", nil)
	}
	require.Equal(t, map[string]bool{"client 1": true, "client 2": true}, shown)
	first()
	second()
	require.Empty(t, shown)
	o.add(&Config{}, "client", nil)()
}
