package network

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/arqnet/kcp"
	"github.com/stretchr/testify/require"
)

// What a phone's client sees when its own address changes is what docs/phones.md says.
func TestPhones(t *testing.T) {
	long(t)
	text, err := os.ReadFile("../../docs/phones.md")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(text), "\n| what happens to the phone | plain | AEAD | TLS |\n| --- | --- | --- | --- |\n")
	require.True(t, ok)
	rows := 0
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		rows++
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		i := slices.IndexFunc(events, func(e event) bool { return e.name == cells[0] })
		require.GreaterOrEqual(t, i, 0, line)
		t.Run(cells[0], func(t *testing.T) {
			p := newPlan(t, client(t))
			all := p.sessions(t)
			events[i].happen(t, p, all)
			for _, s := range all {
				kind, _, _ := strings.Cut(s.name, " ")
				got := "goes on"
				if err := s.await(); errors.Is(err, kcp.ErrReset) {
					got = "`ErrReset`"
				} else {
					require.NoError(t, err, s.name)
				}
				require.Equal(t, cells[1+slices.Index([]string{"plain", "AEAD", "TLS"}, kind)], got, s.name)
			}
		})
	}
	require.Positive(t, rows)
}
