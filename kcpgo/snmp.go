package kcp

import (
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/arqnet/kcp/stats"
)

// DefaultSnmp counts what all sessions of the process do. BytesSent,
// BytesReceived, MaxConn, ActiveOpens, PassiveOpens, CurrEstab and OOBPackets
// are always up to date. The others follow within 100 ms, and are up to date in
// what Copy and ToSlice return.
var DefaultSnmp = new(Snmp)

// Snmp holds counters. DefaultSnmp's change while they are read: use
// Copy, or package sync/atomic.
type Snmp struct {
	BytesSent           uint64 // payload bytes taken by Write
	BytesReceived       uint64 // payload bytes returned by Read
	MaxConn             uint64 // most sessions open at once
	ActiveOpens         uint64 // sessions dialled
	PassiveOpens        uint64 // sessions accepted
	CurrEstab           uint64 // sessions open now
	InErrs              uint64 // packets from addresses without a session, and too short ones
	InCsumErrors        uint64 // packets that failed the check of the cipher
	KCPInErrors         uint64 // packets that the protocol has dropped
	InPkts              uint64 // packets received
	OutPkts             uint64 // packets sent
	InSegs              uint64 // segments received
	OutSegs             uint64 // segments sent
	InBytes             uint64 // bytes of UDP payload received
	OutBytes            uint64 // bytes of UDP payload sent
	RetransSegs         uint64 // segments retransmitted
	FastRetransSegs     uint64 // segments retransmitted before their time-out
	EarlyRetransSegs    uint64 // always 0: FastRetransSegs counts these too
	LostSegs            uint64 // segments retransmitted after a time-out
	RepeatSegs          uint64 // segments received that had arrived before
	FECFullShardSet     uint64 // always 0
	FECRecovered        uint64 // packets restored from parity
	FECErrs             uint64 // groups in which packets were lost for good
	FECParityShards     uint64 // parity packets received
	FECShardSet         uint64 // always 0
	FECShardMin         uint64 // always 0
	RingBufferSndQueue  uint64 // always 0
	RingBufferRcvQueue  uint64 // always 0
	RingBufferSndBuffer uint64 // always 0
	OOBPackets          uint64 // out-of-band packets received
}

// snmpColumn is a field of a Snmp with its name in reports.
type snmpColumn struct {
	name  string
	value *uint64
}

// snmpFields are the fields in the order of reports, which is not that of the struct.
var snmpFields = strings.Fields(`
	BytesSent BytesReceived MaxConn ActiveOpens PassiveOpens CurrEstab InErrs InCsumErrors
	KCPInErrors InPkts OutPkts InSegs OutSegs InBytes OutBytes RetransSegs FastRetransSegs
	EarlyRetransSegs LostSegs RepeatSegs FECFullShardSet FECParityShards FECErrs FECRecovered
	FECShardSet FECShardMin RingBufferSndQueue RingBufferRcvQueue RingBufferSndBuffer OOBPackets`)

// columns returns the fields in the order of reports. The name of FECFullShardSet differs
// from the field's, as in kcp-go.
func (s *Snmp) columns() (all []snmpColumn) {
	for _, name := range snmpFields {
		value := reflect.ValueOf(s).Elem().FieldByName(name).Addr().Interface().(*uint64)
		all = append(all, snmpColumn{strings.Replace(name, "FECFullShardSet", "FECFullShards", 1), value})
	}
	return all
}

// Header returns the names of the counters, in the order of ToSlice.
func (s *Snmp) Header() []string {
	columns := s.columns()
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.name
	}
	return names
}

// ToSlice returns the counters in decimal, in the order of Header.
func (s *Snmp) ToSlice() []string {
	columns := s.Copy().columns()
	values := make([]string, len(columns))
	for i, c := range columns {
		values[i] = strconv.FormatUint(*c.value, 10)
	}
	return values
}

// Copy returns a snapshot.
func (s *Snmp) Copy() *Snmp {
	s.refresh()
	d := new(Snmp)
	to := d.columns()
	for i, from := range s.columns() {
		*to[i].value = atomic.LoadUint64(from.value)
	}
	return d
}

// Reset sets all counters to zero, CurrEstab too.
func (s *Snmp) Reset() {
	s.refresh()
	for _, c := range s.columns() {
		atomic.StoreUint64(c.value, 0)
	}
}

// addSegments adds what a state machine has counted from before to now.
func (s *Snmp) addSegments(before, now *stats.Counters) {
	add := func(field *uint64, count func(*stats.Counters) uint64) {
		if d := count(now) - count(before); d != 0 {
			atomic.AddUint64(field, d)
		}
	}
	add(&s.InSegs, func(c *stats.Counters) uint64 {
		return c.SegmentsReceived + c.AcksReceived + c.ProbesReceived + c.WindowUpdates
	})
	add(&s.OutSegs, func(c *stats.Counters) uint64 {
		return c.SegmentsSent + c.Retransmits() + c.Repeats + c.AcksSent + c.ProbesSent
	})
	add(&s.RetransSegs, func(c *stats.Counters) uint64 { return c.Retransmits() })
	add(&s.FastRetransSegs, func(c *stats.Counters) uint64 { return c.FastRetransmits })
	add(&s.LostSegs, func(c *stats.Counters) uint64 { return c.TimeoutRetransmits })
	add(&s.RepeatSegs, func(c *stats.Counters) uint64 { return c.Duplicates })
}

// opened counts a session that has begun.
func (s *Snmp) opened(opens *uint64) {
	atomic.AddUint64(opens, 1)
	open := atomic.AddUint64(&s.CurrEstab, 1)
	for {
		most := atomic.LoadUint64(&s.MaxConn)
		if open <= most || atomic.CompareAndSwapUint64(&s.MaxConn, most, open) {
			return
		}
	}
}

// closed counts a session that was closed. After a Reset there may be fewer
// than were closed.
func (s *Snmp) closed() {
	for {
		open := atomic.LoadUint64(&s.CurrEstab)
		if open == 0 || atomic.CompareAndSwapUint64(&s.CurrEstab, open, open-1) {
			return
		}
	}
}

// refresh brings s up to date, if it is DefaultSnmp.
func (s *Snmp) refresh() {
	if s == DefaultSnmp {
		meters.read(s)
	}
}
