package liveness

import (
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The figures of RULES.md are those of the code.
func TestRuleFigures(t *testing.T) {
	t.Parallel()
	const restart = "| Restart of a peer without signals"
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Keep-alive (RFC 9293", "1 s", ProbeAfter},
		{"| A PING is repeated", "16 times", pingTries},
		{"| Peer timeout 30 s", "30 s", DefaultPeerTimeout},
		{restart, "5 s", restartAfter},
		{restart, "2 answers", restartAnswers},
		{"| Connection migration: PING", "2 s", pathCheckAfter},
	})
}
