package main

import (
	"net"
	"testing"
)

// TestFloodSessions wants an attacker to have the session it is to have.
func TestFloodSessions(t *testing.T) {
	for _, kind := range []sessionKind{halfOpen, proven} {
		s := settings{mode: plain, window: bulkWindow}
		p, err := newKCPPeer(s)
		fatal(t, err)
		f := &flood{sources: 3, rate: 1, session: kind, packet: unknownPing}
		address := p.LocalAddr().(*net.UDPAddr).AddrPort()
		stop, _, err := f.start(address, address)
		fatal(t, err)
		if kind == proven {
			for range f.sources {
				_, err := p.Accept()
				fatal(t, err)
			}
		} else if s := p.Stats(); s.HalfOpen != f.sources || s.Backlog != 0 {
			t.Errorf("%d sessions half open, want %d; %d go to Accept", s.HalfOpen, f.sources, s.Backlog)
		}
		stop()
		fatal(t, p.Close())
	}
}
