package kcp

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// owned opens the server on a socket that its endpoint closes, as that of Listen.
func (w *world) owned(config *Config) *Listener {
	w.t.Helper()
	pc, err := w.net.Listen(serverAddr)
	require.NoError(w.t, err)
	e := newEndpoint(config, true, w.socket(pc))
	w.t.Cleanup(func() { _ = e.Close() }) // the test may have closed it
	l, err := e.Listen()
	require.NoError(w.t, err)
	return l
}

// isClosed reports whether the endpoint is closed.
func (e *Endpoint) isClosed() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.closed
}

// dropping are the calls that end a listener with the sessions that it has not accepted.
var dropping = map[string]func(l *Listener) error{
	"Listener.Close": func(l *Listener) error { return l.Close() },
	"Shutdown":       func(l *Listener) error { return l.Shutdown(context.Background()) },
	"Endpoint.Close": func(l *Listener) error { return l.Endpoint().Close() },
}

// A client learns at once that its server has ended before it has accepted the
// session: within the handshake, and in the backlog.
func TestDroppedSessionIsTold(t *testing.T) {
	configs := map[string]*Config{
		"plain":    {},
		"validate": {AddressValidation: ValidateAlways},
		"FEC":      {FEC: FEC{Data: 10, Parity: 3}},
		"TLS":      {TLS: testTLS()},
	}
	for name, c := range testCiphers(t, 1) {
		configs[name] = &Config{Cipher: c}
	}
	for how, end := range dropping {
		for name, config := range configs {
			for _, pause := range []time.Duration{0, roundTrip / 4, roundTrip * 3 / 4} {
				for i := range 4 {
					write, loses := i&1 != 0, i&2 != 0
					if loses && (how == "Endpoint.Close" || pause > roundTrip/2 && !write) {
						continue // nothing of the client arrives that could be answered
					}
					t.Run(fmt.Sprint(how, " ", name, " after ", pause, " write ", write, " loses ", loses), func(t *testing.T) {
						inWorld(t, 21, clean, func(t *testing.T, w *world) {
							w.dropsSession(config, pause, write, loses, end)
						})
					})
				}
			}
		}
	}
}

// dropsSession dials a session, and ends the server after a pause. If loses is set, the
// first packet that the server sends afterwards is lost.
func (w *world) dropsSession(config *Config, pause time.Duration, write, loses bool, end func(*Listener) error) {
	l := w.owned(config)
	client, _ := w.endpoint("10.0.0.2:5000", config)
	a := w.dial(client)
	time.Sleep(pause)
	if loses {
		w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
			lost := loses && from.String() == serverAddr
			loses = loses && !lost
			return !lost
		})
	}
	start, ended := time.Now(), make(chan error, 1)
	go func() { ended <- end(l) }()
	if write {
		_, err := a.Write([]byte("question"))
		require.NoError(w.t, err)
	}
	require.NoError(w.t, a.SetReadDeadline(start.Add(time.Minute)))
	_, err := a.Read(make([]byte, 1))
	require.ErrorIs(w.t, err, ErrReset)
	require.Less(w.t, time.Since(start), time.Second)
	require.NoError(w.t, <-ended)
	time.Sleep(time.Until(start.Add(3*time.Second + time.Millisecond)))
	require.True(w.t, l.ep.isClosed())
}

// A client whose WELCOME is lost learns that the listener has been closed.
func TestDroppedDialIsRefused(t *testing.T) {
	for how, end := range dropping {
		for _, config := range []*Config{nil, {AddressValidation: ValidateAlways}, {TLS: testTLS()}} {
			if how == "Endpoint.Close" {
				continue // nobody is there any more
			}
			inWorld(t, 21, clean, func(t *testing.T, w *world) {
				l := w.owned(config)
				client, _ := w.endpoint("10.0.0.2:5000", config)
				heardFrom, ended := time.Now().Add(3*roundTrip+time.Millisecond), make(chan error, 1)
				w.net.SetFilter(func(from, _ netip.AddrPort, packet []byte) bool {
					return time.Now().After(heardFrom) || from.String() != serverAddr || len(packet) == headerSize // a COOKIE
				})
				time.AfterFunc(3*roundTrip, func() { ended <- end(l) })
				_, err := client.Dial(context.Background(), udpAddr(serverAddr))
				require.ErrorIs(t, err, ErrRefused, how)
				require.Less(t, w.net.Elapsed(), time.Second, how)
				require.NoError(t, <-ended)
			})
		}
	}
}

// Strangers that have opened sessions keep the socket for three seconds at most,
// whatever they send, and get no more bytes than they have sent. The last ABORT of
// Endpoint.Close is within the anti-amplification limit.
func TestStrangersHoldNoSocket(t *testing.T) {
	for how, end := range dropping {
		inWorld(t, 21, clean, func(t *testing.T, w *world) {
			l := w.owned(nil)
			sent, got := map[netip.AddrPort]int{}, map[netip.AddrPort]int{}
			w.net.SetFilter(func(from, to netip.AddrPort, packet []byte) bool {
				if from.String() == serverAddr {
					got[to] += len(packet)
				}
				return true
			})
			stranger := func(i int, signals ...signal) {
				packet := make([]byte, len(signals)*headerSize)
				for n, s := range signals {
					s.encode(header{conv: uint32(i + 1), wnd: 128}, packet[n*headerSize:])
				}
				sent[floodAddr(i)] += len(packet)
				w.net.Inject(floodAddr(i), netip.MustParseAddrPort(serverAddr), packet)
			}
			for i := range 100 {
				stranger(i, signal{sigHello, 0, uint32(i + 1)}, infoSignal())
			}
			time.Sleep(roundTrip)
			require.Equal(t, 100, l.Stats().HalfOpen)
			start := time.Now()
			ended := make(chan error, 1)
			go func() { ended <- end(l) }()
			for i := 0; time.Since(start) < 3*time.Second; i++ {
				stranger(i%100, signal{sigHello, 0, uint32(i%100 + 1)}, infoSignal())
				stranger(i%100, signal{sigPing, 1, 2})
				stranger(i%100, signal{sigConfirm, 1, uint32(i%100 + 1)})
				stranger(100+i, signal{sigHello, 0, uint32(i + 1)}, infoSignal())
				time.Sleep(roundTrip)
			}
			require.NoError(t, <-ended)
			require.LessOrEqual(t, time.Since(start), 3*time.Second+roundTrip)
			time.Sleep(time.Millisecond)
			require.True(t, l.ep.isClosed(), how)
			for addr, n := range got {
				if how == "Endpoint.Close" {
					n -= headerSize
				}
				require.LessOrEqual(t, n, sent[addr], how)
			}
		})
	}
}

// Endpoint.Close ends a Shutdown that waits to answer the peers of dropped sessions.
func TestCloseCutsTheHoldOfShutdown(t *testing.T) {
	inWorld(t, 21, clean, func(t *testing.T, w *world) {
		l := w.owned(nil)
		client, _ := w.endpoint("10.0.0.2:5000", nil)
		w.dial(client)
		start, ended := time.Now(), make(chan error, 1)
		go func() { ended <- l.Shutdown(context.Background()) }()
		time.Sleep(roundTrip)
		require.NoError(t, l.Endpoint().Close())
		require.NoError(t, <-ended)
		require.Equal(t, roundTrip, time.Since(start))
	})
}
