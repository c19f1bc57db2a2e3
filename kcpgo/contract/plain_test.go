package contract

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/xtaci/kcp-go/v5"
)

// The ring buffer is a queue that grows at the rates of kcp-go.
func TestRingBuffer(t *testing.T) {
	r := kcp.NewRingBuffer[int](0)
	if r.MaxLen() != kcp.RINGBUFFER_MIN-1 || !r.IsEmpty() || r.IsFull() || r.Len() != 0 {
		t.Fatal("not empty at first", r.MaxLen(), r.Len())
	}
	if _, ok := r.Pop(); ok {
		t.Error("Pop of nothing")
	}
	if v, ok := r.Peek(); ok || v != nil {
		t.Error("Peek of nothing")
	}
	sizes := []int{r.MaxLen()}
	for i := range 1500 { // the ring goes around, as two come and one goes
		r.Push(2 * i)
		r.Push(2*i + 1)
		if v, ok := r.Pop(); v != i || !ok {
			t.Fatalf("Pop: %d, want %d", v, i)
		}
		if n := r.MaxLen(); n != sizes[len(sizes)-1] {
			sizes = append(sizes, n)
		}
	}
	if want := []int{7, 15, 31, 63, 127, 255, 511, 1023, 1126, 1239, 1363, 1500, 1651}; !slices.Equal(sizes, want) {
		t.Errorf("capacities %d, want %d", sizes, want)
	}
	var all []int
	r.ForEach(func(v *int) bool { all = append(all, *v); return len(all) < 1000 })
	wrong(t, len(all) != 1000 || all[0] != 1500 || all[999] != 2499, "ForEach", len(all))
	all = nil
	for v := range r.ForEachReverse {
		all = append(all, *v)
	}
	wrong(t, len(all) != 1500 || all[0] != 2999 || all[1499] != 1500, "ForEachReverse", len(all))
	v, ok := r.Peek()
	if *v = -1; !ok {
		t.Error("Peek")
	}
	if v, _ := r.Pop(); v != -1 {
		t.Error("Peek gives a copy")
	}
	if n := r.Discard(499); n != 499 || r.Len() != 1000 {
		t.Error("Discard", n, r.Len())
	}
	if v, _ := r.Pop(); v != 2000 {
		t.Error("Pop after Discard:", v)
	}
	if n := r.Discard(5000); n != 999 || !r.IsEmpty() {
		t.Error("Discard of more than there is:", n)
	}
	r.Push(1)
	r.Clear()
	wrong(t, r.Len() != 0 || r.MaxLen() != 1651, "Clear", r.Len(), r.MaxLen())
}

// The scheduler calls functions in the order of their times, not before them, and
// none after Close. It is one of kcp-go's that do not end in virtual time.
func TestTimedSched(t *testing.T) {
	s := kcp.NewTimedSched(1)
	done := make(chan int, 4)
	start := time.Now()
	for _, ms := range []int{200, 100, 150, -5} {
		s.Put(func() {
			if early := time.Duration(ms)*time.Millisecond - time.Since(start); early > 0 {
				t.Errorf("%d ms: %v early", ms, early)
			}
			done <- ms
		}, start.Add(time.Duration(ms)*time.Millisecond))
	}
	for _, want := range []int{-5, 100, 150, 200} {
		if got := <-done; got != want {
			t.Errorf("%d ms comes before %d ms", got, want)
		}
	}
	s.Put(func() { t.Error("a call after Close") }, time.Now().Add(20*time.Millisecond))
	s.Close()
	s.Close()
	time.Sleep(40 * time.Millisecond)
}

// One function that takes long does not keep another waiting.
func TestTimedSchedParallel(t *testing.T) {
	s := kcp.NewTimedSched(2)
	defer s.Close()
	first, second := make(chan bool), make(chan bool)
	s.Put(func() { <-first }, time.Now())
	s.Put(func() { close(second) }, time.Now().Add(time.Millisecond))
	<-second // which does not wait for the first
	close(first)
}

// Counters have kcp-go's names, in its order.
func TestSnmpColumns(t *testing.T) {
	want := []string{
		"BytesSent", "BytesReceived", "MaxConn", "ActiveOpens", "PassiveOpens", "CurrEstab",
		"InErrs", "InCsumErrors", "KCPInErrors", "InPkts", "OutPkts", "InSegs", "OutSegs",
		"InBytes", "OutBytes", "RetransSegs", "FastRetransSegs", "EarlyRetransSegs",
		"LostSegs", "RepeatSegs", "FECFullShards", "FECParityShards", "FECErrs",
		"FECRecovered", "FECShardSet", "FECShardMin", "RingBufferSndQueue",
		"RingBufferRcvQueue", "RingBufferSndBuffer", "OOBPackets",
	}
	s := &kcp.Snmp{
		BytesSent: 0, BytesReceived: 1, MaxConn: 2, ActiveOpens: 3, PassiveOpens: 4, CurrEstab: 5,
		InErrs: 6, InCsumErrors: 7, KCPInErrors: 8, InPkts: 9, OutPkts: 10, InSegs: 11, OutSegs: 12,
		InBytes: 13, OutBytes: 14, RetransSegs: 15, FastRetransSegs: 16, EarlyRetransSegs: 17,
		LostSegs: 18, RepeatSegs: 19, FECFullShardSet: 20, FECParityShards: 21, FECErrs: 22,
		FECRecovered: 23, FECShardSet: 24, FECShardMin: 25, RingBufferSndQueue: 26,
		RingBufferRcvQueue: 27, RingBufferSndBuffer: 28, OOBPackets: 29,
	}
	if !slices.Equal(s.Header(), want) {
		t.Errorf("names %v", s.Header())
	}
	for i, v := range s.ToSlice() {
		if v != strconv.Itoa(i) {
			t.Errorf("column %d is %s", i, v)
		}
	}
	if c := s.Copy(); *c != *s || c == s {
		t.Error("Copy is no copy")
	}
	s.Reset()
	if *s != (kcp.Snmp{}) {
		t.Error("Reset leaves", *s)
	}
}
