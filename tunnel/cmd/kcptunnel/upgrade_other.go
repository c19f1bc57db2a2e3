//go:build !linux

package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/arqnet/kcp/tunnel"
)

// upgrader is what it is on Linux. Elsewhere a process does not replace another one.
type upgrader struct{ after func() }

func newUpgrader(*slog.Logger, []string, *tunnel.ServerConfig, *look, string) (*upgrader, error) {
	return new(upgrader), nil
}

func (u *upgrader) ready(*tunnel.Server) {}

func (u *upgrader) serve(ctx context.Context, s *tunnel.Server, _, reloads <-chan os.Signal) error {
	defer onSignal(reloads, func(os.Signal) { s.Reload() })()
	return s.Serve(ctx)
}
