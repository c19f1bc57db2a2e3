package main

import (
	"fmt"
	"time"
	_ "unsafe" // for linkname

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	kcpgo "github.com/xtaci/kcp-go/v5"
)

// driver is a state machine together with what its session does with it. All
// times are of the simulation.
type driver interface {
	write(now time.Duration, p []byte) error      // sends p and flushes as Write does
	input(now time.Duration, packet []byte) error // takes one packet
	answer(now time.Duration)                     // does what follows a batch of input
	wake(now time.Duration)                       // does what is due
	next(now time.Duration) (time.Duration, bool) // when wake is to be called
	read(now time.Duration, p []byte) (int, error)
	backlog() int // segments waiting or in flight
}

// simImpl makes an end of an implementation. The packet given to output is
// valid during the call only.
type simImpl func(output func(packet []byte)) (driver, error)

const simConv = 1

// simClock is the millisecond clock of a state machine.
func simClock(now time.Duration) uint32 { return uint32(now / time.Millisecond) }

// sessionEnd is our state machine driven as Conn drives it: it flushes after
// every write and after every batch of input, and else when NextFlush says.
type sessionEnd struct {
	*machine.KCP
	segment int // payload bytes
}

// newSessionImpl returns our implementation as sessions of config run it, to a peer that
// is one as well.
func newSessionImpl(config kcp.Config) simImpl { return newSessionTo(config, true) }

// newSessionTo is newSessionImpl for a peer that is a session of ours if alike, and
// otherwise one of kcp-go or of the reference.
func newSessionTo(config kcp.Config, alike bool) simImpl {
	return func(output func([]byte)) (driver, error) {
		if err := config.Validate(); err != nil {
			return nil, err
		}
		k := machine.New(simConv, output)
		mtu := opening.CompatRoot.Machine(&config, k, alike)
		k.SetClockMicros(0)
		return &sessionEnd{KCP: k, segment: mtu - 24}, nil
	}
}

func (e *sessionEnd) write(now time.Duration, p []byte) error {
	const batch = 64 // segments between two flushes
	for len(p) > 0 {
		for i := 0; i < batch && len(p) > 0; i++ {
			n, err := e.Send(p[:min(len(p), e.segment)])
			if err != nil {
				return err
			}
			p = p[n:]
		}
		e.SetClockMicros(uint64(now / time.Microsecond))
		e.Flush()
	}
	return nil
}

func (e *sessionEnd) input(now time.Duration, packet []byte) error {
	e.SetClockMicros(uint64(now / time.Microsecond))
	return e.Input(packet)
}

func (e *sessionEnd) answer(now time.Duration) {
	if at, ok := e.NextFlush(); ok && int32(at-simClock(now)) <= 0 {
		e.SetClockMicros(uint64(now / time.Microsecond))
		e.Flush()
	}
}

func (e *sessionEnd) wake(now time.Duration) { e.answer(now) }

func (e *sessionEnd) next(now time.Duration) (time.Duration, bool) {
	at, ok := e.NextFlush()
	wait := time.Duration(int32(at - simClock(now)))
	return now.Truncate(time.Millisecond) + wait*time.Millisecond, ok
}

// read takes whole messages only; the messages of the simulations fit.
func (e *sessionEnd) read(now time.Duration, p []byte) (int, error) {
	n, err := readMessages(e, p)
	if n > 0 {
		e.answer(now) // a shut window may have opened
	}
	return n, err
}

func (e *sessionEnd) backlog() int { return e.WaitSend() }

// messages is the reading side that all state machines have.
type messages interface {
	PeekSize() int
	Recv(p []byte) (int, error)
}

// readMessages fills p with as many whole messages as fit.
func readMessages(m messages, p []byte) (n int, err error) {
	for {
		size := m.PeekSize()
		if size < 0 || n+size > len(p) {
			if size > len(p) {
				err = fmt.Errorf("message of %d bytes for a buffer of %d", size, len(p))
			}
			return n, err
		}
		if _, err = m.Recv(p[n : n+size]); err != nil {
			return n, err
		}
		n += size
	}
}

// tickEnd is our state machine without any extension, driven by a periodic
// Update alone: the reference, byte for byte, as its own test runs it.
type tickEnd struct {
	*kcp.KCP
	interval time.Duration
	tick     time.Duration // the next one
}

// newTickImpl returns the reference with a set-up of its own.
func newTickImpl(interval time.Duration, setup func(k *kcp.KCP) error) simImpl {
	return func(output func([]byte)) (driver, error) {
		k := kcp.New(simConv, output)
		if err := k.SetInterval(uint32(interval / time.Millisecond)); err != nil {
			return nil, err
		}
		if err := setup(k); err != nil {
			return nil, err
		}
		k.Update(0)
		return &tickEnd{KCP: k, interval: interval, tick: interval}, nil
	}
}

func (e *tickEnd) write(now time.Duration, p []byte) error {
	_, err := e.Send(p)
	return err
}

// input tells the time first: users call Update every millisecond, though it
// flushes only when its interval has passed.
func (e *tickEnd) input(now time.Duration, packet []byte) error {
	e.SetClock(simClock(now))
	return e.Input(packet)
}

func (e *tickEnd) answer(time.Duration) {}

func (e *tickEnd) wake(now time.Duration) {
	e.Update(simClock(now))
	for e.tick <= now {
		e.tick += e.interval
	}
}

func (e *tickEnd) next(time.Duration) (time.Duration, bool) { return e.tick, true }

func (e *tickEnd) read(_ time.Duration, p []byte) (int, error) { return readMessages(e, p) }

func (e *tickEnd) backlog() int { return e.WaitSend() }

// kcpGoSessionEnd is kcp-go's state machine driven as its UDPSession drives it
// with its defaults: Write flushes, Input flushes by itself where it sees
// reason to, acknowledgements wait for the timer, and that runs again after
// what flush returns, an interval at most. It has to run inside frozen.
type kcpGoSessionEnd struct {
	kcpGoEnd
	segment int
	timer   time.Duration
}

//go:linkname kcpGoFlush github.com/xtaci/kcp-go/v5.(*KCP).flush
func kcpGoFlush(k *kcpgo.KCP, what kcpgo.FlushType) uint32

// newKCPGoImpl returns kcp-go with NoDelay's parameters and a window. Every
// packet is sent copies times more, as SetDUP does.
func newKCPGoImpl(nodelay, interval, resend, nc, window, copies int) simImpl {
	return func(output func([]byte)) (driver, error) {
		k := kcpgo.NewKCP(simConv, func(buf []byte, size int) {
			for range copies + 1 {
				output(buf[:size])
			}
		})
		k.NoDelay(nodelay, interval, resend, nc)
		k.WndSize(window, window)
		k.SetMtu(coreMTU)
		return &kcpGoSessionEnd{kcpGoEnd: kcpGoEnd{k}, segment: coreMTU - 24}, nil
	}
}

func (e *kcpGoSessionEnd) write(now time.Duration, p []byte) error {
	for len(p) > 0 {
		n := min(len(p), e.segment)
		if err := e.Send(p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	setKCPGoClock(simClock(now))
	kcpGoFlush(e.KCP, kcpgo.IKCP_FLUSH_FULL)
	return nil
}

func (e *kcpGoSessionEnd) input(now time.Duration, packet []byte) error {
	setKCPGoClock(simClock(now))
	return e.Input(packet)
}

func (e *kcpGoSessionEnd) answer(time.Duration) {}

func (e *kcpGoSessionEnd) wake(now time.Duration) {
	setKCPGoClock(simClock(now))
	e.timer = now + time.Duration(kcpGoFlush(e.KCP, kcpgo.IKCP_FLUSH_FULL))*time.Millisecond
}

func (e *kcpGoSessionEnd) next(time.Duration) (time.Duration, bool) { return e.timer, true }

func (e *kcpGoSessionEnd) read(_ time.Duration, p []byte) (int, error) {
	return readMessages(e, p)
}

func (e *kcpGoSessionEnd) backlog() int { return e.WaitSnd() }
