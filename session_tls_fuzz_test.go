package kcp

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/packetkeys"
	"github.com/stretchr/testify/require"
)

// FuzzTLSHandshake puts a packet of the handshake, with the right tokens and well
// sealed, in front of one that is on its way, in each state of either end. The handshake
// fails with an error of its own, or the session is as good as any.
func FuzzTLSHandshake(f *testing.F) {
	f.Add([]byte{1, 0, 0, 4, 0, 0, 0, 0}, uint8(0), uint32(0), uint32(0), uint32(0), uint8(sigCrypto))
	f.Add([]byte{2, 0, 0, 4, 0, 0, 0, 0}, uint8(2), uint32(1), uint32(9), uint32(8), uint8(sigCrypto))
	f.Add([]byte{}, uint8(3), uint32(40), uint32(0), uint32(0), uint8(sigAlert))
	f.Add(make([]byte, 1000), uint8(5), uint32(1<<31), uint32(1<<32-1), uint32(1<<32-1), uint8(sigCrypto))
	f.Add([]byte{1, 2, 3}, uint8(1), uint32(0), uint32(0), uint32(0), uint8(sigCookie))
	f.Fuzz(func(t *testing.T, payload []byte, at uint8, sn, ts, una uint32, code uint8) {
		payload = payload[:min(len(payload), 1200)]
		inWorld(t, 0, clean, func(w *world) {
			config := secured(Config{DialTimeout: 3 * time.Second, PeerTimeout: 5 * time.Second})
			l := w.listen(config)
			go echoOnce(l)
			e, _ := w.endpoint("10.0.0.2:5000", config)
			seen := uint8(0)
			w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
				if seen++; seen == 1+at%8 {
					w.net.Inject(from, to, inFront(t, p, header{cmd: cmdWins, frg: code, sn: seq(sn), ts: seq(ts), una: seq(una)}, payload))
				}
				return true
			})
			addr, err := net.ResolveUDPAddr("udp", serverAddr)
			require.NoError(t, err)
			c, err := e.Dial(context.Background(), addr)
			if err != nil {
				var failed *HandshakeError
				var silent *NoAnswerError
				require.True(t, errors.As(err, &failed) || errors.As(err, &silent) || errors.Is(err, ErrRefused), "%v", err)
			} else {
				_, err = c.Write([]byte("question"))
				require.NoError(t, err)
				require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
				receive(t, c, []byte("question"))
				require.NoError(t, c.Close())
			}
			time.Sleep(time.Minute)
			require.Zero(t, l.Stats().Sessions)
			require.Zero(t, l.Stats().Buffered)
		})
	})
}

// inFront returns a packet with a segment behind the signals of p, and a CRYPTO
// segment at the end if there is one in p, if p is in the clear; or else p.
func inFront(t *testing.T, p []byte, h header, payload []byte) []byte {
	if len(p) < 2*headerSize || packetkeys.LevelOf(p) != packetkeys.Clear {
		return p
	}
	return resealed(t, bytes.Clone(p), func(p []byte) []byte {
		h.conv, h.len = decodeHeader(p).conv, uint32(len(payload))
		b := bytes.Clone(p[:2*headerSize])
		b = append(b, make([]byte, headerSize)...)
		h.encode(b[2*headerSize:])
		b = append(b, payload...)
		if h.cmd != cmdWins || signalCode(h.frg) != sigCrypto {
			b = append(b, p[2*headerSize:]...)
		}
		return b
	})
}

// FuzzTLSContent has a peer seal whatever it likes. The session may end; nothing
// else suffers.
func FuzzTLSContent(f *testing.F) {
	f.Add([]byte("content"), false)
	f.Add(bytesOf(signal{sigPing, 1, 2}), true)
	f.Add(packetOf(0, push(0, 0, "x"), push(1, 0, "y")), false)
	f.Add(append(bytesOf(signal{sigCrypto, 0, 0}), 1, 2, 3), true)
	f.Add([]byte{0, 0, 0, 0, 0xf1, 0, 30, 0, 1, 2, 3, 4}, false)
	f.Add([]byte{0, 0, 0, 0, 0xf2, 0, 30, 0, 1, 2, 3, 4}, true)
	f.Fuzz(func(t *testing.T, content []byte, fromServer bool) {
		content = content[:min(len(content), 1400)]
		inWorld(t, 0, clean, func(w *world) {
			a, b, l, pc := w.movable(secured(Config{PeerTimeout: 5 * time.Second, Linger: time.Second}))
			from, to := a, b
			if fromServer {
				from, to = b, a
			}
			client, server := pc.AddrPort(), netip.MustParseAddrPort(serverAddr)
			for _, conv := range []bool{true, false} {
				packet := make([]byte, packetkeys.Overhead+len(content))
				copy(packet[packetkeys.HeaderSize:], content)
				if inner := packet[packetkeys.HeaderSize : packetkeys.HeaderSize+len(content)]; conv && len(inner) >= headerSize {
					h := decodeHeader(inner)
					h.conv = a.Conv()
					h.encode(inner)
				}
				require.NoError(t, from.tls.app.Seal(packet, nil))
				if fromServer {
					w.net.Inject(server, client, packet)
				} else {
					w.net.Inject(client, server, packet)
				}
				time.Sleep(100 * time.Millisecond)
			}
			require.NoError(t, to.SetReadDeadline(time.Now().Add(time.Second)))
			_, _ = to.Read(make([]byte, 2000))
			_, _ = a.Close(), b.Close()
			time.Sleep(2 * time.Minute)
			require.Zero(t, l.Stats().Sessions)
			require.Zero(t, l.Stats().Buffered)
			e, _ := w.endpoint("10.0.0.4:0", secured(Config{}))
			c := w.dial(e)
			bothWays(t, c, accepted(t, l), []byte("up"), []byte("down"))
		})
	})
}
