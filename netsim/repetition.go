package netsim

import "github.com/arqnet/kcp/internal/wakeup"

// Repetition makes runs of a test over a simulated network repeat: see Config.Repetition
// of package kcp, and Determinism. All endpoints of a run share one, which puts what they
// do at the same instant in order. It is safe for concurrent use.
type Repetition = wakeup.Run

// NewRepetition returns a Repetition with a seed on which all that is random
// depends. It serves one run: the next one has its own.
func NewRepetition(seed uint64) *Repetition {
	r := new(Repetition)
	r.Seed(seed)
	return r
}
