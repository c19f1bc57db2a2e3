package kcp

import (
	"crypto/tls"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// wantReason checks that err says that the peer has closed with code and text.
func wantReason(t *testing.T, err error, code uint64, text string) {
	t.Helper()
	var reason *PeerCloseError
	require.ErrorAs(t, err, &reason)
	require.Equal(t, PeerCloseError{code, text}, *reason)
	require.ErrorIs(t, err, ErrPeerClosed)
}

// What a CLOSE carries counts only if the CLOSE does, once, and if it is neither
// too short nor too long.
func TestForgedCloseReasons(t *testing.T) {
	inWorld(t, 2, clean, func(w *world) {
		a, b, _ := w.pair(nil, nil)
		b.mu.Lock()
		defer func() { _ = a.Abort() }()
		defer b.mu.Unlock()
		token, next := b.hs.token, b.kcp.recvNext()
		forge := func(token uint32, payload []byte) {
			p := make([]byte, headerSize+len(payload))
			signal{sigClose, uint32(next), token}.encode(header{conv: b.Conv(), wnd: 128}, p)
			putPayload(p, payload)
			require.NoError(t, b.kcp.Input(p))
		}
		forge(token+1, content(1, reasonCode)) // with another token it is nothing
		require.Nil(t, b.hs.reasons)
		require.False(t, b.hs.peerClosed)
		forge(token, content(1, reasonCode-1))
		forge(token, content(1, reasonCode+maxReasonText+1))
		require.Nil(t, b.hs.reasons)
		require.True(t, b.hs.peerClosed)
		forge(token, append(make([]byte, reasonCode), "first"...))
		forge(token, append(make([]byte, reasonCode), "second"...))
		require.Equal(t, "first", b.hs.reasons.peer.Text)
	})
}

// A peer that has not announced that it takes reasons gets a CLOSE without.
func TestCloseReasonOfEarlierPeer(t *testing.T) {
	inWorld(t, 3, netsim.LinkConfig{Delay: 5 * time.Millisecond}, func(w *world) {
		a, b, _ := w.pair(nil, nil)
		a.mu.Lock()
		a.hs.capabilities &^= capReason
		a.mu.Unlock()
		require.NoError(t, a.CloseWithError(9, "not for you"))
		_, err := b.Read(make([]byte, 1))
		require.True(t, errors.Is(err, io.EOF), "%v", err)
		require.NoError(t, b.Close())
	})
}

// No text of a peer brings control characters into the text of an error, where it
// would pass for lines of a log. What prints is left as it is.
func TestTextsOfPeersPrint(t *testing.T) {
	for text, shown := range map[string]string{
		"going down: back at 9 o'clock, 3 °C": "going down: back at 9 o'clock, 3 °C",
		"bye\nlevel=ERROR msg=forged":         `"bye\nlevel=ERROR msg=forged"`,
		"\x1b[2J\u202egpj.exe":                `"\x1b[2J\u202egpj.exe"`,
	} {
		inWorld(t, 0, clean, func(w *world) {
			var log records
			a, b, _ := w.pair(nil, &Config{Logger: log.Logger()})
			require.NoError(t, a.CloseWithError(9, text))
			_, err := b.Read(make([]byte, 1))
			wantReason(t, err, 9, text)
			require.ErrorContains(t, err, "kcp: session closed by the peer with code 9: "+shown)
			require.NoError(t, b.Close())
		})
	}
	requirePrints := func(err error) {
		require.Equal(t, -1, strings.IndexFunc(err.Error(), func(r rune) bool { return !strconv.IsPrint(r) }), "%q", err.Error())
		require.True(t, utf8.ValidString(err.Error()), "%q", err.Error())
	}
	inWorld(t, 0, clean, func(w *world) { // protocols of a client
		a, b := secured(Config{}), secured(Config{})
		a.TLS, b.TLS = a.TLS.Clone(), b.TLS.Clone()
		a.TLS.NextProtos, b.TLS.NextProtos = []string{"x\nlevel=ERROR", "\xff"}, []string{"game/1"}
		_, dialErr, acceptErr := w.dialTLS(a, b)
		requirePrints(dialErr)
		requirePrints(acceptErr)
		require.ErrorContains(t, acceptErr, `x\nlevel=ERROR`)
	})
	inWorld(t, 0, clean, func(w *world) { // names in a certificate
		a, b := secured(Config{}), secured(Config{})
		b.TLS = b.TLS.Clone()
		b.TLS.Certificates = []tls.Certificate{certificate(t, &a.TLS.Certificates[0], false, "y\nlevel=ERROR")}
		_, dialErr, acceptErr := w.dialTLS(a, b)
		requirePrints(dialErr)
		requirePrints(acceptErr)
		require.ErrorContains(t, dialErr, `level=ERROR`)
	})
}
