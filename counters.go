package kcp

import "github.com/arqnet/kcp/stats"

// Counters counts what a state machine has done: go doc kcp/stats.Counters.
type Counters = stats.Counters

// Counters returns a copy of the counters of k.
func (k *KCP) Counters() Counters { return k.counters }

// newSegments returns how many data segments have arrived that count: neither again
// nor beyond what is taken.
func newSegments(s *Counters) uint64 { return s.SegmentsReceived - s.Duplicates - s.OutOfWindow }
