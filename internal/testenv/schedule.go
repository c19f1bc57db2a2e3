package testenv

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
)

// A Schedule is what a network does to the packets of a short conversation: every
// placement of a few faults, beside an event such as a client that moves. It decides, and
// whoever runs the conversation carries it out.

// Side is the end that a packet leaves.
type Side byte

// The two ends, as they are written.
const (
	Client Side = 'c'
	Server Side = 's'
)

// Packet is the N-th packet that leaves a side, from 1.
type Packet struct {
	From Side
	N    int
}

// String returns p as it is written, such as "c3".
func (p Packet) String() string { return fmt.Sprintf("%c%d", p.From, p.N) }

// Act is what happens to a packet, or when it leaves.
type Act string

// Faults.
const (
	Drop      Act = "drop"   // it is lost
	Duplicate Act = "dup"    // it arrives twice
	Hold      Act = "hold"   // it arrives late
	Overtake  Act = "late"   // what leaves right behind it arrives first
	Damage    Act = "damage" // one bit of it is flipped
)

// Events.
const (
	Move Act = "move" // the client has another address from this packet on
	Kill Act = "kill" // the server is killed before this packet leaves, and started again
)

// IsFault reports whether a is a fault and not an event.
func (a Act) IsFault() bool {
	return a == Drop || a == Duplicate || a == Hold || a == Overtake || a == Damage
}

// ScheduleStep is an act at a packet.
type ScheduleStep struct {
	Packet
	Act
}

// Schedule is what happens in a run. A packet has at most one fault.
type Schedule []ScheduleStep

// String returns s as Parse takes it, such as "c3:drop s1:hold".
func (s Schedule) String() string {
	words := make([]string, len(s))
	for i, step := range s {
		words[i] = fmt.Sprintf("%v:%s", step.Packet, step.Act)
	}
	return strings.Join(words, " ")
}

// ParseSchedule returns the schedule of a text. An empty one is a run without faults.
func ParseSchedule(text string) (s Schedule, err error) {
	acts := []Act{Drop, Duplicate, Hold, Overtake, Damage, Move, Kill}
	for _, word := range strings.Fields(text) {
		at, act, _ := strings.Cut(word, ":")
		step := ScheduleStep{Act: Act(act)}
		if at != "" {
			step.From = Side(at[0])
			step.N, err = strconv.Atoi(at[1:])
		}
		if err != nil || step.N < 1 || step.From != Client && step.From != Server || !slices.Contains(acts, step.Act) {
			return nil, fmt.Errorf("schedule: %q is not like c3:drop", word)
		}
		s = append(s, step)
	}
	return s, nil
}

// At returns what happens to a packet: a fault, or "", and an event, or "".
func (s Schedule) At(p Packet) (fault, event Act) {
	for _, step := range s {
		switch {
		case step.Packet != p:
		case step.IsFault():
			fault = step.Act
		default:
			event = step.Act
		}
	}
	return fault, event
}

// Faults returns how many faults s has.
func (s Schedule) Faults() (n int) {
	for _, step := range s {
		if step.IsFault() {
			n++
		}
	}
	return n
}

// Event returns the event of s; "": it has none.
func (s Schedule) Event() Act {
	for _, step := range s {
		if !step.IsFault() {
			return step.Act
		}
	}
	return ""
}

// With returns s and a further step.
func (s Schedule) With(p Packet, a Act) Schedule {
	return append(slices.Clip(slices.Clone(s)), ScheduleStep{p, a})
}

// Extend returns s with one fault more, in all ways. sent is the packets of a run of s,
// in the order in which they left. The fault comes after all faults of s, as what s does
// up to its last fault is the same in each run. So whoever extends what Extend returns,
// again and again, comes to every schedule once, and to every packet that an earlier
// fault has caused.
func (s Schedule) Extend(sent []Packet, faults []Act) (all []Schedule) {
	from := 0
	for _, step := range s {
		if !step.IsFault() {
			continue
		}
		at := slices.Index(sent, step.Packet)
		if at < 0 {
			return nil // it has not come to that
		}
		from = max(from, at+1)
	}
	for _, p := range sent[from:] {
		for _, f := range faults {
			all = append(all, s.With(p, f))
		}
	}
	return all
}

// Events returns s with an event at each of the packets that left a side.
func (s Schedule) Events(sent []Packet, from Side, event Act) (all []Schedule) {
	for _, p := range sent {
		if p.From == from {
			all = append(all, s.With(p, event))
		}
	}
	return all
}

// InShare reports whether a schedule is among one in n of all that a seed chooses. What
// names it is text, so that placements in different conversations are chosen apart.
func InShare(text string, seed, n uint64) bool {
	if n <= 1 {
		return true
	}
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d %s", seed, text)
	x := h.Sum64()
	x ^= x >> 33 // the low bits of FNV are poor
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return x%n == 0
}
