package takeover

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/testenv"
)

// Either process is killed at each step of the exchange, in place of its message and
// right after it. The sessions of the one that lives go on, those of the other end with
// ErrReset, and the one that lives can hand over.
func TestKill(t *testing.T) {
	const steps = "OASrNCcF"
	n := 0
	for _, kind := range []string{"plain", "aes-gcm", "tls"} {
		for i := range len(steps) {
			for _, late := range []bool{false, true} {
				for _, victim := range []string{"predecessor", "successor"} {
					at := steps[:i+1]
					if n++; !testenv.InFull() && (n%7 != 3) {
						continue // each step, kind and victim
					}
					when := map[bool]string{false: "in place of", true: "after"}[late]
					t.Run(fmt.Sprint(kind, "/", victim, " killed ", when, " ", at), func(t *testing.T) {
						t.Parallel()
						killAt(t, kind, at, late, victim)
					})
				}
			}
		}
	}
}

// killAt is one case of TestKill.
func killAt(t *testing.T, kind, at string, late bool, victim string) {
	p := launch(t, kind, "p", "").ready()
	c := dial(t, p.addr, kind, "p")
	c.echoes(10_000)
	old, new, next := p.meet("next")
	killed, lives := p, next
	if victim == "successor" {
		killed, lives = next, p
	}
	x := &exchange{at: at, late: late, act: killed.kill}
	x.relay(old, new)
	// The successor has confirmed when it was told to commit.
	told := at == "OASrNC" && late || strings.Contains(at, "c")
	// The predecessor knows of that, and has gone.
	gone := strings.Contains(at, "F")
	switch {
	case victim == "successor" && at == "OASrNCc" && late:
		// It has gone, or FinalKind cannot be sent any more.
	case victim == "successor" && !gone:
		p.says("kept")
		dial(t, p.addr, kind, "p").echoes(10_000)
	case victim == "predecessor" && !told:
		require.NotEmpty(t, next.says("failed"))
		<-next.ended
		return
	case victim == "predecessor":
		next.ready()
		dial(t, next.addr, kind, "next").echoes(10_000)
		c.isReset()
	}
	if lives == p {
		c.echoes(10_000)
	}
	last := lives.handsOver("last")
	d := dial(t, last.addr, kind, "last")
	if lives == p {
		c.echoes(10_000)
		require.NoError(t, c.Close())
	}
	d.echoes(10_000)
}
