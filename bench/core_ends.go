package main

import (
	"fmt"
	"time"
	_ "unsafe" // for linkname

	"github.com/arqnet/kcp"

	"github.com/arqnet/kcp/congestion"
	kcpgo "github.com/xtaci/kcp-go/v5"
)

// coreEnd is one end of a conversation: a state machine, whichever it is.
type coreEnd interface {
	Send(p []byte) error
	Input(packet []byte) error
	PeekSize() int // of the next message; negative if there is none
	Recv(p []byte) (int, error)
	Tick(now uint32) // tells the time and lets the interval's flush happen
}

// Settings of both ends of both implementations.
const (
	coreMTU        = 1400
	coreInterval   = 10 // ms
	coreFastResend = 2
	coreConv       = 1
)

// newCoreEnd returns a state machine of the named implementation. The packet
// given to output is valid during the call only.
func newCoreEnd(impl string, window int, output func(packet []byte)) (coreEnd, error) {
	switch impl {
	case ours:
		return newOurEnd(window, output)
	case kcpGo:
		return newKCPGoEnd(window, output), nil
	}
	return nil, fmt.Errorf("no implementation %q", impl)
}

// ourEnd is this module's state machine.
type ourEnd struct{ *kcp.KCP }

func newOurEnd(window int, output func([]byte)) (coreEnd, error) {
	k := kcp.New(coreConv, output)
	k.SetNoDelay(kcp.NoDelayOn)
	k.SetFastResend(coreFastResend)
	k.SetCongestionControl(congestion.NewNone())
	if err := k.SetMTU(coreMTU); err != nil {
		return nil, err
	}
	if err := k.SetInterval(coreInterval); err != nil {
		return nil, err
	}
	if err := k.SetWindow(window, window); err != nil {
		return nil, err
	}
	return ourEnd{k}, nil
}

func (e ourEnd) Send(p []byte) error {
	_, err := e.KCP.Send(p)
	return err
}

func (e ourEnd) Tick(now uint32) { e.Update(now) }

// kcpGoEnd is kcp-go's state machine.
type kcpGoEnd struct{ *kcpgo.KCP }

func newKCPGoEnd(window int, output func([]byte)) coreEnd {
	k := kcpgo.NewKCP(coreConv, func(buf []byte, size int) { output(buf[:size]) })
	k.NoDelay(1, coreInterval, coreFastResend, 1)
	k.SetMtu(coreMTU)
	k.WndSize(window, window)
	return kcpGoEnd{k}
}

func (e kcpGoEnd) Send(p []byte) error {
	if code := e.KCP.Send(p); code < 0 {
		return fmt.Errorf("kcp-go: Send returns %d", code)
	}
	return nil
}

// Input leaves acknowledgements to be collected, kcp-go's default: sending
// one at once for every packet costs it far more.
func (e kcpGoEnd) Input(packet []byte) error {
	if code := e.KCP.Input(packet, kcpgo.IKCP_PACKET_REGULAR, false); code < 0 {
		return fmt.Errorf("kcp-go: Input returns %d", code)
	}
	return nil
}

func (e kcpGoEnd) Recv(p []byte) (int, error) {
	n := e.KCP.Recv(p)
	if n < 0 {
		return 0, fmt.Errorf("kcp-go: Recv returns %d", n)
	}
	return n, nil
}

func (e kcpGoEnd) Tick(now uint32) {
	setKCPGoClock(now)
	e.Update()
}

// kcpGoEpoch is the instant from which kcp-go counts its milliseconds.
//
//go:linkname kcpGoEpoch github.com/xtaci/kcp-go/v5.refTime
var kcpGoEpoch time.Time

// setKCPGoClock makes kcp-go's clock show now. It goes on by itself from
// there. There must be no session of kcp-go at work at the time.
func setKCPGoClock(now uint32) {
	kcpGoEpoch = time.Now().Add(-time.Duration(now) * time.Millisecond)
}
