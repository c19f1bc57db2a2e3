package main

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
)

// TestFloodPackets wants every packet of a flood to be what a peer could send:
// one that is dropped for its form would show nothing.
func TestFloodPackets(t *testing.T) {
	for _, f := range floods {
		if f.name == "garbage" {
			continue
		}
		a, err := newAttacker(0, f.session, netip.MustParseAddrPort("127.0.0.1:9"))
		fatal(t, err)
		for range 100 {
			a.n++
			if b := f.packet(a); !wellFormed(b, a.conv.Load()) {
				t.Errorf("%s: %x", f.name, b[:min(len(b), 100)])
				break
			}
		}
		fatal(t, a.socket.Close())
	}
}

// wellFormed reports whether b is a packet of conv from one end to the other.
func wellFormed(b []byte, conv uint32) bool {
	if kind := binary.LittleEndian.Uint16(b[4:]); kind >= 0xf1 && kind <= 0xf3 {
		size := int(binary.LittleEndian.Uint16(b[6:]))
		switch kind {
		case 0xf2:
			return len(b) > 8
		case 0xf3:
			return size == len(b)-6 && binary.LittleEndian.Uint32(b[8:]) == conv
		}
		if size != len(b)-6 {
			return false
		}
		b = b[8:]
	}
	for len(b) >= segmentHead {
		size := int(binary.LittleEndian.Uint32(b[20:]))
		if binary.LittleEndian.Uint32(b) != conv || b[4] < cmdPush || b[4] > cmdPiece || size > len(b)-segmentHead {
			return false
		}
		b = b[segmentHead+size:]
	}
	return len(b) == 0
}

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
