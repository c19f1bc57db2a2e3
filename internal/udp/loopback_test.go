package udp

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/neterr"
	"github.com/stretchr/testify/require"
)

// topology is a sender, and receivers with the addresses at which it reaches
// them and at which they see it.
type topology struct {
	sender    *net.UDPConn
	receivers []*net.UDPConn
	to, from  []netip.AddrPort
}

func (top *topology) add(receiver *net.UDPConn, to, from netip.AddrPort) {
	top.receivers = append(top.receivers, receiver)
	top.to, top.from = append(top.to, to), append(top.from, from)
}

// unconnected has a sender that sends to three receivers of its network.
func unconnected(network, address string) func(t *testing.T) topology {
	return func(t *testing.T) topology {
		top := topology{sender: listen(t, network, address)}
		for range 3 {
			r := listen(t, network, address)
			top.add(r, addrOf(r), addrOf(top.sender))
		}
		return top
	}
}

// connectedSender has a sender with one peer.
func connectedSender(network, address string) func(t *testing.T) topology {
	return func(t *testing.T) topology {
		r := listen(t, network, address)
		top := topology{sender: dial(t, network, "", addrOf(r))}
		top.add(r, addrOf(r), addrOf(top.sender))
		return top
	}
}

// connectedReceivers has receivers that take packets of the sender only.
func connectedReceivers(network, address string) func(t *testing.T) topology {
	return func(t *testing.T) topology {
		top := topology{sender: listen(t, network, address)}
		for range 3 {
			r := dial(t, network, address, addrOf(top.sender))
			top.add(r, addrOf(r), addrOf(top.sender))
		}
		return top
	}
}

// dualStack has a sender of both families, and receivers of one and of both.
func dualStack(t *testing.T) topology {
	listen(t, "udp6", "[::1]:0") // or skip
	top := topology{sender: listen(t, "udp", ":0")}
	local := addrOf(top.sender)
	four, six, both := listen(t, "udp4", "127.0.0.1:0"), listen(t, "udp6", "[::1]:0"), listen(t, "udp", ":0")
	top.add(four, addrOf(four), local)
	top.add(six, addrOf(six), netip.AddrPortFrom(netip.IPv6Loopback(), local.Port()))
	top.add(both, addrOf(both), local)
	return top
}

var topologies = []struct {
	name string
	make func(t *testing.T) topology
}{
	{"v4", unconnected("udp4", "127.0.0.1:0")},
	{"v6", unconnected("udp6", "[::1]:0")},
	{"dual", dualStack},
	{"v4 connected sender", connectedSender("udp4", "127.0.0.1:0")},
	{"v6 connected sender", connectedSender("udp6", "[::1]:0")},
	{"v4 connected receivers", connectedReceivers("udp4", "127.0.0.1:0")},
	{"v6 connected receivers", connectedReceivers("udp6", "[::1]:0")},
}

// Everything arrives, in order, unchanged, with the right address, whatever
// the sender and the receiver make use of.
func TestEveryCombinationDelivers(t *testing.T) {
	for i, top := range topologies {
		t.Run(top.name, func(t *testing.T) {
			eachCombination(t, func(t *testing.T, sending Features) {
				for j, receiving := range combinations {
					t.Run("to "+receiving.String(), func(t *testing.T) {
						rng := rand.New(rand.NewPCG(uint64(i), uint64(j)))
						testDelivery(t, top.make(t), sending, receiving, rng)
					})
				}
			})
		})
	}
}

func testDelivery(t *testing.T, top topology, sending, receiving Features, rng *rand.Rand) {
	var results []func() []packet
	for i, r := range top.receivers {
		c := newConn(r, receiving)
		requireFeatures(t, receiving, c)
		batchSize := []int{c.BatchSize(), 1, 5}[i]
		results = append(results, startCollecting(t, r, c, batchSize))
	}
	sender := newConn(top.sender, sending)
	requireFeatures(t, sending, sender)
	batch := mixture(rng, 200, top.to...)
	require.Empty(t, writeAll(sender, batch))
	for _, to := range top.to {
		require.Empty(t, writeAll(sender, []Datagram{{Buf: []byte(lastWord), Addr: to}}))
	}
	for i, result := range results {
		requirePackets(t, received(batch, top.to[i], top.from[i]), result())
	}
}

// One datagram that cannot be sent is one error, at its place; all others
// arrive. The contract is the same for each way to fail.
func TestErrorConcernsOneDatagram(t *testing.T) {
	eachCombination(t, func(t *testing.T, features Features) {
		from, r := listen(t, "udp4", "127.0.0.1:0"), listen(t, "udp4", "127.0.0.1:0")
		sender := newConn(from, features)
		result := startCollecting(t, r, newConn(r, features), 100)
		batch := mixture(rand.New(rand.NewPCG(1, 2)), 300, addrOf(r))
		bad := map[int]Datagram{
			0:   {Buf: make([]byte, 70000), Addr: addrOf(r)},
			7:   {Buf: make([]byte, 10), Addr: netip.MustParseAddrPort("[2001:db8::1]:1")},
			50:  {Buf: make([]byte, 70000), Addr: addrOf(r)},
			51:  {Buf: make([]byte, 70000), Addr: addrOf(r)},
			100: {Buf: make([]byte, 10), Addr: netip.AddrPort{}},
		}
		for i := range batch {
			if d, ok := bad[i]; ok {
				batch[i] = d
			}
		}
		batch = append(batch, Datagram{Buf: []byte(lastWord), Addr: addrOf(r)})
		errs := writeAll(sender, batch)
		for i := range bad {
			require.Error(t, errs[i], "datagram %d", i)
		}
		require.Len(t, errs, len(bad))
		for i, d := range batch[:len(batch)-1] {
			if _, ok := bad[i]; ok {
				d.Addr = netip.AddrPort{}
				batch[i] = d
			}
		}
		want := received(batch, addrOf(r), addrOf(from))
		requirePackets(t, want[:len(want)-1], result())
		require.Equal(t, features, sender.Features(), "nothing was given up")
		if features.Mmsg {
			require.True(t, neterr.Is(errs[0], syscall.EMSGSIZE), "%v", errs[0])
			var addrError *net.AddrError
			require.ErrorAs(t, errs[7], &addrError)
			var opError *net.OpError
			require.ErrorAs(t, errs[50], &opError)
			require.Equal(t, "write", opError.Op)
		}
	})
}

func TestDeadlineWakesReader(t *testing.T) {
	eachCombination(t, func(t *testing.T, features Features) {
		pc := listen(t, "udp4", "127.0.0.1:0")
		c := newConn(pc, features)
		failed := make(chan error, 1)
		read := func() {
			_, err := c.ReadBatch(make([]Datagram, 4))
			failed <- err
		}
		go read()
		time.Sleep(10 * time.Millisecond) // most often it waits by then
		require.NoError(t, pc.SetReadDeadline(time.Unix(1, 0)))
		err := <-failed
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		var netError net.Error
		require.ErrorAs(t, err, &netError)
		require.True(t, netError.Timeout())

		read()
		require.ErrorIs(t, <-failed, os.ErrDeadlineExceeded, "it stays expired")

		require.NoError(t, pc.SetReadDeadline(time.Time{}))
		go read()
		_, err = pc.WriteToUDPAddrPort([]byte("x"), addrOf(pc))
		require.NoError(t, err)
		require.NoError(t, <-failed, "it can be lifted")
	})
}

func TestCloseWakesReader(t *testing.T) {
	eachCombination(t, func(t *testing.T, features Features) {
		pc := listen(t, "udp4", "127.0.0.1:0")
		c := newConn(pc, features)
		failed := make(chan error, 1)
		go func() {
			_, err := c.ReadBatch(make([]Datagram, 4))
			failed <- err
		}()
		time.Sleep(10 * time.Millisecond) // most often it waits by then
		require.NoError(t, pc.Close())
		require.ErrorIs(t, <-failed, net.ErrClosed)
		_, err := c.ReadBatch(make([]Datagram, 4))
		require.ErrorIs(t, err, net.ErrClosed)
		n, err := c.WriteBatch(to(peerA, 10, 10))
		require.ErrorIs(t, err, net.ErrClosed)
		require.Zero(t, n)
	})
}

// The answer that nobody listens comes back as an error of a call, and the
// socket goes on working.
func TestRefusedIsNotTheEnd(t *testing.T) {
	eachCombination(t, func(t *testing.T, features Features) {
		// A socket connected elsewhere keeps the port from other programs, and the
		// system refuses what pc sends to it as if it were closed.
		gone := dial(t, "udp4", "127.0.0.1:0", addrOf(listen(t, "udp4", "127.0.0.1:0")))
		addr := addrOf(gone)
		pc := dial(t, "udp4", "", addr)
		c := newConn(pc, features)
		for refused := false; !refused; {
			_, err := c.WriteBatch(to(addr, 10))
			refused = neterr.Is(err, syscall.ECONNREFUSED)
		}
		for refused := false; !refused; {
			if _, err := c.WriteBatch(to(addr, 10)); err != nil {
				continue
			}
			// The system limits how many refusals it sends (icmp_msgs_per_sec).
			require.NoError(t, pc.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
			_, err := c.ReadBatch(make([]Datagram, 1))
			refused = neterr.Is(err, syscall.ECONNREFUSED)
		}

		require.NoError(t, gone.Close())
		back, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(addr))
		require.NoError(t, err)
		prepare(t, back)
		result := startCollecting(t, back, newConn(back, features), 4)
		writeAll(c, []Datagram{{Buf: []byte("perhaps")}}) // may meet the last refusal
		require.Empty(t, writeAll(c, []Datagram{{Buf: []byte("hello")}, {Buf: []byte(lastWord)}}))
		packets := result()
		require.Equal(t, packet{"hello", addrOf(pc)}, packets[len(packets)-1])
	})
}

func TestConcurrentWriters(t *testing.T) {
	const writers, rounds, perBatch = 8, 10, 20
	eachCombination(t, func(t *testing.T, features Features) {
		from, r := listen(t, "udp4", "127.0.0.1:0"), listen(t, "udp4", "127.0.0.1:0")
		sender := newConn(from, features)
		result := startCollecting(t, r, newConn(r, features), 64)
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for round := range rounds {
					batch := make([]Datagram, perBatch)
					for i := range batch {
						buf := bytes.Repeat([]byte{byte(w)}, 100+w)
						binary.BigEndian.PutUint32(buf, uint32(round*perBatch+i))
						batch[i] = Datagram{Buf: buf, Addr: addrOf(r)}
					}
					if n, err := sender.WriteBatch(batch); err != nil || n != perBatch {
						t.Errorf("writer %d: %d written, %v", w, n, err)
					}
				}
			})
		}
		wg.Wait()
		require.Empty(t, writeAll(sender, []Datagram{{Buf: []byte(lastWord), Addr: addrOf(r)}}))
		var next [writers]uint32
		for _, p := range result() {
			w := int(p.data[4])
			want := bytes.Repeat([]byte{byte(w)}, 100+w)
			binary.BigEndian.PutUint32(want, next[w])
			require.Equal(t, string(want), p.data)
			next[w]++
		}
		for w := range next {
			require.EqualValues(t, rounds*perBatch, next[w], "of writer %d", w)
		}
	})
}

func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes pools forget")
	}
	for network, address := range map[string]string{"udp4": "127.0.0.1:0", "udp6": "[::1]:0"} {
		t.Run(network, func(t *testing.T) {
			eachCombination(t, func(t *testing.T, features Features) {
				from, r := listen(t, network, address), listen(t, network, address)
				sender, receiver := newConn(from, features), newConn(r, features)
				batch := to(addrOf(r), times(100, 200)...)
				got := make([]Datagram, receiver.BatchSize())
				require.Zero(t, testing.AllocsPerRun(100, func() {
					if _, err := sender.WriteBatch(batch); err != nil {
						t.Fatal(err)
					}
					for n := 0; n < len(batch); {
						m, err := receiver.ReadBatch(got)
						if err != nil {
							t.Fatal(err)
						}
						n += m
					}
				}))
			})
		})
	}
}
