//go:build !linux

package udp

import "syscall"

// whole does nothing: what other systems offer against fragments differs.
type whole struct{}

func (*whole) beginOn(syscall.Conn, *refusals) {}
func (*whole) holds() bool                     { return false }
func (*whole) release(syscall.Conn) error      { return nil }

func (*whole) writeOn(_ syscall.Conn, _ bool, write func() error) error { return write() }
