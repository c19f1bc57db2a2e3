package udp

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// Each level of the means to be fast contains the one before.
var levels = []struct {
	name     string
	features Features
}{
	{"single", Features{}},
	{"mmsg", Features{Mmsg: true}},
	{"mmsg+gso", Features{Mmsg: true, GSO: true}},
	{"mmsg+gso+gro", Features{Mmsg: true, GSO: true, GRO: true}},
}

// BenchmarkBulk moves datagrams of the usual size over the loopback interface
// as fast as one goroutine writes and another reads. An operation is one
// datagram that has arrived.
func BenchmarkBulk(b *testing.B) {
	for _, level := range levels {
		b.Run(level.name, func(b *testing.B) { benchmarkBulk(b, level.features, "127.0.0.1:0", 1400, 256) })
	}
}

// BenchmarkSmallBatches is the same with few datagrams a call.
func BenchmarkSmallBatches(b *testing.B) {
	for _, level := range levels {
		b.Run(level.name, func(b *testing.B) { benchmarkBulk(b, level.features, "127.0.0.1:0", 1400, 4) })
	}
}

// BenchmarkWildcard is the same with sockets that are bound to no address. Datagrams
// leave from the one that they are for, as answers do.
func BenchmarkWildcard(b *testing.B) {
	for _, level := range levels {
		for _, batchSize := range []int{256, 4, 1} {
			b.Run(fmt.Sprint(level.name, "/", batchSize), func(b *testing.B) {
				benchmarkBulk(b, level.features, "0.0.0.0:0", 1400, batchSize)
			})
		}
	}
}

func benchmarkBulk(b *testing.B, features Features, address string, size, batchSize int) {
	const inFlight = 1024 // fits into the socket buffer, so that none is lost
	from, to := benchSocket(b, address), benchSocket(b, address)
	sender, receiver := newConn(from, features), newConn(to, features)
	requireFeatures(b, features, sender)
	addr, local := addrOf(to), Local{}
	if address == "0.0.0.0:0" {
		local = LocalOf(addr.Addr())
	}
	batch := make([]Datagram, batchSize)
	for i := range batch {
		batch[i] = Datagram{Buf: make([]byte, size), Addr: addr, Local: local}
	}
	var received atomic.Int64
	progress := make(chan struct{}, 1)
	done := make(chan error, 1)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	go func() {
		got := make([]Datagram, receiver.BatchSize())
		_ = to.SetReadDeadline(time.Now().Add(time.Minute))
		for n := 0; n < b.N; {
			m, err := receiver.ReadBatch(got)
			if err != nil {
				done <- err
				return
			}
			n += m
			received.Store(int64(n))
			select {
			case progress <- struct{}{}:
			default:
			}
		}
		done <- nil
	}()
	for n := 0; n < b.N; {
		for n-int(received.Load()) > inFlight-batchSize {
			<-progress
		}
		m, err := sender.WriteBatch(batch[:min(batchSize, b.N-n)])
		if err != nil {
			b.Fatal(err)
		}
		n += m
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

func benchSocket(b *testing.B, address string) *net.UDPConn {
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(address)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	if err := SetBuffers(c, 8<<20); err != nil {
		b.Fatal(err)
	}
	return c
}

// requireFeatures skips what the system does not have.
func requireFeatures(tb testing.TB, want Features, c Conn) {
	tb.Helper()
	if got := c.Features(); got != want {
		tb.Skipf("the system has %v, not %v", got, want)
	}
}
