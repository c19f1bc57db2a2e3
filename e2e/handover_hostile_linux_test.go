package e2e

import (
	"context"
	"crypto/aes"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// A successor that is configured otherwise is refused, and nothing has changed.
func TestTakeoverDiffers(t *testing.T) {
	t.Parallel()
	other, err := crypt.AESGCM(make([]byte, 16))
	require.NoError(t, err)
	block, err := aes.NewCipher(make([]byte, 16))
	require.NoError(t, err)
	for _, test := range []struct {
		field     string
		value     any
		old, next kcp.Config
	}{
		{"TLS", "not set", *secured(kcp.Config{}), kcp.Config{}},
		{"Cipher", "set", kcp.Config{}, kcp.Config{Cipher: other}},
		{"Cipher", "another", kcp.Config{Cipher: testenv.AEAD(t)}, kcp.Config{Cipher: other}},
		{"Cipher", "another", kcp.Config{Cipher: testenv.AEAD(t)}, kcp.Config{Cipher: crypt.CFB(block)}},
		{"FEC", "not set", kcp.Config{FEC: kcp.FEC{Data: 3, Parity: 1}}, kcp.Config{}},
		{"Shards", 2, kcp.Config{}, kcp.Config{Shards: 2}},
		{"SharedConvs", true, kcp.Config{}, kcp.Config{SharedConvs: true}},
		{"LegacyPeers", "LegacyRefuse", kcp.Config{}, kcp.Config{LegacyPeers: kcp.LegacyRefuse}},
		{"LegacyPeers", "LegacyDefault", kcp.Config{LegacyPeers: kcp.LegacyRefuse}, kcp.Config{}},
	} {
		t.Run(fmt.Sprint(test.field, " ", test.value), func(t *testing.T) {
			l, err := kcp.Listen("udp", "127.0.0.1:0", &test.old)
			require.NoError(t, err)
			serves(t, "old", l)
			a, b := unixPair(t)
			left := make(chan error)
			go func() { left <- l.HandOver(unhurried(), a) }()
			_, err = kcp.TakeOver(unhurried(), b, &test.next)
			var differs *kcp.ConfigError
			require.ErrorAs(t, err, &differs)
			require.Equal(t, test.field, differs.Field)
			require.Equal(t, test.value, differs.Value)
			err = <-left
			require.ErrorContains(t, err, "the new process refuses: "+differs.Error())
			var told *kcp.ConfigError
			require.ErrorAs(t, err, &told)
			require.Equal(t, differs, told)
			dial := test.old
			dials(t, l.Addr(), &dial, "old").echoes(t, 1000)
		})
	}
}

// A hostile process at the other end causes an error, and no session is lost.
func TestTakeoverHostileSuccessor(t *testing.T) {
	t.Parallel()
	l, err := kcp.Listen("udp", "127.0.0.1:0", nil)
	require.NoError(t, err)
	serves(t, "old", l)
	c := dials(t, l.Addr(), nil, "old")
	for name, hostile := range map[string]func(link *takeover.Link, conn *net.UnixConn){
		"gone": func(_ *takeover.Link, conn *net.UnixConn) { _ = conn.Close() },
		"gone after agreeing": func(link *takeover.Link, conn *net.UnixConn) {
			_ = link.Send(takeover.AgreeKind, nil)
			_ = conn.Close()
		},
		"gone after ready": func(link *takeover.Link, conn *net.UnixConn) {
			_ = link.Send(takeover.AgreeKind, nil)
			_, _, _ = link.Receive(takeover.OfferKind)
			_, _, _ = link.Receive(takeover.StateKind)
			_ = link.Send(takeover.ReadyKind, nil)
			_, _, _ = link.Receive(takeover.NotesKind)
			_ = conn.Close()
		},
		"silent": func(*takeover.Link, *net.UnixConn) {},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := unixPair(t)
			link, err := takeover.NewLink(unhurried(), b, "")
			require.NoError(t, err)
			done := make(chan struct{})
			go func() { hostile(link, b); close(done) }()
			ctx := impatient(t)
			if strings.HasPrefix(name, "gone") {
				ctx = unhurried() // it ends by itself
			}
			err = l.HandOver(ctx, a)
			<-done
			require.Error(t, err)
			if strings.HasPrefix(name, "gone") {
				require.EqualError(t, err, "hand over kcp "+l.Addr().String()+": the new process has ended, or closed the socket")
			}
			link.Close()
			c.echoes(t, 10_000)
			dials(t, l.Addr(), nil, "old").echoes(t, 1000)
			require.NoError(t, a.Close())
			_ = b.Close()
		})
	}
	a, _ := unixPair(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, l.HandOver(ctx, a), context.Canceled)
	c.echoes(t, 10_000)
}

// impatient returns a context that ends soon, in short tests. In others TakeOver and
// HandOver give up by themselves.
func impatient(t *testing.T) context.Context {
	if !testing.Short() {
		return t.Context()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// openFileCount returns the number of descriptors of the process.
func openFileCount(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// A hostile predecessor causes an error, and no descriptor is lost. (Tests beside this
// one would open some.)
func TestTakeoverHostilePredecessor(t *testing.T) {
	offer := &takeover.Offer{Version: takeover.Version, Sockets: 1, LegacyPeers: true}
	file, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer file.Close()
	agreed := func(link *takeover.Link) {
		_ = link.Send(takeover.OfferKind, takeover.Encode(offer))
		_, _, _ = link.Receive(takeover.AgreeKind)
	}
	state := takeover.Encode(&takeover.State{})
	for name, hostile := range map[string]func(link *takeover.Link, conn *net.UnixConn){
		"gone": func(_ *takeover.Link, conn *net.UnixConn) { _ = conn.Close() },
		"no descriptors": func(link *takeover.Link, _ *net.UnixConn) {
			agreed(link)
			_ = link.Send(takeover.StateKind, state)
		},
		"no sockets": func(link *takeover.Link, _ *net.UnixConn) {
			agreed(link)
			_ = link.Send(takeover.StateKind, state, slices.Repeat([]int{int(file.Fd())}, offer.Files())...)
		},
		"no pipe": func(link *takeover.Link, _ *net.UnixConn) {
			agreed(link)
			pc, err := net.ListenUDP("udp", nil)
			require.NoError(t, err)
			fd, err := takeover.Duplicate(pc)
			require.NoError(t, err)
			_ = link.Send(takeover.StateKind, state, slices.Repeat([]int{fd}, offer.Files())...)
			takeover.CloseFiles([]int{fd})
			_ = pc.Close()
		},
		"silent": func(*takeover.Link, *net.UnixConn) {},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := unixPair(t)
			before := openFileCount(t)
			link, err := takeover.NewLink(unhurried(), a, "")
			require.NoError(t, err)
			go hostile(link, a)
			ctx := impatient(t)
			if name == "gone" {
				ctx = unhurried() // it ends by itself
			}
			_, err = kcp.TakeOver(ctx, b, nil)
			require.Error(t, err)
			if name == "gone" {
				require.EqualError(t, err, "take over kcp: the old process has ended, or closed the socket")
			}
			testenv.Await(t, func() bool { return openFileCount(t) <= before })
			link.Close()
		})
	}
}

// Sockets of the caller that are no UDP sockets cannot be passed.
func TestHandOverUnsupported(t *testing.T) {
	pc, err := net.ListenPacket("unixgram", t.TempDir()+"/socket")
	require.NoError(t, err)
	defer pc.Close()
	e, err := kcp.NewEndpoint(pc, nil)
	require.NoError(t, err)
	l, err := e.Listen()
	require.NoError(t, err)
	require.ErrorIs(t, l.HandOver(context.Background(), unconnected(t)), errors.ErrUnsupported)
	require.NoError(t, e.Close())
}
