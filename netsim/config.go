package netsim

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Bytes that the headers of IP and UDP add to a packet, for LinkConfig.Overhead.
const (
	OverheadIPv4 = 28
	OverheadIPv6 = 48
)

// LinkConfig describes one direction of a link. The zero value is a perfect
// link: no delay, no loss, no limits. Two configurations can be compared by ==.
//
// A packet meets the settings in this order: Down, MTU, Rate with Queue and
// QueuePackets, Loss, Burst, Duplicate, and then, for each copy on its
// own, Delay with Jitter, Reorder and Corrupt. Hence a packet that is lost has
// used the rate all the same, and the second copy of a duplicate costs no rate. Recording
// takes the place of Rate, and Bunch comes last.
//
// What takes a LinkConfig and returns no error panics if it is not valid; one
// that comes from outside of the program should be shown to Validate first.
type LinkConfig struct {
	// Delay is the one-way base delay, at most a year (8760 h). Zero means none.
	Delay time.Duration

	// Jitter scales a random extra delay, drawn again for every copy, whose
	// distribution is JitterShape's. The mean of what is drawn is half of Jitter
	// whatever the shape. Packets that follow each other within the jitter are delayed
	// by more: they keep their order, unless Reorder exempts them, and wait behind late
	// ones. With 20 ms, and a packet each millisecond, the mean of the extra delay is
	// about 15 ms if uniform, and about 55 ms with JitterPareto. It is at most a year.
	// Zero means none.
	Jitter time.Duration

	// JitterShape is the distribution of the extra delay. The zero value is
	// JitterUniform.
	JitterShape JitterShape

	// JitterCorrelation is the probability, 0 to 1, that a packet meets the same
	// extra delay as the one sent before it instead of one of its own, and a
	// second copy the same as the first. So the delay comes in levels that last
	// for 1/(1-JitterCorrelation) packets in the mean, the distribution stays
	// the shape's, and the correlation of two packets that are k apart is
	// JitterCorrelation to the power of k.
	JitterCorrelation float64

	// Loss is the probability, 0 to 1, that a packet is lost, independently of
	// all others. 1 is a dead link.
	Loss float64

	// Burst is loss that comes in bursts, beside Loss.
	Burst GilbertElliott

	// Duplicate is the probability, 0 to 1, that a packet is delivered twice.
	Duplicate float64

	// Reorder is the probability, 0 to 1, that a packet is exempt from the
	// order: it takes its own delay, may overtake what was sent before it and
	// be overtaken by what is sent after it. All others are delivered in the
	// order in which they were sent, however their jitter fell. As exempt
	// packets differ from the rest only by their jitter, nothing is reordered
	// while Jitter is zero.
	Reorder float64

	// Corrupt is the probability, 0 to 1, that one random bit of a delivered
	// copy is flipped; it is delivered like that. Empty packets have no bit to
	// flip.
	Corrupt float64

	// Rate is in bytes per second, at most 10^15: packets leave one after another,
	// each taking its length and Overhead divided by Rate. Zero means unlimited, and
	// then nothing waits and no queue is needed.
	Rate int64

	// Recording takes the place of Rate, for a link whose rate varies: the packets that
	// wait leave at its times. Nil means none.
	Recording *Recording

	// Bucket is the size in bytes of a token bucket, at most 1 GB, that Rate fills, as
	// in Linux's tbf and in policers. A packet leaves at once, and takes no time, if the
	// bucket has as many bytes as it, or is full. Else it waits, if Queue and
	// QueuePackets have room: a Queue of 1 byte makes a policer. Zero means none.
	Bucket int

	// Overhead is added to the length of each packet, in bytes, where Rate and
	// Queue are concerned: OverheadIPv4 and OverheadIPv6 are what the headers of
	// IP and UDP cost. It is at most 65535, and counts neither for MTU nor in
	// statistics. Zero means that payload alone counts.
	Overhead int

	// Queue is the room, in bytes, for packets that wait for their turn at
	// Rate; a packet that does not fit is dropped (drop-tail). The packet that
	// is just leaving takes no room, so an idle link accepts any packet. Zero
	// means unlimited.
	Queue int

	// QueuePackets is the same in packets. Where both are set, both count. Zero
	// means unlimited.
	QueuePackets int

	// MTU is the size in bytes of the largest packet that passes; larger ones
	// vanish without a word (a black hole). Zero means unlimited.
	MTU int

	// Bunch makes packets arrive at the multiples of a time only, as a radio that
	// sleeps between beacons does. It is at most a year. Zero means that they arrive
	// when Delay is over.
	Bunch time.Duration

	// Down is an outage: whatever is sent is lost at once, and uses no rate.
	// What is underway still arrives.
	Down bool
}

// JitterShape is a distribution of jitter. What is drawn has the same mean with all of
// them, half of LinkConfig.Jitter, and is never negative.
type JitterShape int

const (
	// JitterUniform is uniform over [0, Jitter).
	JitterUniform JitterShape = iota

	// JitterNormal is a bell curve over [0, Jitter): the sum of four uniform
	// numbers, which is close to a normal distribution with a standard
	// deviation of 0.144 Jitter.
	JitterNormal

	// JitterPareto is heavy-tailed, as delays on wireless links and in busy
	// hosts are: a Lomax distribution (Pareto of type II) of shape 4. Its
	// median is 0.28 Jitter, 1 in 100 exceeds 3.2 Jitter, and 1 in 1000 exceeds
	// 6.9 Jitter. It is cut off at 20 Jitter.
	JitterPareto
)

// GilbertElliott is loss in bursts: a Markov chain of two states, good and bad,
// that begins as good and may change its state with every packet that is sent,
// before the packet meets the loss of the state it is in. In the long run it is
// bad for the share ToBad/(ToBad+ToGood) of the packets, in runs of 1/ToGood
// packets in the mean. The zero value loses nothing. BurstLoss makes one from
// figures that are easier to come by.
//
// The model with LossGood 0 is due to E. N. Gilbert, "Capacity of a Burst-Noise
// Channel", Bell System Technical Journal 39(5), 1960; the loss in both states
// was added by E. O. Elliott, "Estimates of Error Rates for Codes on Burst-Noise
// Channels", Bell System Technical Journal 42(5), 1963.
type GilbertElliott struct {
	ToBad    float64 // probability that a good state turns bad
	ToGood   float64 // probability that a bad state turns good
	LossGood float64 // probability of a loss in the good state
	LossBad  float64 // probability of a loss in the bad state
}

// BurstLoss returns a model that loses the share mean of all packets, 0 to 1,
// in bursts of length packets in the mean, at least 1. A bad state loses
// everything, a good one nothing (the simple Gilbert model), so mean cannot
// exceed length/(length+1): the good state lasts for a packet at least. What is
// out of range makes a model that LinkConfig.Validate refuses. For independent
// loss use LinkConfig.Loss, as a length of 1 means that no two packets in a row
// are lost.
func BurstLoss(mean, length float64) GilbertElliott {
	if mean == 0 && length >= 1 {
		return GilbertElliott{}
	}
	return GilbertElliott{
		ToBad:   mean / (length * (1 - mean)),
		ToGood:  1 / length,
		LossBad: 1,
	}
}

// why returns what is wrong with the arguments of BurstLoss, if g is of that and one of
// them is; else it is empty.
func (g GilbertElliott) why() string {
	if g.LossGood != 0 || g.LossBad != 1 || !(g.ToGood > 0) {
		return ""
	}
	length, mean := 1/g.ToGood, 1/(1+g.ToGood/g.ToBad)
	switch {
	case length < 1:
		return fmt.Sprintf(": bursts have at least 1 packet in the mean, not %.4g", length)
	case g.ToBad < 0:
		return fmt.Sprintf(": the share that bursts lose is 0 to 1, not %.4g", mean)
	case g.ToBad > 1:
		return fmt.Sprintf(": bursts of %.4g packets in the mean lose at most the share %.4g, not %.4g", length, length/(length+1), mean)
	}
	return ""
}

// Mean returns the share of packets that is lost in the long run.
func (g GilbertElliott) Mean() float64 {
	if g.ToBad == 0 {
		return g.LossGood
	}
	bad := g.ToBad / (g.ToBad + g.ToGood)
	return (1-bad)*g.LossGood + bad*g.LossBad
}

// The most that settings may be. With more, sums would come around, and nobody means it.
const (
	maxDelay    = 365 * 24 * time.Hour
	maxRate     = 1e15
	maxOverhead = 1<<16 - 1
	maxBucket   = 1e9
)

// Validate reports the first field that is out of its range.
func (c LinkConfig) Validate() error {
	for _, p := range []struct {
		name  string
		value float64
	}{
		{"Loss", c.Loss}, {"Duplicate", c.Duplicate}, {"Reorder", c.Reorder}, {"Corrupt", c.Corrupt},
		{"JitterCorrelation", c.JitterCorrelation},
		{"Burst.ToBad", c.Burst.ToBad}, {"Burst.ToGood", c.Burst.ToGood},
		{"Burst.LossGood", c.Burst.LossGood}, {"Burst.LossBad", c.Burst.LossBad},
	} {
		// Put this way round so that NaN fails too.
		if !(p.value >= 0 && p.value <= 1) {
			why := ""
			if strings.HasPrefix(p.name, "Burst.") {
				why = c.Burst.why()
			}
			return fmt.Errorf("netsim: LinkConfig.%s is %v, want 0 to 1%s", p.name, p.value, why)
		}
	}
	for _, p := range []struct {
		name        string
		value, most int64
	}{
		{"Rate", c.Rate, maxRate}, {"Bucket", int64(c.Bucket), maxBucket}, {"Overhead", int64(c.Overhead), maxOverhead}, {"Queue", int64(c.Queue), math.MaxInt64},
		{"QueuePackets", int64(c.QueuePackets), math.MaxInt64}, {"MTU", int64(c.MTU), math.MaxInt64},
	} {
		switch {
		case p.value < 0:
			return fmt.Errorf("netsim: LinkConfig.%s is negative: %d", p.name, p.value)
		case p.value > p.most:
			return fmt.Errorf("netsim: LinkConfig.%s is %d, want at most %d", p.name, p.value, p.most)
		}
	}
	for _, p := range []struct {
		name  string
		value time.Duration
	}{
		{"Delay", c.Delay}, {"Jitter", c.Jitter}, {"Bunch", c.Bunch},
	} {
		switch {
		case p.value < 0:
			return fmt.Errorf("netsim: LinkConfig.%s is negative: %v", p.name, p.value)
		case p.value > maxDelay:
			return fmt.Errorf("netsim: LinkConfig.%s is %v, want at most %v", p.name, p.value, maxDelay)
		}
	}
	if c.JitterShape < JitterUniform || c.JitterShape > JitterPareto {
		return fmt.Errorf("netsim: LinkConfig.JitterShape is unknown: %d", c.JitterShape)
	}
	return c.Recording.validate()
}

// mustBeValid is for what returns no error: a wrong setting there is a mistake
// in a program, and a test that ran on would test nothing.
func (c LinkConfig) mustBeValid() {
	if err := c.Validate(); err != nil {
		panic(err)
	}
}

// limited reports whether packets leave one after another.
func (c *LinkConfig) limited() bool { return c.Rate > 0 || c.Recording != nil }
