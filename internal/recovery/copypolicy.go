package recovery

import "github.com/arqnet/kcp/internal/container"

const (
	// MaxCopied is the largest payload that is copied, in bytes. A larger one leaves
	// little room in its packets, and gains less for its bytes.
	MaxCopied = 256
	// CopyReach is how many segments are examined from the newest in flight backwards,
	// and RetransmitsReach from the oldest forwards. That bounds the cost of a flush.
	CopyReach        = 16
	RetransmitsReach = 4
	// PacketOverhead is what IPv4 and UDP add to a packet, in bytes.
	PacketOverhead = 28
	// burst is the most credit that may be saved up, in bytes.
	burst = 1024
	// LossMemory is for how many segments a loss counts as recent. In the short form,
	// copies that cost no more than SavedAck go on for LongLossMemory: where one segment
	// in 20 is lost, every twelfth distance between two losses is longer than LossMemory.
	LossMemory     = 48
	LongLossMemory = 400
	// SavedAck is the credit in bytes for each acknowledgement left out:
	// the 24 it would have taken, and a little of the packet that it would
	// sometimes have needed. So redundancy costs nothing.
	SavedAck = 28
	// LeastCopies is how many copies there are of a segment in the short form. With
	// Redundancy it is as many for each 1 of it, and one more after a loss.
	LeastCopies = 2
	// unlimited is more copies than are counted of a segment.
	unlimited = 256
)

// CopyPolicy is the state of Extensions.Redundancy and EarlyRepair. Its
// zero value is ready.
type CopyPolicy struct {
	Credit   int              // bytes of redundant copies that may be sent; copies of retransmissions overdraw it
	lost     container.Serial // the next sn to be sent when the last loss was found; valid if Lossy
	Lossy    bool             // there was a recent loss
	Short    bool             // copies have the short form: the peer takes it, and is Informed
	Informed bool             // the peer knows whether this end sends the short form
	dear     bool             // copies in the present packet may cost more than SavedAck
}

// Earn adds the credit for n acknowledgements that were left out.
func (p *CopyPolicy) Earn(n int) { p.Credit = min(p.Credit+n*SavedAck, burst) }

// OnLoss records a loss. next is the next sn to be sent.
func (p *CopyPolicy) OnLoss(next container.Serial) { p.Lossy, p.lost = true, next }

// Begin decides how many copies a packet may carry. share is Redundancy in percent, next
// the next sn to be sent. It returns c as the last segment of the packet, as Find does;
// nil: that can carry none in the short form. most is how many copies there may be of a
// segment, in all.
func (p *CopyPolicy) Begin(c *CopyCarrier, packet []byte, share uint32, next container.Serial) (by *CopyCarrier, most int) {
	p.Credit = min(p.Credit+int(share)*(len(packet)+PacketOverhead)/100, burst)
	p.dear = share > 0 || next.Before(p.lost+LossMemory)
	p.Lossy = p.Lossy && (p.dear && share == 0 || p.Short && next.Before(p.lost+LongLossMemory))
	if p.Short && c.Find(packet, next) {
		by = c
	}
	return by, p.most(int(share))
}

// most returns how many copies there may be of a segment.
func (p *CopyPolicy) most(share int) int {
	switch {
	case share > 0 && !p.Short:
		return unlimited
	case share > 0 && p.Lossy:
		return LeastCopies*share/100 + 1
	case share > 0:
		return max(LeastCopies*share/100, 1)
	case p.Lossy && p.Short:
		return LeastCopies
	case p.Lossy:
		return 1
	}
	return 0
}

// Pay takes the price of a copy in bytes out of the credit, and reports whether it may
// be sent.
func (p *CopyPolicy) Pay(price int) bool {
	if price > SavedAck && !p.dear || price > p.Credit {
		return false
	}
	p.Credit -= price
	return true
}
