//go:build !linux

package main

import (
	"context"
	"errors"

	"github.com/arqnet/kcp"
)

// upgradeText says nothing where SIGHUP ends the command.
const upgradeText = ""

// upgrader and predecessor exist on Linux only.
type (
	upgrader    struct{}
	predecessor struct{}
)

func inherit() (*predecessor, error) { return nil, nil }

func (*netcat) upgradeOnHangup(context.Context, *kcp.Listener, []string) *upgrader { return nil }

func (*upgrader) replaced() bool             { return false }
func (*upgrader) wait(context.Context) error { return nil }

func (*predecessor) wait(context.Context) {}
func (*predecessor) takeOver(context.Context, *kcp.Config) (*kcp.Listener, error) {
	return nil, errors.ErrUnsupported
}
