package machine

import "github.com/arqnet/kcp/internal/testenv"

// What tests of all packages share, under short names.
var (
	repeated   = testenv.Repeated
	fewer      = testenv.Fewer
	long       = testenv.Long
	simulated  = testenv.Simulated
	sequential = testenv.Sequential
	alone      = testenv.Alone
	content    = testenv.Content
	segment    = testenv.Segment
	piece      = testenv.Piece
	push       = testenv.Push
	ack        = testenv.Ack
	concat     = testenv.Concat
)
