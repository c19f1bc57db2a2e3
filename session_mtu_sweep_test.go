package kcp

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// sweep is a conversation over a path whose limit is close to the size of what is
// sent.
type sweep struct {
	client, server int // MTU
	payload, count int // bytes of a message, and how many
	limit          int // of the path, beyond payload and overhead
	protection     string
	messages       bool
}

func (s sweep) config(t *testing.T, mtu int) *Config {
	cfg := &Config{MTU: mtu, MessageMode: s.messages, PeerTimeout: 30 * time.Second}
	switch s.protection {
	case "FEC":
		cfg.FEC = FEC{Data: 3, Parity: 1}
	case "AEAD":
		cfg.Cipher = testAEAD(t)
	case "AEAD and FEC":
		cfg.Cipher, cfg.FEC = testAEAD(t), FEC{Data: 10, Parity: 3}
	case "TLS":
		cfg.TLS, cfg.MTU = testTLS(), max(mtu, 1200)
	}
	return cfg
}

// run has the server echo what the client sends.
func (s sweep) run(t *testing.T, seed uint64) {
	client, server := s.config(t, s.client), s.config(t, s.server)
	limit := max(min(1200, max(client.MTU, server.MTU)), s.payload+s.limit+client.overhead().total())
	link := netsim.LinkConfig{Delay: 10 * time.Millisecond, MTU: limit}
	inWorld(t, seed, link, func(w *world) {
		start := time.Now()
		l := w.listen(server)
		e, _ := w.endpoint("10.0.0.2:0", client)
		a := w.dial(e)
		want := content(seed, s.payload)
		echo := make(chan error, 1)
		go func() {
			b, err := l.Accept()
			if err == nil {
				err = echoMessages(b, s.payload, s.count)
			}
			echo <- err
		}()
		for range s.count {
			_, err := a.Write(want)
			require.NoError(t, err)
		}
		for range s.count {
			receive(t, a, want)
		}
		require.NoError(t, a.Close())
		require.NoError(t, <-echo)
		require.Less(t, time.Since(start), 12*time.Second)
	})
}

// echoMessages sends back count messages of n bytes, and closes.
func echoMessages(c net.Conn, n, count int) error {
	b := make([]byte, n)
	for range count {
		for at := 0; at < n; {
			k, err := c.Read(b[at:])
			if err != nil {
				return err
			}
			at += k
		}
		if _, err := c.Write(b); err != nil {
			return err
		}
	}
	return c.Close()
}

// Whatever is added to a segment, it gets through any path that takes the size
// to fall back to: nothing is retransmitted for ever in packets larger than those
// that have arrived.
func TestEachSegmentPassesItsPath(t *testing.T) {
	seed := uint64(0)
	// The first segment leaves in pieces, and so is 4 bytes larger than others.
	for limit := -8; limit <= 40; limit++ {
		for _, s := range []sweep{
			{1400, 1300, 1276, 17, limit, "", true},
			{1400, 1300, 1276, 1, limit, "", true},
		} {
			seed++
			t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) { s.run(t, seed) })
		}
	}
	mtus := []int{1300, 1400, 1400, 576, 1200, 1201, 1228, 1472}
	protections := []string{"", "FEC", "AEAD", "AEAD and FEC", "TLS"}
	for range fewer(400) {
		seed++
		random := rand.New(rand.NewPCG(seed, 1))
		s := sweep{
			client: mtus[random.IntN(len(mtus))], server: mtus[random.IntN(len(mtus))],
			payload: 1 + random.IntN(1500), count: 1 + random.IntN(20), limit: random.IntN(49) - 8,
			protection: protections[random.IntN(len(protections))], messages: random.IntN(2) == 0,
		}
		if random.IntN(2) == 0 {
			s.payload = 1100 + random.IntN(300)
		}
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) { s.run(t, seed) })
	}
}
