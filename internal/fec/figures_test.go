package fec

import (
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that WIRE.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "WIRE.md", []rulebook.Figure{
		{"`seqid 4 · type 2", "seqid 4", frameSize - 2},
		{"`seqid 4 · type 2", "type 2", frameSize - 4},
		{"`seqid 4 · type 2", "size 2", HeaderSize - frameSize},
		{"| 0x00f3 | datagram", "conv 4", convSize},
		{"A group is D data", "500 ms", maxGap * time.Millisecond},
	})
}
