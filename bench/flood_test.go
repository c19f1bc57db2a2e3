package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"strings"
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
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			a.n++
			if b := f.packet(a); !wellFormed(b, a.conv.Load()) {
				t.Errorf("%s: %x", f.name, b[:min(len(b), 100)])
				break
			}
		}
		if err := a.socket.Close(); err != nil {
			t.Error(err)
		}
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
		if err != nil {
			t.Fatal(err)
		}
		f := &flood{sources: 3, rate: 1, session: kind, packet: unknownPing}
		address := p.LocalAddr().(*net.UDPAddr).AddrPort()
		stop, _, err := f.start(address, address)
		if err != nil {
			t.Fatal(err)
		}
		if kind == proven {
			for range f.sources {
				_, err := p.Accept()
				if err != nil {
					t.Fatal(err)
				}
			}
		} else if s := p.Stats(); s.HalfOpen != f.sources || s.Backlog != 0 {
			t.Errorf("%d sessions half open, want %d; %d go to Accept", s.HalfOpen, f.sources, s.Backlog)
		}
		stop()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestFloodJSON wants one line for each metric of a flood.
func TestFloodJSON(t *testing.T) {
	var out bytes.Buffer
	args := []string{"-suite", "flood", "-cases", "fec-ratio", "-json", "-d", "5ms", "-rounds", "1"}
	if err := run(args, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	metrics := suites["flood"].metrics
	if len(lines) != len(metrics) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(metrics), &out)
	}
	for i, line := range lines {
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		r.Value = 0
		if want := (record{"flood", "fec-ratio", ours, metrics[i].name, metrics[i].unit, 0}); r != want {
			t.Errorf("%+v, want %+v", r, want)
		}
	}
}
