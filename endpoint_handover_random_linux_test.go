package kcp

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/takeover"
	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/stretchr/testify/require"
)

// randomMessages writes messages to conn that are in order or not, whole or not, and
// within their limits or not, and then closes it. Most of them are of the kinds that are
// expected, with the payloads given for them, and the descriptors of StateKind.
func randomMessages(rng *rand.Rand, conn *net.UnixConn, link *takeover.Link, expected []takeover.Kind, payloads map[takeover.Kind][]byte, state ...int) {
	random := func(n int) []byte {
		b := make([]byte, rng.IntN(n+1))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	for _, kind := range expected {
		payload := append([]byte(nil), payloads[kind]...)
		var files []int
		if kind == takeover.StateKind {
			files = state
		}
		switch rng.IntN(24) {
		case 0:
			payload = random(200)
		case 1:
			if len(payload) > 0 {
				payload[rng.IntN(len(payload))] ^= 1 << rng.IntN(8)
			}
		case 2:
			payload = append(payload, random(70_000)...)
		case 3:
			kind = takeover.Kind(rng.Uint32())
		case 4: // less than it says
			b := binary.LittleEndian.AppendUint32([]byte{byte(kind)}, uint32(len(payload)+1+rng.IntN(100)))
			_, _ = conn.Write(append(b, payload...))
			_ = conn.CloseWrite()
			return
		case 5: // more than any message has
			_, _ = conn.Write(binary.LittleEndian.AppendUint32([]byte{byte(kind)}, rng.Uint32()|1<<20))
		case 6:
			_, _ = conn.Write(random(20))
		case 7: // too many descriptors, or those of something else
			for range rng.IntN(9) {
				files = append(files, 0)
			}
		}
		_ = conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)) // nobody may read
		if link.Send(kind, payload, files...) != nil {
			break
		}
	}
	_ = conn.CloseWrite()
}

// Whatever a successor says, no session is lost, and another one can take over.
func TestTakeoverRandomSuccessor(t *testing.T) {
	l, err := Listen("udp", "127.0.0.1:0", nil)
	require.NoError(t, err)
	g := serves(t, "old", l)
	c := dials(t, l.Addr(), nil, "old")
	before := openFileCount(t)
	for seed := range uint64(fewer(200)) {
		rng := rand.New(rand.NewPCG(seed, 1))
		a, b := unixPair(t)
		link, err := takeover.NewLink(context.Background(), b, "")
		require.NoError(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			// It never confirms, or it would have taken over.
			randomMessages(rng, b, link, []takeover.Kind{takeover.AgreeKind, takeover.ReadyKind, takeover.RefuseKind}, map[takeover.Kind][]byte{takeover.RefuseKind: []byte("no\x00{}")})
		}()
		require.Error(t, l.HandOver(impatient(t), a), "seed %d", seed)
		<-done
		link.Close()
		require.NoError(t, a.Close())
		_ = b.Close()
		c.echoes(t, 1000)
	}
	await.True(t, func() bool { return openFileCount(t) <= before })
	next := g.handsOver(t, "next", nil)
	dials(t, next.l.Addr(), nil, "next").echoes(t, 1000)
	c.echoes(t, 1000)
}

// Whatever a predecessor says, TakeOver returns an error, and leaves no descriptor.
func TestTakeoverRandomPredecessor(t *testing.T) {
	offer := takeover.Encode(&takeover.Offer{Version: takeover.Version, Sockets: 1, LegacyPeers: true})
	payloads := map[takeover.Kind][]byte{takeover.OfferKind: offer, takeover.StateKind: takeover.Encode(&takeover.State{})}
	deep := 0 // exchanges that have come to an end in which the sockets were taken
	for seed := range uint64(fewer(200)) {
		rng := rand.New(rand.NewPCG(seed, 2))
		a, b := unixPair(t)
		pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		socket, err := takeover.Duplicate(pc)
		require.NoError(t, err)
		feed, theirs, err := takeover.NewPipe()
		require.NoError(t, err)
		news, theirNews, err := takeover.NewPipe()
		require.NoError(t, err)
		news.TryWrite((&takeover.Note{Kind: takeover.Over}).Append(nil)) // it has given up, and is not dead
		payloads[takeover.NotesKind] = nil
		for range rng.IntN(20) {
			n := takeover.Note{Kind: takeover.NoteKind(1 + rng.IntN(5)), Addr: udpAddr("10.0.0.1:1").AddrPort(), Conv: rng.Uint32N(5)}
			if rng.IntN(20) == 0 {
				n.Of = rng.Uint32()
			}
			payloads[takeover.NotesKind] = n.Append(payloads[takeover.NotesKind])
		}
		before := openFileCount(t)
		link, err := takeover.NewLink(context.Background(), a, "")
		require.NoError(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			randomMessages(rng, a, link, []takeover.Kind{takeover.OfferKind, takeover.StateKind, takeover.NotesKind, takeover.CommitKind}, payloads, socket, theirs, theirNews)
		}()
		_, err = TakeOver(impatient(t), b, nil)
		require.Error(t, err, "seed %d", seed)
		<-done
		for { // what TakeOver has answered
			kind, _, err := link.Receive(takeover.AgreeKind, takeover.ReadyKind, takeover.ConfirmKind)
			if err != nil {
				break
			}
			if kind == takeover.ConfirmKind {
				deep++
			}
			if kind != takeover.AgreeKind && kind != takeover.ReadyKind {
				break
			}
		}
		link.Close()
		await.True(t, func() bool { return openFileCount(t) <= before })
		_, _ = a.Close(), b.Close()
		takeover.CloseFiles([]int{socket, theirs, theirNews})
		feed.Close()
		news.Close()
		_ = pc.Close()
	}
	require.Positive(t, deep)
}
