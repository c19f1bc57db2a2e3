package netsim

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Recording is what a link could carry, as it was measured: how many packets could leave
// in each slot of time. They leave at equal distances within a slot, and a packet of any
// size takes the place of one. At its end a recording begins anew. It must not change
// once a link uses it.
type Recording struct {
	Slot   time.Duration // the length of a slot, at least a microsecond
	Counts []uint16      // packets, by slot; not all are 0
}

// ReadRecording reads a recording of counts of packets, separated by white space.
func ReadRecording(r io.Reader, slot time.Duration) (*Recording, error) {
	rec := &Recording{Slot: slot}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		for field := range strings.FieldsSeq(lines.Text()) {
			n, err := strconv.ParseUint(field, 10, 16)
			if err != nil {
				return nil, fmt.Errorf("netsim: recording: %w", err)
			}
			rec.Counts = append(rec.Counts, uint16(n))
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("netsim: recording: %w", err)
	}
	return rec, rec.validate()
}

func (r *Recording) validate() error {
	if r == nil {
		return nil
	}
	if r.Slot < time.Microsecond || r.Slot > time.Hour {
		return fmt.Errorf("netsim: the slot of a recording is %v, want 1 µs to 1 h", r.Slot)
	}
	for _, n := range r.Counts {
		if n > 0 {
			return nil
		}
	}
	return errors.New("netsim: a recording has no packet")
}

// Packets returns how many packets could leave in [from, to), slots that are cut
// included by the part that lies between.
func (r *Recording) Packets(from, to time.Duration) (packets float64) {
	for at := from; at < to; {
		slot := at / r.Slot
		end := min((slot+1)*r.Slot, to)
		packets += float64(r.count(slot)) * float64(end-at) / float64(r.Slot)
		at = end
	}
	return packets
}

func (r *Recording) count(slot time.Duration) time.Duration {
	return time.Duration(r.Counts[int(slot%time.Duration(len(r.Counts)))])
}

// next returns the first time, from t on, at which a packet can leave.
func (r *Recording) next(t time.Duration) time.Duration {
	for slot := t / r.Slot; ; slot++ {
		n, begin := r.count(slot), slot*r.Slot
		if n == 0 {
			continue
		}
		first := (max(t-begin, 0)*n + r.Slot - 1) / r.Slot
		if first < n {
			return begin + (first*r.Slot+n-1)/n
		}
	}
}
