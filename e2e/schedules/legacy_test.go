package schedules

import (
	"net"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/life"
	"github.com/arqnet/kcp/internal/testenv/life/ends"
)

const legacyConv = 77

// bare opens an end without signals, which lives until all has been said. If to is nil, it
// answers the first who sends.
func (tr *trial) bare(side testenv.Side, addr string, to net.Addr) *ends.Bare {
	pc, err := tr.net.Listen(addr)
	if err != nil {
		panic(err)
	}
	m := ends.NewBare(&faultySocket{pc, tr, new(process), side}, ends.BareOptions{
		Conv: legacyConv, To: to, Messages: tr.rules.MessageMode, Stop: tr.rests,
	})
	m.Patience = 2 * runLimit
	return m
}

// answerAsLegacy is a server without signals.
func (tr *trial) answerAsLegacy() {
	m := tr.bare(testenv.Server, serverAddr, nil)
	tr.lives.Add(1)
	go func() {
		defer tr.lives.Add(-1)
		m.Unread(<-m.Got) // then its conversation is known
		e := &end{tr, life.NewParty(tr.session(m.Conv()), 1, m), nil, new(process)}
		e.perform()
	}()
}
