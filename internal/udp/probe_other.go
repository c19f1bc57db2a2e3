//go:build !linux

package udp

import "syscall"

const canProbe = false

// probing writes ordinary datagrams: what other systems offer for probes
// differs.
type probing struct{}

func (*probing) write(_ syscall.Conn, write func() error) error { return write() }
