package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/arqnet/kcp"
)

// The flood suite has one connection send as fast as it can while strangers from
// many addresses send first packets to the listening end, 50 000 a second, each
// of a conversation of its own. It shows what is left of the goodput. What it is
// compared with is measured under the same flood to a socket of nobody, so that
// the share says what the listening end spends on strangers, and not what the
// machine spends on sending. Memory is what the listening end has kept of them,
// after garbage collection.
//
// In the cases named validated, ours asks everybody for cookies and refuses
// peers without signals; kcp-go has neither.

const (
	metricShare  = "share"
	metricGrowth = "memory"

	floodRate     = 50000 // packets a second, all together
	floodSources  = 64    // addresses, 127.x.y.1
	floodPushSize = 500
	floodPause    = time.Millisecond // between the bursts that the rate is made of
)

var floodCases = []string{"hello", "push", "garbage", "hello-validated", "push-validated"}

func init() {
	register(&suite{
		name:    "flood",
		about:   "one connection while strangers send 50 000 first packets a second; against the same to nobody",
		cases:   floodCases,
		impls:   []string{ours, kcpGo},
		metrics: []metric{{metricShare, "of the goodput"}, {metricGoodput, "MB/s"}, {metricGrowth, "MB"}},
		lacks:   func(c, impl string) bool { return impl == kcpGo && c != "push" && c != "garbage" },
		measure: measureFlood,
		thresholds: []threshold{
			{c: "hello", impl: ours, metric: metricShare, min: 0.8},
			{c: "push", impl: ours, metric: metricShare, min: 0.8},
			{c: "garbage", impl: ours, metric: metricShare, min: 0.8},
			{c: "hello-validated", impl: ours, metric: metricShare, min: 0.8},
			{c: "push-validated", impl: ours, metric: metricShare, min: 0.8},
			{c: "hello", impl: ours, metric: metricGrowth, max: 16},
			{c: "push", impl: ours, metric: metricGrowth, max: 16},
		},
	})
}

// floodPeer returns the implementation of a case, and where its listening end is.
func floodPeer(c, impl string) (peer, net.Addr, error) {
	if !slices.Contains(floodCases, c) {
		return nil, nil, fmt.Errorf("no case %q", c)
	}
	s := settings{mode: plain, window: bulkWindow, buffer: bulkBuffer}
	if impl != ours && impl != kcpGo {
		return nil, nil, fmt.Errorf("no implementation %q", impl)
	}
	if impl == kcpGo {
		p, err := newKCPGoPeer(s)
		if err != nil {
			return nil, nil, err
		}
		return p, p.socket.LocalAddr(), nil
	}
	config, err := ourConfig(s)
	if err != nil {
		return nil, nil, err
	}
	if strings.HasSuffix(c, "validated") {
		config.AddressValidation, config.RefuseLegacy = kcp.ValidateAlways, true
	}
	p, err := newKCPPeerOf(config, s.buffer)
	if err != nil {
		return nil, nil, err
	}
	return p, p.LocalAddr(), nil
}

// measureFlood runs one flow, first with the flood elsewhere, then with it here.
func measureFlood(c, impl string, d time.Duration) (f figures, err error) {
	p, address, err := floodPeer(c, impl)
	if err != nil {
		return nil, err
	}
	all := closers{p}
	defer func() { err = errors.Join(err, all.Close()) }()
	client, server, err := connect(p)
	if err != nil {
		return nil, err
	}
	all = append(all, server, client)
	nobody, err := openSocket(0)
	if err != nil {
		return nil, err
	}
	all = append(all, nobody)
	var goodput [2]float64
	var memory [2]uint64
	for i, to := range []net.Addr{nobody.LocalAddr(), address} {
		stop, err := startFlood(c, to.(*net.UDPAddr))
		if err != nil {
			return nil, err
		}
		flows := []*flow{newFlow(streamSource{client}, newStreamSink(server), newRope())}
		before, after, err := watch(flows, d)
		stop()
		if err != nil {
			return nil, err
		}
		goodput[i] = float64(after.moved[0]-before.moved[0]) / 1e6 / after.at.Sub(before.at).Seconds()
		memory[i] = memoryInUse()
	}
	return figures{
		metricShare:   goodput[1] / goodput[0],
		metricGoodput: goodput[1],
		metricGrowth:  max(0, float64(memory[1])-float64(memory[0])) / (1 << 20),
	}, nil
}

// startFlood sends first packets to an address until stop is called.
func startFlood(c string, to *net.UDPAddr) (stop func(), err error) {
	var sources []*net.UDPConn
	for i := range floodSources {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, byte(1 + i), byte(i), 1}), 0)
		s, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(from), to)
		if err != nil {
			return nil, fmt.Errorf("a source address for the flood: %w", err)
		}
		sources = append(sources, s)
	}
	quit := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		random := rand.New(rand.NewPCG(1, 1))
		packet := make([]byte, 24+floodPushSize)
		start := time.Now()
		for sent := 0; ; {
			select {
			case <-quit:
				return
			case <-time.After(floodPause):
			}
			for due := int(time.Since(start).Seconds() * floodRate); sent < due; sent++ {
				_, _ = sources[sent%floodSources].Write(strangersPacket(c, packet, random)) // refused or not
			}
		}
	})
	return func() {
		close(quit)
		done.Wait()
		for _, s := range sources {
			_ = s.Close()
		}
	}, nil
}

// strangersPacket makes a first packet in b.
func strangersPacket(c string, b []byte, random *rand.Rand) []byte {
	binary.LittleEndian.PutUint32(b, random.Uint32())
	switch c[0] {
	case 'h': // HELLO and INFO; see WIRE.md
		copy(b[4:], []byte{83, 1, 0, 1})
		binary.LittleEndian.PutUint32(b[8:], random.Uint32())
		copy(b[24:28], b[:4])
		copy(b[28:], []byte{84, 2, 0, 1, 0, 0, 0, 0, 1})
		return b[:48]
	case 'p':
		copy(b[4:], []byte{81, 0, 0, 1})
		binary.LittleEndian.PutUint32(b[20:], floodPushSize)
		return b
	}
	for i := 4; i < 100; i++ {
		b[i] = byte(random.Uint32())
	}
	return b[:100]
}
