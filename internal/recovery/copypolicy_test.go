package recovery

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/wire"
)

// ack returns a packet of one ACK.
func ack() []byte {
	b := make([]byte, wire.HeaderSize)
	b[4] = wire.CmdAck
	return b
}

// decide returns how many copies of a segment Begin allows.
func (p *CopyPolicy) decide(share uint32, next container.Serial) int {
	var c CopyCarrier
	_, most := p.Begin(&c, ack(), share, next)
	return most
}

// Copies are paid for by acknowledgements left out, or by what Redundancy allows.
func TestCopiesArePaidFor(t *testing.T) {
	p := CopyPolicy{dear: true}
	for range 100 {
		p.Earn(1)
	}
	require.Equal(t, 1024, p.Credit)
	p.Credit = 0
	p.Earn(3)
	require.Equal(t, 84, p.Credit)
	require.False(t, p.Pay(85))
	require.True(t, p.Pay(84))
	require.False(t, p.Pay(1))
	p.decide(50, 0)
	require.Equal(t, (wire.HeaderSize+28)/2, p.Credit)
	for range 100 {
		p.decide(400, 0)
	}
	require.Equal(t, 1024, p.Credit)
}

// Without Redundancy losses are recent for 48 segments. In the short form, what costs no
// more than an acknowledgement saves goes on for 400.
func TestLossesAreRecent(t *testing.T) {
	next := container.Serial(1<<32 - 20)
	for _, short := range []bool{false, true} {
		p := CopyPolicy{Short: short}
		require.Zero(t, p.decide(0, next), "nothing was lost")
		p.OnLoss(next)
		require.Equal(t, map[bool]int{false: 1, true: 2}[short], p.decide(0, next+47))
		p.Credit = 1024
		require.True(t, p.Pay(29))
		require.Equal(t, short, p.decide(0, next+48) > 0)
		require.False(t, p.Pay(29))
		require.True(t, p.Pay(28))
		require.Equal(t, short, p.decide(0, next+399) > 0)
		require.Zero(t, p.decide(0, next+400))
		require.Zero(t, p.decide(0, next), "it is over")
	}
}

// Redundancy says how many copies there are in the short form. To other peers there are
// as many as it pays for.
func TestCopiesOfRedundancy(t *testing.T) {
	for share, want := range map[uint32][2]int{1: {1, 1}, 20: {1, 1}, 49: {1, 1}, 50: {1, 2}, 100: {2, 3}, 200: {4, 5}, 400: {8, 9}} {
		p := CopyPolicy{Short: true, Credit: 1024}
		require.Equal(t, want[0], p.decide(share, 100), share)
		p.OnLoss(100)
		require.Equal(t, want[1], p.decide(share, 499), share)
		require.True(t, p.Pay(500), "whatever it costs")
		require.Equal(t, want[0], p.decide(share, 500), share)
		p.Short = false
		require.Equal(t, unlimited, p.decide(share, 500), share)
	}
}
