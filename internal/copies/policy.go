package copies

import "github.com/arqnet/kcp/internal/serial"

const (
	// burst is the most credit that may be saved up, in bytes.
	burst = 1024
	// Memory is for how many segments a loss counts as recent.
	Memory = 48
	// Saved is the credit in bytes for each acknowledgement left out:
	// the 24 it would have taken, and a little of the packet that it would
	// sometimes have needed. So redundancy costs nothing.
	Saved = 28
)

// Policy is the state of Extensions.Redundancy and EarlyRepair. Its
// zero value is ready.
type Policy struct {
	Credit int           // bytes of redundant copies that may be sent; copies of retransmissions overdraw it
	until  serial.Number // losses count as recent before this sn is sent
	Lossy  bool          // there was a recent loss; until is valid
	Short  bool          // the peer takes copies in the short form
}

// Add adds bytes to the credit.
func (r *Policy) Add(bytes int) { r.Credit = min(r.Credit+bytes, burst) }

// Earn adds the credit for n acknowledgements that were left out.
func (r *Policy) Earn(n int) { r.Credit = min(r.Credit+n*Saved, burst) }

// OnLoss records a loss. next is the next sn to be sent.
func (r *Policy) OnLoss(next serial.Number) { r.Lossy, r.until = true, next+Memory }

// LossyRecently reports whether there was a recent loss. next is the next sn to
// be sent.
func (r *Policy) LossyRecently(next serial.Number) bool {
	r.Lossy = r.Lossy && r.until.After(next)
	return r.Lossy
}
