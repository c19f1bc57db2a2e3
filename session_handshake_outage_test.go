package kcp

import (
	"bytes"
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/packetkeys"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/stretchr/testify/require"
)

// A listener gives up a handshake that takes too long. Its client, which knows
// nothing of that, learns of it from the answer to its next packet.

// outageTime is longer than a listener waits for a handshake to go on.
const outageTime = handshakeTime + 2*time.Second

// outage drops everything between client and server from now on, but for the
// first packets in each direction.
func (w *world) outage(up, down int) {
	server := netip.MustParseAddrPort(serverAddr)
	w.net.SetFilter(func(_, to netip.AddrPort, _ []byte) bool {
		passes := &down
		if to == server {
			passes = &up
		}
		*passes--
		return *passes >= 0
	})
}

// outageConfigs are the settings with which a session survives an outage or
// not, whatever they are.
func outageConfigs(t *testing.T, f func(t *testing.T, config *Config)) {
	for name, config := range map[string]*Config{
		"no key of resets": secured(Config{}),
		"key of resets":    resettable(Config{}),
	} {
		config.DialTimeout = 25 * time.Second
		t.Run(name, func(t *testing.T) { f(t, config) })
	}
}

// The last flight of a client is lost, and the session ends at the server before
// it is there. Whatever address the client has by then, it learns of that as soon
// as something of it arrives.
func TestTLSDroppedAfterDial(t *testing.T) {
	outageConfigs(t, func(t *testing.T, config *Config) {
		for seed, moved := range []bool{false, true} {
			inWorld(t, uint64(seed), clean, func(t *testing.T, w *world) {
				l := w.listen(config)
				e, pc := w.endpoint("10.0.0.2:5000", config)
				w.outage(2, 1000) // ClientHello has two packets
				a := w.dial(e)
				if moved {
					require.NoError(t, pc.Rebind("10.0.0.3:6000"))
				}
				time.Sleep(outageTime)
				require.Zero(t, l.Stats().Sessions)
				before := l.Stats()
				w.net.SetFilter(nil)
				_, err := a.Write([]byte("anyone there?"))
				require.NoError(t, err)
				require.Equal(t, roundTrip, wantReadErr(t, a, ErrReset))
				after := l.Stats()
				require.LessOrEqual(t, after.BytesSent-before.BytesSent, after.BytesReceived-before.BytesReceived)
			})
			inWorld(t, uint64(seed), clean, func(t *testing.T, w *world) { // with nothing to say
				w.listen(config)
				e, pc := w.endpoint("10.0.0.2:5000", config)
				w.outage(2, 1000) // ClientHello has two packets
				a := w.dial(e)
				if moved {
					require.NoError(t, pc.Rebind("10.0.0.3:6000"))
				}
				time.Sleep(outageTime)
				w.net.SetFilter(nil)
				require.LessOrEqual(t, wantReadErr(t, a, ErrReset), opening.MaxWait+roundTrip)
			})
		}
	})
}

// A client that moves before the server has its last flight is served.
func TestTLSMovesWithinHandshake(t *testing.T) {
	outageConfigs(t, func(t *testing.T, config *Config) {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			l := w.listen(config)
			e, pc := w.endpoint("10.0.0.2:5000", config)
			w.outage(2, 1000) // ClientHello has two packets
			a := w.dial(e)
			require.NoError(t, pc.Rebind("10.0.0.3:6000"))
			time.Sleep(time.Second)
			w.net.SetFilter(nil)
			b := accepted(t, l)
			bothWays(t, a, b, []byte("here"), []byte("there"))
			require.Equal(t, "10.0.0.3:6000", b.RemoteAddr().String())
		})
	})
}

// An outage within Dial is over before Dial gives up: it succeeds, whatever had
// arrived before. Or it has succeeded by then, and the session learns of its end.
func TestDialOutlivesOutage(t *testing.T) {
	t.Parallel()
	succeeds := func(t *testing.T, config *Config, up, down int) {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			l := w.listen(config)
			pc, err := w.net.Listen("10.0.0.2:5000")
			require.NoError(t, err)
			e := newEndpoint(config, true, w.socket(pc)) // which it closes once it has no session
			defer e.Close()
			w.outage(up, down)
			time.AfterFunc(outageTime, func() { w.net.SetFilter(nil) })
			start := time.Now()
			a, err := e.Dial(context.Background(), udpAddr(serverAddr))
			require.NoError(t, err, "%d up, %d down", up, down)
			if time.Since(start) < outageTime { // it has had the whole flight of the server
				require.LessOrEqual(t, wantReadErr(t, a, ErrReset), outageTime+opening.MaxWait+roundTrip)
				return
			}
			require.Less(t, time.Since(start), outageTime+opening.MaxWait+4*roundTrip)
			bothWays(t, a, accepted(t, l), []byte("here"), []byte("there"))
			require.Equal(t, 1, l.Stats().Sessions)
			require.Equal(t, 1, e.Stats().Sessions)
		})
	}
	outageConfigs(t, func(t *testing.T, config *Config) {
		for up := range 4 {
			for down := range 4 {
				succeeds(t, config, up, down)
			}
		}
	})
	aead, err := crypt.AESGCM(make([]byte, 16))
	require.NoError(t, err)
	for _, config := range []Config{{}, {Cipher: aead}, {SharedConvs: true}, {AddressValidation: ValidateAlways}} {
		config.DialTimeout = 25 * time.Second
		succeeds(t, &config, 1, 0)
	}
}

// A Dial with a conversation id of the caller's choice cannot begin anew with
// another: it fails as soon as the path works. With Config.SharedConvs the server
// takes the id again.
func TestDialOfChosenConvInOutage(t *testing.T) {
	for _, shared := range []bool{false, true} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			config := &Config{DialTimeout: 25 * time.Second, SharedConvs: shared}
			w.listen(config)
			e, _ := w.endpoint("10.0.0.2:5000", config)
			w.outage(1, 0)
			time.AfterFunc(outageTime, func() { w.net.SetFilter(nil) })
			start := time.Now()
			_, err := e.DialWith(context.Background(), udpAddr(serverAddr), DialOptions{Conv: id(7)})
			if shared {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, ErrReset)
			}
			require.Less(t, time.Since(start), outageTime+opening.MaxWait+roundTrip)
		})
	}
}

// A server that always drops what is dialled does not keep a Dial busy, nor does
// it end later than its time-out.
func TestDialBeginsAnewSometimes(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		hellos := 0
		pc, err := w.net.Listen(serverAddr)
		require.NoError(t, err)
		defer pc.Close()
		go func() {
			b := make([]byte, 2000)
			for {
				n, from, err := pc.ReadFrom(b)
				if err != nil {
					return
				}
				p := inPacket{Packet: protect.Packet{Data: b[:n]}, conv: decodeHeader(b[:n]).conv}
				f, _ := admission.Parse(plainPacket, p.Data, p.conv)
				hellos++
				_, _ = pc.WriteTo(packetOf(p.conv, bytesOf(signal{sigAbort, f.Hello.TS, 0})), from)
			}
		}()
		e, _ := w.endpoint("10.0.0.2:5000", nil)
		_, err = e.Dial(context.Background(), udpAddr(serverAddr))
		require.ErrorIs(t, err, ErrReset)
		require.Equal(t, maxDials, hellos)
		require.Zero(t, e.Stats().Sessions)
	})
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		config := &Config{DialTimeout: outageTime + roundTrip/2}
		w.listen(config)
		e, _ := w.endpoint("10.0.0.2:5000", config)
		w.outage(1, 0)
		time.AfterFunc(outageTime-time.Second, func() { w.outage(1000, 1) })
		start := time.Now()
		_, err := e.Dial(context.Background(), udpAddr(serverAddr))
		var none *NoAnswerError
		require.ErrorAs(t, err, &none)
		require.Equal(t, config.DialTimeout, none.Waited)
		require.Equal(t, config.DialTimeout, time.Since(start))
	})
}

// What does not come from the server, and for this session, ends no handshake; and
// an end that has dropped one answers nothing but what goes on with it.
func TestForgedEndsOfHandshakes(t *testing.T) {
	server, client := netip.MustParseAddrPort(serverAddr), netip.MustParseAddrPort("10.0.0.2:5000")
	abort := func(c *Conn, token uint32) []byte {
		return packetOf(c.Conv(), bytesOf(signal{sigAbort, token, 0}))
	}
	inWorld(t, 1, clean, func(t *testing.T, w *world) { // not in the clear, once there are keys; nor under others
		l := w.listen(secured(Config{}))
		e, _ := w.endpoint("10.0.0.2:5000", secured(Config{}))
		w.outage(2, 1000)
		a := w.dial(e)
		a.mu.Lock()
		token := a.hs.token
		a.mu.Unlock()
		for _, under := range []byte{0, 0xa1, 0xa2, 0xa3} {
			p := abort(a, token)
			if under != 0 {
				p = append(append(make([]byte, packetkeys.HeaderSize), p...), make([]byte, packetkeys.TagSize)...)
				copy(p, p[packetkeys.HeaderSize:][:4])
				p[4] = under
			}
			w.net.Inject(server, client, p)
		}
		time.Sleep(time.Second)
		w.net.SetFilter(nil)
		bothWays(t, a, accepted(t, l), []byte("here"), []byte("there"))
	})
	for _, config := range []*Config{{}, secured(Config{})} { // nor with another token, or after the handshake has gone on
		inWorld(t, 2, clean, func(t *testing.T, w *world) {
			l := w.listen(config)
			e, _ := w.endpoint("10.0.0.2:5000", config)
			w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
				if from == client {
					for token := range uint32(100) {
						w.net.Inject(to, from, packetOf(decodeHeader(p).conv, bytesOf(signal{sigAbort, token, 0})))
					}
				}
				return true
			})
			a := w.dial(e)
			require.EqualValues(t, 1, e.Stats().Dialled)
			bothWays(t, a, accepted(t, l), []byte("here"), []byte("there"))
		})
	}
	inWorld(t, 3, clean, func(t *testing.T, w *world) { // answers are not answered, nor what is too short or does not open
		l := w.listen(secured(Config{}))
		e, _ := w.endpoint("10.0.0.2:5000", secured(Config{}))
		w.outage(2, 1000)
		a := w.dial(e)
		time.Sleep(outageTime)
		answers := 0
		var answer []byte
		w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
			if from == server {
				answers++
				answer = bytes.Clone(p)
			}
			return true
		})
		wantReadErr(t, a, ErrReset)
		time.Sleep(time.Second)
		w.settle()
		sent := answers
		w.net.Inject(client, server, answer)
		for size := range packetkeys.Overhead + headerSize + 1 {
			for kind := byte(0xa1); kind <= 0xa3; kind++ {
				p := append(bytes.Clone(answer[:4]), content(uint64(size), size)...)
				p[4%len(p)] = kind
				w.net.Inject(client, server, p[:min(len(p), size)])
			}
		}
		p := content(1, 1200)
		copy(p, answer[:5])
		w.net.Inject(client, server, p)
		time.Sleep(time.Second)
		w.settle()
		require.Equal(t, sent, answers)
		p = content(2, packetkeys.Overhead+headerSize+1)
		copy(p, answer[:4])
		p[4] = 0xa2
		w.net.Inject(client, server, p)
		time.Sleep(time.Second)
		w.settle()
		require.Equal(t, sent+1, answers)
		require.Less(t, len(answer), len(p))
		require.Zero(t, l.Stats().Sessions)
	})
}
