package e2e

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/stretchr/testify/require"
)

// wantAborted checks that err says that the peer has aborted with code and text.
func wantAborted(t *testing.T, err error, code uint64, text string) {
	t.Helper()
	var reason *kcp.PeerCloseError
	require.ErrorAs(t, err, &reason)
	require.Equal(t, kcp.PeerCloseError{Code: code, Text: text, Aborted: true}, *reason)
	require.ErrorIs(t, err, kcp.ErrReset)
}

// The packet with the reason is lost. The answer to the peer's next packet repeats it
// (RFC 9000 §10.2.1), be that data or a PING after KeepAlive, and also if that answer is
// lost again. No answer is larger than three times what it answers.
func TestAbortReasonIsRepeated(t *testing.T) {
	const long = "the reason is long: "
	for name, config := range map[string]*kcp.Config{"plain": {}, "AEAD": {Cipher: testAEAD(t)}, "TLS": {TLS: testTLS()}} {
		for _, test := range []struct {
			name   string
			lost   int // packets of the end that aborts
			writes int // bytes of the other one; 0: it only reads
			text   int // bytes of the reason that arrive
		}{
			{"data", 1, 1000, 256}, {"data, twice", 2, 1000, 256}, {"keep-alive", 1, 0, 16},
		} {
			t.Run(name+", "+test.name, func(t *testing.T) {
				inWorld(t, 1, clean, func(t *testing.T, w *world) {
					a, b, l := w.pair(config, config)
					time.Sleep(5 * time.Second)
					server, lost, asked, aborted := l.Addr().String(), 0, 0, false
					w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
						switch {
						case !aborted:
						case from.String() != server:
							asked = len(p)
						case lost < test.lost:
							lost++
							return false
						default:
							require.LessOrEqual(t, len(p), 3*asked)
						}
						return true
					})
					aborted = true
					text := strings.Repeat(long, 20)
					require.NoError(t, b.AbortWithError(7, text))
					if test.writes > 0 {
						time.Sleep(time.Second)
						_, err := a.Write(content(1, test.writes))
						require.NoError(t, err)
					}
					_, err := a.Read(make([]byte, 1))
					require.Equal(t, test.lost, lost)
					var reason *kcp.PeerCloseError
					require.ErrorAs(t, err, &reason)
					require.GreaterOrEqual(t, len(reason.Text), test.text)
					wantAborted(t, err, 7, text[:len(reason.Text)])
				})
			})
		}
	}
}
