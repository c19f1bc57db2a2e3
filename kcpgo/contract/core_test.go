package contract

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xtaci/kcp-go/v5"
)

// pair is two state machines that are joined by packets that wait.
type pair struct {
	a, b   *kcp.KCP
	toA    [][]byte
	toB    [][]byte
	inputs []int // what Input has returned
}

func newPair() *pair {
	p := new(pair)
	p.a = kcp.NewKCP(7, func(buf []byte, size int) { p.toB = append(p.toB, bytes.Clone(buf[:size])) })
	p.b = kcp.NewKCP(7, func(buf []byte, size int) { p.toA = append(p.toA, bytes.Clone(buf[:size])) })
	return p
}

// deliver gives each what waits for it.
func (p *pair) deliver() {
	toA, toB := p.toA, p.toB
	p.toA, p.toB = nil, nil
	for _, b := range toB {
		p.inputs = append(p.inputs, p.b.Input(b, kcp.IKCP_PACKET_REGULAR, false))
	}
	for _, b := range toA {
		p.inputs = append(p.inputs, p.a.Input(b, kcp.IKCP_PACKET_REGULAR, false))
	}
}

// run lets time pass, with the default interval.
func (p *pair) run(d time.Duration) {
	for range int(d / (10 * time.Millisecond)) {
		time.Sleep(10 * time.Millisecond)
		p.a.Update()
		p.b.Update()
		p.deliver()
	}
}

// The state machine takes messages, and says what is there.
func TestCoreMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair()
		buf := make([]byte, 1<<16)
		if n := p.a.PeekSize(); n != -1 {
			t.Error("PeekSize of nothing:", n)
		}
		if n := p.a.Recv(buf); n != -1 {
			t.Error("Recv of nothing:", n)
		}
		if n := p.a.Send(nil); n != -1 {
			t.Error("Send of nothing:", n)
		}
		sizes := []int{1, 10, 1376, 1377, 20000}
		for _, n := range sizes {
			if code := p.a.Send(pattern(n)); code != 0 {
				t.Fatal("Send", code)
			}
		}
		if n := p.a.WaitSnd(); n != 1+1+1+2+15 {
			t.Error("WaitSnd", n)
		}
		p.run(5 * time.Second)
		for i, n := range sizes {
			if got := p.b.PeekSize(); got != n {
				t.Fatalf("message %d: PeekSize %d, want %d", i, got, n)
			}
			if n > 1 {
				if code := p.b.Recv(buf[:n-1]); code != -2 {
					t.Error("Recv into too little:", code)
				}
			}
			if got := p.b.Recv(buf); got != n || !bytes.Equal(buf[:n], pattern(n)) {
				t.Fatalf("message %d: Recv %d, want %d", i, got, n)
			}
		}
		if n := p.a.WaitSnd(); n != 0 {
			t.Error("not acknowledged:", n)
		}
		for _, code := range p.inputs {
			wrong(t, code != 0, "Input", code)
		}
	})
}

// Input names what is wrong with a packet.
func TestCoreInputCodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair()
		p.a.NoDelay(1, 10, 0, 1)
		p.a.Send(pattern(10))
		p.a.Update()
		good := p.toB[0]
		for name, c := range map[string]struct {
			change func(b []byte) []byte
			code   int
		}{
			"short":     {func(b []byte) []byte { return b[:23] }, -1},
			"conv":      {func(b []byte) []byte { b[0]++; return b }, -1},
			"length":    {func(b []byte) []byte { b[20]++; return b }, -2},
			"command":   {func(b []byte) []byte { b[4] = 80; return b }, -3},
			"command 2": {func(b []byte) []byte { b[4] = 85; return b }, -3},
		} {
			if code := p.b.Input(c.change(bytes.Clone(good)), kcp.IKCP_PACKET_REGULAR, false); code != c.code {
				t.Errorf("%s: %d, want %d", name, code, c.code)
			}
		}
		wrong(t, p.b.PeekSize() != -1, "a bad packet was taken")
		if code := p.b.Input(good, kcp.IKCP_PACKET_REGULAR, false); code != 0 || p.b.PeekSize() != 10 {
			t.Error("the good packet:", code)
		}
	})
}

// With ackNoDelay an acknowledgement leaves at once, otherwise with Update.
func TestCoreAckNoDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair()
		p.a.Update()
		p.b.Update()
		p.a.NoDelay(1, 10, 0, 1)
		p.a.Send(pattern(10))
		p.a.Send(pattern(20))
		time.Sleep(100 * time.Millisecond)
		p.a.Update()
		p.b.Input(p.toB[0], kcp.IKCP_PACKET_REGULAR, false)
		wrong(t, len(p.toA) != 0, "an acknowledgement left before Update")
		p.b.Input(p.toB[0], kcp.IKCP_PACKET_REGULAR, true)
		wrong(t, len(p.toA) != 1, "no acknowledgement with ackNoDelay")
	})
}

// What an acknowledgement makes room for leaves from within Input.
func TestCoreInputSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair()
		p.a.NoDelay(1, 10, 0, 1)
		p.a.WndSize(2, 128)
		for range 3 {
			p.a.Send(pattern(1000))
		}
		p.a.Update()
		if len(p.toB) != 2 {
			t.Fatal("packets at first:", len(p.toB))
		}
		for _, b := range p.toB {
			p.b.Input(b, kcp.IKCP_PACKET_REGULAR, true)
		}
		p.toB = nil
		p.a.Input(p.toA[0], kcp.IKCP_PACKET_REGULAR, false)
		wrong(t, len(p.toB) != 1, "packets after the acknowledgement:", len(p.toB))
	})
}

// Setters return codes, and take what they take.
func TestCoreSetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair()
		for _, c := range []struct{ mtu, code int }{{24, -1}, {0, -1}, {-5, -1}, {100, 0}, {1500, 0}} {
			if code := p.a.SetMtu(c.mtu); code != c.code {
				t.Errorf("SetMtu(%d): %d", c.mtu, code)
			}
		}
		p.a.SetMtu(124)
		p.a.Send(pattern(1000))
		if n := p.a.WaitSnd(); n != 10 {
			t.Error("segments of 100 bytes:", n)
		}
		wrong(t, p.a.WndSize(64, 256) != 0 || p.a.WndSize(-1, -1) != 0 || p.a.NoDelay(-1, -1, -1, -1) != 0 || p.a.NoDelay(1, 1, 2, 1) != 0, "codes")
		p.a.SetLogger(kcp.IKCP_LOG_ALL, func(msg string, args ...any) {})
		p.a.SetLogger(0, nil)
		p.run(time.Second)
		wrong(t, p.b.PeekSize() != 1000, "PeekSize", p.b.PeekSize())
		for range p.toB {
			t.Error("something is left")
		}
		wrong(t, p.a.Check() == 0, "Check is 0")
	})
}
