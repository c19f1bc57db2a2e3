package e2e

import (
	"bytes"
	"context"
	"crypto/aes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// sentPacket is a packet as it was sent, and when.
type sentPacket struct {
	at   time.Duration
	data []byte
}

// direction is a sender's address and a receiver's.
type direction [2]netip.AddrPort

// packetLog is all packets of a run, by direction.
type packetLog map[direction][]sentPacket

// record runs a scenario in a bubble of its own, and returns what was sent.
func record(t *testing.T, seed uint64, scenario func(t *testing.T, w *world)) packetLog {
	t.Helper()
	log := packetLog{}
	inWorld(t, seed, netsim.LinkConfig{Delay: 20 * time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.05, Duplicate: 0.01, Reorder: 0.02}, func(t *testing.T, w *world) {
		w.leads = true
		w.net.SetFilter(func(from, to netip.AddrPort, packet []byte) bool {
			way := direction{from, to}
			log[way] = append(log[way], sentPacket{w.net.Elapsed(), bytes.Clone(packet)})
			return true
		})
		scenario(w.t, w)
	})
	return log
}

// requireSame compares two runs, and names the first packet that differs.
func requireSame(t *testing.T, a, b packetLog) {
	t.Helper()
	first, text := time.Duration(1<<62), ""
	note := func(at time.Duration, format string, args ...any) {
		if at < first {
			first, text = at, fmt.Sprintf(format, args...)
		}
	}
	for way, sent := range a {
		again := b[way]
		for i, p := range sent {
			if i >= len(again) {
				note(p.at, "%v: packet %d, at %v, is not in the second run", way, i, p.at)
				break
			}
			if q := again[i]; p.at != q.at || !bytes.Equal(p.data, q.data) {
				note(min(p.at, q.at), "%v: packet %d\n%v %x\n%v %x", way, i, p.at, p.data, q.at, q.data)
				break
			}
		}
		if len(again) > len(sent) {
			note(again[len(sent)].at, "%v: the second run has %d packets more", way, len(again)-len(sent))
		}
	}
	for way, sent := range b {
		if a[way] == nil {
			note(sent[0].at, "%v: in the second run only", way)
		}
	}
	require.Empty(t, text, "the first difference")
}

// repeats runs a scenario twice, and requires the same packets at the same
// times.
func repeats(t *testing.T, seed uint64, scenario func(t *testing.T, w *world)) {
	t.Helper()
	a := record(t, seed, scenario)
	b := record(t, seed, scenario)
	packets := 0
	for _, sent := range a {
		packets += len(sent)
	}
	require.Greater(t, packets, 500)
	requireSame(t, a, b)
}

// transfer sends data both ways over a session, in an outage too.
func transfer(n int, change func(*kcp.Config)) func(t *testing.T, w *world) {
	return func(t *testing.T, w *world) {
		w.net.Play("", "", netsim.Outage(300*time.Millisecond, time.Second))
		config := kcp.Config{Repetition: kcp.NewRepetition(1)}
		if change != nil {
			change(&config)
		}
		a, b, _ := w.pair(&config, &config)
		bothWays(t, a, b, content(1, n), content(2, n/4))
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	}
}

// With Config.Repetition a seed gives the same packets at the same times in each run.
func TestRunsRepeat(t *testing.T) {
	long(t)
	size := 4 << 20
	if testing.Short() {
		size = 1 << 20
	}
	key := bytes.Repeat([]byte{7}, 32)
	for name, change := range map[string]func(*kcp.Config){
		"plain":    nil,
		"messages": func(c *kcp.Config) { c.MessageMode = true; c.NoDelay = kcp.NoDelayTurbo },
		"fec":      func(c *kcp.Config) { c.FEC = kcp.FEC{Data: 10, Parity: 3} },
		"aead": func(c *kcp.Config) {
			cipher, err := crypt.AESGCM(key)
			if err != nil {
				panic(err)
			}
			c.Cipher = cipher
		},
		"cfb": func(c *kcp.Config) {
			block, err := aes.NewCipher(key)
			if err != nil {
				panic(err)
			}
			c.Cipher = crypt.CFB(block)
		},
	} {
		t.Run(name, func(t *testing.T) { repeats(t, 4, transfer(size, change)) })
	}
	t.Run("streams", func(t *testing.T) { repeats(t, 5, streamsBothWays) })
	t.Run("sessions", func(t *testing.T) { repeats(t, 6, manySessions(acceptAll)) })
	t.Run("group", func(t *testing.T) { repeats(t, 8, manySessions(serveGroup)) })
	t.Run("outage", func(t *testing.T) { repeats(t, 9, outageOfMany) })
}

// streamsBothWays has several streams that both ends write at once.
func streamsBothWays(t *testing.T, w *world) {
	config := kcp.Config{Repetition: kcp.NewRepetition(1)}
	a, b, _ := w.pair(&config, &config)
	var done sync.WaitGroup
	for i := range 6 {
		s, err := a.OpenStream(context.Background(), nil)
		require.NoError(t, err)
		up, down := content(uint64(i), 100<<10), content(uint64(i+100), 50<<10)
		done.Go(func() {
			time.Sleep(time.Duration(i) * time.Microsecond) // an instant of its own
			_, err := s.Write(up)
			if err == nil {
				err = s.CloseWrite()
			}
			got, readErr := io.ReadAll(s)
			if err = errors.Join(err, readErr); err != nil || !bytes.Equal(got, down) {
				t.Errorf("stream %d: %d of %d bytes, %v", i, len(got), len(down), err)
			}
		})
		peer, err := b.AcceptStream(context.Background())
		require.NoError(t, err)
		done.Go(func() {
			got, err := io.ReadAll(peer)
			if err == nil && !bytes.Equal(got, up) {
				err = io.ErrUnexpectedEOF
			}
			if err == nil {
				_, err = peer.Write(down)
			}
			if err = errors.Join(err, peer.CloseWrite()); err != nil {
				t.Errorf("stream %d: %v", i, err)
			}
		})
	}
	done.Wait()
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// manySessions has several clients of one host, of which some share a socket,
// write to one server, which answers, and is closed in the middle of it.
func manySessions(serve func(l *kcp.Listener, done *sync.WaitGroup)) func(t *testing.T, w *world) {
	return func(t *testing.T, w *world) {
		config := kcp.Config{Repetition: kcp.NewRepetition(1)}
		l := w.listen(&config)
		var done sync.WaitGroup
		done.Go(func() { serve(l, &done) })
		for range 3 {
			e, _ := w.endpoint("10.0.0.2:0", &config)
			for range 3 {
				c := w.dial(e)
				_, err := c.Write([]byte{1})
				require.NoError(t, err)
				send(t, swallow{c}, content(1, 200<<10))
				done.Go(func() { _, _ = io.Copy(io.Discard, c) })
				time.Sleep(time.Millisecond)
			}
		}
		time.Sleep(700 * time.Millisecond)
		require.NoError(t, l.Endpoint().Close())
		done.Wait()
	}
}

// acceptAll echoes what each session of l brings.
func acceptAll(l *kcp.Listener, done *sync.WaitGroup) {
	for {
		c, err := l.AcceptKCP(context.Background())
		if err != nil {
			return
		}
		done.Go(func() { _, _ = io.Copy(c, c) })
	}
}

// serveGroup is acceptAll by a Group, whose events end with l.
func serveGroup(l *kcp.Listener, _ *sync.WaitGroup) {
	g := kcp.NewGroup()
	defer g.Close()
	if l.AcceptInto(g) != nil {
		return
	}
	events := make([]kcp.Event, 8)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		n, err := g.Wait(ctx, events)
		cancel()
		if err != nil {
			return
		}
		for _, e := range events[:n] {
			if e.Kind == kcp.EventData {
				_, _ = e.Conn.TryWrite(e.Data)
			}
		}
	}
}

// swallow is a writer without errors.
type swallow struct{ io.Writer }

func (s swallow) Write(b []byte) (int, error) {
	_, _ = s.Writer.Write(b)
	return len(b), nil
}

// outageOfMany has many sessions of one socket, which retransmit at the same instants.
func outageOfMany(t *testing.T, w *world) {
	config := kcp.Config{Repetition: kcp.NewRepetition(1)}
	w.net.SetLink("", "", clean)
	w.listen(&config)
	e, _ := w.endpoint("10.0.0.2:0", &config)
	all := make([]*kcp.Conn, 12)
	for i := range all {
		all[i] = w.dial(e)
		time.Sleep(time.Microsecond)
		send(t, all[i], []byte("first"))
		time.Sleep(time.Second)
	}
	w.net.Cut("10.0.0.1", "")
	for range 20 {
		for _, c := range all {
			send(t, c, []byte("more"))
			time.Sleep(time.Microsecond)
		}
		time.Sleep(time.Second)
	}
}

// A Repetition serves one run, in virtual time.
func TestRepetitionIsRefused(t *testing.T) {
	config := &kcp.Config{Repetition: kcp.NewRepetition(1)}
	requireField := func(err error) {
		t.Helper()
		var invalid *kcp.ConfigError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, "Repetition", invalid.Field)
	}
	_, err := kcp.Listen("udp", "127.0.0.1:0", config)
	requireField(err)
	_, err = kcp.Dial("udp", "127.0.0.1:9", config)
	requireField(err)
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer pc.Close()
	_, err = kcp.NewEndpoint(pc, config)
	requireField(err)
	for run := range 2 {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			time.Sleep(time.Microsecond)
			pc, err := w.net.Listen("10.0.0.1:4000")
			require.NoError(t, err)
			defer pc.Close()
			e, err := kcp.NewEndpoint(pc, config)
			if run > 0 {
				requireField(err)
				return
			}
			require.NoError(t, err)
			defer e.Close()
			_, err = e.Dial(context.Background(), net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.0.0.9:1")))
			require.Error(t, err)
		})
	}
}
