package kcp

import (
	"sync"
	"sync/atomic"
	"time"

	engine "github.com/arqnet/kcp"
	"github.com/arqnet/kcp/stats"
)

// meters adds what the sockets of the process count to DefaultSnmp. It does so
// from time to time while there is traffic, as programs read the fields, and
// whenever a program calls a method of DefaultSnmp.
var meters meterSet

type meterSet struct {
	pending atomic.Bool // a reading is due

	mu    sync.Mutex // guards the field below, and the meters of its ports
	ports map[*port]struct{}
}

// readingWait is how long traffic may go uncounted, unless a reading takes more
// than a fiftieth of it.
const (
	readingWait  = 100 * time.Millisecond
	readingShare = 50
)

// touch sees to it that there is a reading soon. It is called for every Read
// and Write.
func (m *meterSet) touch() {
	if !m.pending.Load() && m.pending.CompareAndSwap(false, true) {
		time.AfterFunc(readingWait, m.tick)
	}
}

// tick reads all meters, and goes on for as long as there is traffic.
func (m *meterSet) tick() {
	start := time.Now()
	if !m.read(DefaultSnmp) {
		m.pending.Store(false)
		return
	}
	time.AfterFunc(max(readingWait, readingShare*time.Since(start)), m.tick)
}

// read adds what is new to s, and reports whether there was any.
func (m *meterSet) read(s *Snmp) (moved bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for p := range m.ports {
		moved = p.meter.read(p.endpoint, s) || moved
	}
	return moved
}

func (m *meterSet) add(p *port) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ports == nil {
		m.ports = make(map[*port]struct{})
	}
	m.ports[p] = struct{}{}
}

// remove reads the meter of p for the last time.
func (m *meterSet) remove(p *port) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p.meter.read(p.endpoint, DefaultSnmp)
	delete(m.ports, p)
}

// meter is what was counted of an endpoint.
type meter struct {
	stats  stats.Endpoint
	totals stats.Totals
}

// read adds what e has counted since the last reading to s, and reports whether
// packets have passed.
func (m *meter) read(e *engine.Endpoint, s *Snmp) bool {
	stats := e.Stats()
	if stats.PacketsSent == m.stats.PacketsSent && stats.PacketsReceived == m.stats.PacketsReceived {
		return false
	}
	totals := e.Totals()
	add := func(field *uint64, before, now uint64) {
		if now > before {
			atomic.AddUint64(field, now-before)
		}
	}
	add(&s.InPkts, m.stats.PacketsReceived, stats.PacketsReceived)
	add(&s.OutPkts, m.stats.PacketsSent, stats.PacketsSent)
	add(&s.InBytes, m.stats.BytesReceived, stats.BytesReceived)
	add(&s.OutBytes, m.stats.BytesSent, stats.BytesSent)
	add(&s.InErrs, m.stats.DropShort+m.stats.DropUnknown, stats.DropShort+stats.DropUnknown)
	add(&s.InCsumErrors, m.stats.DropCipher, stats.DropCipher)
	add(&s.KCPInErrors, m.totals.Dropped.Total(), totals.Dropped.Total())
	add(&s.FECRecovered, m.totals.FEC.Recovered, totals.FEC.Recovered)
	add(&s.FECErrs, m.totals.FEC.Lost, totals.FEC.Lost)
	add(&s.FECParityShards, m.totals.FEC.ParityReceived, totals.FEC.ParityReceived)
	s.addSegments(&m.totals.Counters, &totals.Counters)
	m.stats, m.totals = stats, totals
	return true
}
