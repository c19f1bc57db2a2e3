package kcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	engine "github.com/arqnet/kcp"
)

// legacy is a peer without the signals of this package, such as kcp-go.
type legacy struct {
	pc    net.PacketConn
	start time.Time

	mu  sync.Mutex // guards kcp
	kcp *engine.KCP
}

// legacy begins a session at an address.
func (w *world) legacy(addr string, conv uint32) *legacy {
	w.Helper()
	to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(serverAddr))
	p := &legacy{pc: w.socket(addr), start: time.Now()}
	p.kcp = engine.New(conv, func(packet []byte) { _, _ = p.pc.WriteTo(packet, to) })
	w.Cleanup(func() { _ = p.pc.Close() })
	go func() {
		b := make([]byte, 2000)
		for {
			n, _, err := p.pc.ReadFrom(b)
			if err != nil {
				return
			}
			p.do(func() { _ = p.kcp.Input(b[:n]) })
		}
	}()
	go func() {
		for p.do(func() {}) {
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return p
}

// do calls f, and updates. It reports whether the socket is open.
func (p *legacy) do(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.kcp.Update(uint32(time.Since(p.start).Milliseconds()))
	return !errors.Is(p.pc.SetDeadline(time.Time{}), net.ErrClosed)
}

func (p *legacy) send(text string) { p.do(func() { _, _ = p.kcp.Send([]byte(text)) }) }

// push is a packet with the first segment of a session.
func push(conv uint32, text string) []byte {
	b := binary.LittleEndian.AppendUint32(nil, conv)
	b = append(b, IKCP_CMD_PUSH, 0, 128, 0)
	b = append(b, make([]byte, 12)...) // ts, sn, una
	b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
	return append(b, text...)
}

// accept returns the next session, whose first message is text.
func (w *world) accept(l *Listener, text string) *UDPSession {
	w.Helper()
	s, err := l.AcceptKCP()
	must(w, err)
	w.Cleanup(func() { s.Close() })
	w.want(s, text)
	return s
}

// goesOn requires that the session is not over.
func (w *world) goesOn(s *UDPSession) {
	w.Helper()
	s.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		w.Error("the session is over:", err)
	}
	s.SetReadDeadline(time.Time{})
}

// TestForgedPacketEndsNoSession has someone send first packets in the name of a
// peer: its session goes on, be it of this package or of kcp-go.
func TestForgedPacketEndsNoSession(t *testing.T) {
	inWorld(t, slow, func(w *world) {
		client, server, l := w.join()
		from, to := netip.MustParseAddrPort(clientAddr), netip.MustParseAddrPort(serverAddr)
		for conv := range uint32(3) {
			w.network.Inject(from, to, push(conv, "forged"))
			forged := w.accept(l, "forged")
			if _, err := forged.Write([]byte("banner")); err != nil { // goes to the client
				t.Log(err)
			}
			w.goesOn(server)
		}
		for range 2 {
			if _, err := client.Write([]byte("more")); err != nil {
				t.Fatal(err)
			}
			w.want(server, "more")
			if _, err := server.Write([]byte("answer")); err != nil {
				t.Fatal(err)
			}
			w.want(client, "answer")
		}
	})
	inWorld(t, slow, func(w *world) {
		l := w.listen(serverAddr)
		client := w.legacy(clientAddr, 5)
		client.send("first")
		server := w.accept(l, "first")
		server.Write([]byte("answer"))
		time.Sleep(time.Second)
		w.network.Inject(netip.MustParseAddrPort(clientAddr), netip.MustParseAddrPort(serverAddr), push(6, "forged"))
		forged := w.accept(l, "forged")
		forged.Write(bytes.Repeat([]byte("banner"), 1000))
		w.goesOn(server)
		client.send("more")
		w.want(server, "more")
	})
}
