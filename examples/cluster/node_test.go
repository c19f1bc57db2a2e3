package cluster

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/testenv/await"
)

// expect receives messages until each node of from has sent count reliable ones, and
// compares them: all of them, once, in order.
func expect(t testing.TB, n *Node, count int, sizes []int, from ...*Node) {
	t.Helper()
	ctx := t.Context()
	next := make(map[string]int)
	for range count * len(from) {
		m, err := n.Receive(ctx)
		if err != nil {
			t.Errorf("%s has %v: %v", n.Name(), next, err)
			return
		}
		want := content(m.From, next[m.From], sizes[next[m.From]%len(sizes)])
		if !m.Reliable || !bytes.Equal(want, m.Data) {
			t.Errorf("%s: message %d of %s is wrong: %d bytes", n.Name(), next[m.From], m.From, len(m.Data))
			return
		}
		next[m.From]++
	}
	for _, f := range from {
		if next[f.Name()] != count {
			t.Errorf("%s has %d messages of %s, want %d", n.Name(), next[f.Name()], f.Name(), count)
		}
	}
}

// nothingWaits checks that no further message has arrived.
func nothingWaits(t testing.TB, n *Node) {
	t.Helper()
	n.arrived.mu.Lock()
	defer n.arrived.mu.Unlock()
	require.Empty(t, n.arrived.waiting, n.Name())
}

// Five nodes find each other, and each message to all arrives at each member once.
func TestFiveNodes(t *testing.T) {
	t.Parallel()
	all := testAuthority(t).nodes(t, "a", "b", "c", "d", "e")
	const count = 12
	sizes := []int{0, 1, 100, 1400, 20_000, 300_000}
	var running sync.WaitGroup
	for i, n := range all {
		running.Go(func() {
			for k := range count {
				if err := n.Broadcast(t.Context(), content(n.Name(), k, sizes[k%len(sizes)])); err != nil {
					t.Errorf("%s: %v", n.Name(), err)
				}
			}
		})
		running.Go(func() { expect(t, n, count, sizes, slices.Delete(slices.Clone(all), i, i+1)...) })
	}
	running.Wait()
	for _, n := range all {
		nothingWaits(t, n)
	}
}

// Datagrams arrive at most once, with the bytes and the name of the sender.
func TestDatagrams(t *testing.T) {
	t.Parallel()
	all := testAuthority(t).nodes(t, "a", "b", "c")
	want := content("a", 0, MaxDatagram)
	for _, n := range all[1:] {
		await.True(t, func() bool { // unreliable: again until one arrives
			require.NoError(t, all[0].BroadcastDatagram(want))
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			m, err := n.Receive(ctx)
			return err == nil && m.From == "a" && !m.Reliable && bytes.Equal(want, m.Data)
		})
	}
	require.ErrorIs(t, all[0].SendDatagram("b", make([]byte, MaxDatagram+1)), ErrMessageTooLarge)
	require.ErrorIs(t, all[0].BroadcastDatagram(make([]byte, MaxDatagram+1)), ErrMessageTooLarge)
	require.ErrorIs(t, all[0].SendDatagram("nobody", nil), ErrNotMember)
}

// nextEvent returns the next event of that kind.
func nextEvent(t testing.TB, n *Node, kind EventKind) Event {
	t.Helper()
	for {
		if e := <-n.Events(); e.Kind == kind {
			return e
		}
	}
}

// A node that leaves is told from one that dies.
func TestEvents(t *testing.T) {
	t.Parallel()
	all := testAuthority(t).nodes(t, "a", "b", "c")
	e := nextEvent(t, all[0], Joined)
	require.Contains(t, []string{"b", "c"}, e.Member.Name)
	require.NoError(t, all[1].Leave(patience))
	for _, n := range []*Node{all[0], all[2]} {
		require.Equal(t, Member{"b", all[1].Addr()}, nextEvent(t, n, Left).Member)
	}
	require.NoError(t, all[1].Close())

	ca, quick := testAuthority(t), func(c *Config) { c.Memberlist = quickList() }
	a := ca.node(t, "a", quick)
	dies := ca.node(t, "d", quick, a)
	allKnow(t, a, dies)
	require.NoError(t, dies.Close()) // without a word
	require.Equal(t, "d", nextEvent(t, a, Died).Member.Name)
	await.True(t, func() bool { return len(a.Members()) == 0 })
	require.ErrorIs(t, a.Send(t.Context(), "d", nil), ErrNotMember)
}

// Members of two halves of a network find each other again, also if memberlist has
// forgotten them meanwhile.
func TestRejoin(t *testing.T) {
	t.Parallel()
	ca := testAuthority(t)
	cut := listenCut(t)
	short := func(c *Config) {
		c.Memberlist = quickList()
		c.Memberlist.GossipToTheDeadTime = time.Millisecond
	}
	a := ca.node(t, "a", short)
	b := ca.node(t, "b", func(c *Config) { short(c); c.PacketConn = cut }) // without seeds
	_, err := b.Join(a.Addr().String())
	require.NoError(t, err)
	allKnow(t, a, b)
	await.True(t, func() bool { return a.Send(t.Context(), "b", []byte("hello")) == nil })
	cut.cut.Store(true)
	nextEvent(t, a, Died)
	nextEvent(t, b, Died)
	require.Positive(t, cut.dropped.Load())
	cut.cut.Store(false)
	await.True(t, func() bool { return a.Send(t.Context(), "b", []byte("hello again")) == nil })
}

// cutSessions ends all sessions of a node at once, without a word to its messages.
func cutSessions(n *Node) {
	t := n.transport
	t.mu.Lock()
	var all []*session
	for _, list := range t.byAddr {
		all = append(all, list...)
	}
	t.mu.Unlock()
	for _, s := range all {
		_ = s.conn.Abort()
	}
}

// queueAll queues count messages from one node to another, in order, and waits until all
// are done.
func queueAll(t *testing.T, from, to *Node, count int, sizes []int) {
	var sends sync.WaitGroup
	for k := range count {
		l, err := from.link(to.Name())
		if err != nil {
			t.Error(err)
			return
		}
		o, err := l.queue(t.Context(), content(from.Name(), k, sizes[k%len(sizes)]))
		if err != nil {
			t.Error(err)
			return
		}
		sends.Go(func() {
			if err := <-o.done; err != nil {
				t.Errorf("message %d of %s: %v", k, from.Name(), err)
			}
		})
	}
	sends.Wait()
}

// Reliable messages arrive once and in order although their sessions end again and
// again.
func TestSessionsEndUnderMessages(t *testing.T) {
	t.Parallel()
	ca := testAuthority(t)
	const buffer, count = 200_000, 100
	patient := func(c *Config) { c.ReceiveBuffer, c.Memberlist = buffer, patientList() }
	a := ca.node(t, "a", patient)
	all := []*Node{a, ca.node(t, "b", patient, a)}
	allKnow(t, all...)
	sizes := []int{10, 30_000}
	var running sync.WaitGroup
	for i, n := range all {
		running.Go(func() { queueAll(t, n, all[1-i], count, sizes) })
	}
	// Nobody receives, so messages remain that nobody has acknowledged. A cut makes the
	// nodes send them again.
	polls := 0
	await.True(t, func() bool {
		if polls++; polls%10 == 0 {
			cutSessions(a)
		}
		return all[0].Stats().Resent > 0 && all[1].Stats().Resent > 0
	})
	for i, n := range all {
		running.Go(func() { expect(t, all[1-i], count, sizes, n) })
	}
	for i := range 4 {
		time.Sleep(time.Duration(20+rand.IntN(60)) * time.Millisecond)
		cutSessions(all[i%2])
	}
	running.Wait()
	for _, n := range all {
		nothingWaits(t, n)
	}
}

// A message to a member that dies fails with ErrNodeGone. Broadcast says to whom.
func TestMemberDiesUnderMessages(t *testing.T) {
	t.Parallel()
	ca := testAuthority(t)
	cut := listenCut(t)
	a := ca.node(t, "a", nil)
	b := ca.node(t, "b", nil, a)
	c := ca.node(t, "c", func(c *Config) { c.PacketConn = cut }, a)
	allKnow(t, a, b, c)
	cut.cut.Store(true)
	err := a.Broadcast(t.Context(), []byte("who is there?"))
	var failed *BroadcastError
	require.ErrorAs(t, err, &failed)
	require.Len(t, failed.Failed, 1)
	require.ErrorIs(t, failed.Failed["c"], ErrNodeGone)
	require.True(t, strings.Contains(err.Error(), "to c:"), err)
	m, err := b.Receive(t.Context())
	require.NoError(t, err)
	require.Equal(t, Message{"a", []byte("who is there?"), true}, m)
}

// An inbox tells apart the processes of a node, and remembers the last few.
func TestInstances(t *testing.T) {
	t.Parallel()
	in := &inbox{turn: make(chan struct{}, 1)}
	q := &queue{limit: 1 << 20}
	ctx := t.Context()
	for _, step := range []struct {
		id, number uint64
		duplicate  bool
	}{
		{1, 5, false}, {1, 5, true}, {1, 4, true}, {2, 1, false}, {1, 6, false}, {2, 1, true},
	} {
		again, err := in.deliver(ctx, step.id, step.number, q, Message{})
		require.NoError(t, err)
		require.Equal(t, step.duplicate, again, "%+v", step)
	}
	for id := range uint64(10) {
		_, err := in.deliver(ctx, 100+id, 1, q, Message{})
		require.NoError(t, err)
	}
	require.Len(t, in.instances, maxInstances)
}
