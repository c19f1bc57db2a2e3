package kcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// messageLog is what one end has sent by SendMessage, and what it knows of it.
type messageLog struct {
	t    *testing.T
	mu   sync.Mutex
	sent [][]byte
	done map[int]error // receipts, as far as they have come
}

// send sends a message of size bytes that begins with its number.
func (l *messageLog) send(c *Conn, size int, o MessageOptions) {
	l.mu.Lock()
	i := len(l.sent)
	p := binary.LittleEndian.AppendUint32(nil, uint32(i))
	p = append(p, content(uint64(i), size)...)
	l.sent = append(l.sent, p)
	l.mu.Unlock()
	o.Done = func(err error) {
		_ = c.Stats() // no lock is held
		l.mu.Lock()
		defer l.mu.Unlock()
		if _, twice := l.done[i]; twice {
			l.t.Errorf("two receipts for message %d", i)
		}
		l.done[i] = err
	}
	if err := c.SendMessage(p, &o); err != nil {
		l.t.Error(err)
	}
}

// read reads messages to the end of the session, and demands that each is one of
// those sent, in their order. It returns their numbers.
func (l *messageLog) read(c *Conn) (got []int, err error) {
	buf := make([]byte, 1<<18)
	for last := -1; ; {
		n, err := c.ReadMessage(buf)
		if err != nil {
			return got, err
		}
		i := int(binary.LittleEndian.Uint32(buf))
		l.mu.Lock()
		if i <= last || i >= len(l.sent) || !bytes.Equal(buf[:n], l.sent[i]) {
			l.t.Errorf("message %d after %d, of %d bytes", i, last, n)
		}
		l.mu.Unlock()
		got, last = append(got, i), i
	}
}

// check demands one receipt for each message, ErrMessageAbandoned for those that
// did not arrive, and no other reason. It returns how many say so.
func (l *messageLog) check(got []int) (abandoned int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Len(l.t, l.done, len(l.sent))
	for i, err := range l.done {
		if err == nil {
			require.Contains(l.t, got, i, "the receipt says delivered")
		} else {
			require.ErrorIs(l.t, err, ErrMessageAbandoned)
			abandoned++
		}
	}
	return abandoned
}

// Messages of any size over a link that loses much, some with a lifetime or few
// retransmissions, and the end of what is written right behind them: what arrives
// is whole and in order, what is given up holds up nothing, and each has one
// receipt, which is true. Streams go on beside them.
func TestSendMessage(t *testing.T) {
	for seed := range fewer(16) {
		inWorld(t, seed, lossy, func(w *world) {
			random := rand.New(rand.NewPCG(seed, 3))
			a, b, _ := w.pair(&Config{MessageMode: true, SendWindow: 8 << (seed % 3 * 3)}, nil)
			l := &messageLog{t: t, done: make(map[int]error)}
			if seed%2 == 0 {
				s, r := streamPair(t, a, b, &StreamOptions{Priority: 1})
				go func() { bothWays(t, s, r, content(1, 50000), content(2, 20000)) }()
			}
			go func() {
				for range 100 {
					o := MessageOptions{MaxRetransmits: random.IntN(4) - 1, Lifetime: time.Duration(random.IntN(3)) * 50 * time.Millisecond}
					if random.IntN(4) == 0 {
						o = MessageOptions{}
					}
					l.send(a, random.IntN(1+random.IntN(9000)), o)
					if random.IntN(3) == 0 {
						time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
					}
				}
				if err := a.CloseWrite(); err != nil {
					t.Error(err)
				}
			}()
			got, err := l.read(b)
			require.Equal(t, io.EOF, err)
			time.Sleep(5 * time.Second)
			require.Greater(t, l.check(got), 0)
			require.Zero(t, b.Stats().Dropped.Total())
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		})
	}
}

// Through an outage of three seconds, messages with a lifetime of 100 ms are
// delivered if they were written before it, or less than that before its end, and
// no others. To a peer without streams, those in flight are delivered too.
func TestSendMessageInOutage(t *testing.T) {
	const lifetime, tick = 100 * time.Millisecond, time.Second / 60
	for _, v := range []struct {
		streams int // Config.MaxStreams of the receiver
		window  int
		late    int // messages that are delivered though they are old
	}{{0, 0, 0}, {0, 8, 0}, {-1, 8, 8}} {
		inWorld(t, 4, netsim.LinkConfig{Delay: 40 * time.Millisecond}, func(w *world) {
			a, b, _ := w.pair(&Config{MessageMode: true, SendWindow: v.window}, &Config{MaxStreams: v.streams})
			l := &messageLog{t: t, done: make(map[int]error)}
			var got []int
			var wg sync.WaitGroup
			wg.Go(func() { got, _ = l.read(b) })
			for i := range 60 * 6 {
				switch i {
				case 60:
					w.net.Cut("10.0.0.1", "10.0.0.2")
				case 60 * 4:
					w.net.Heal("10.0.0.1", "10.0.0.2")
				}
				l.send(a, 100, MessageOptions{Lifetime: lifetime})
				time.Sleep(tick)
			}
			time.Sleep(5 * time.Second)
			require.NoError(t, a.Close())
			wg.Wait()
			late := 0
			for _, i := range got {
				if at := time.Duration(i) * tick; i >= 60 && at < 4*time.Second-lifetime-tick {
					late++
				}
			}
			require.LessOrEqual(t, late, v.late, "%+v", v)
			require.GreaterOrEqual(t, late, min(v.late, 1), "%+v", v)
			require.GreaterOrEqual(t, len(got), 170, "%+v", v)
			require.Greater(t, l.check(got), 160, "%+v", v)
			require.NoError(t, b.Close())
		})
	}
}

// What SendMessage refuses, and that it needs message mode.
func TestSendMessageErrors(t *testing.T) {
	inWorld(t, 5, clean, func(w *world) {
		a, b, _ := w.pair(&Config{MessageMode: true}, nil)
		never := func(error) { t.Error("a receipt for what was refused") }
		for _, o := range []MessageOptions{{Lifetime: -1}, {Lifetime: 50 * 24 * time.Hour}, {MaxRetransmits: 65535}} {
			o.Done = never
			require.ErrorIs(t, a.SendMessage(nil, &o), errStreamOptions)
		}
		require.ErrorIs(t, a.SendMessage(make([]byte, a.MaxMessageSize()+1), &MessageOptions{Done: never}), ErrMessageTooLarge)
		require.ErrorIs(t, b.SendMessage(nil, &MessageOptions{Done: never}), ErrNotMessageMode)
		require.ErrorIs(t, b.SendMessage(nil, nil), ErrNotMessageMode)
		require.NoError(t, a.SendMessage([]byte("x"), nil))
		require.NoError(t, a.SendMessage(nil, &MessageOptions{}))
		receive(t, b, []byte("x"))
		n, err := b.ReadMessage(nil)
		require.NoError(t, err)
		require.Zero(t, n)
		require.NoError(t, a.Close())
		require.ErrorIs(t, a.SendMessage(nil, &MessageOptions{Done: never}), net.ErrClosed)
		require.NoError(t, b.Close())
	})
}

// Receipts of what was not delivered say why, and Close says ErrNotDelivered only if
// something is missing that was not given up.
func TestSendMessageThatFails(t *testing.T) {
	abandoned := MessageOptions{Lifetime: 100 * time.Millisecond}
	for _, tc := range []struct {
		name string
		send []MessageOptions
		end  func(w *world, a, b *Conn) error
		want []error
		err  error // of end
	}{
		{"close", []MessageOptions{{MaxRetransmits: -1}, abandoned, abandoned}, func(_ *world, a, _ *Conn) error { return a.Close() },
			[]error{ErrMessageAbandoned, ErrMessageAbandoned, ErrMessageAbandoned}, nil},
		{"close with a loss", []MessageOptions{abandoned, {}, abandoned}, func(_ *world, a, _ *Conn) error { return a.Close() },
			[]error{ErrMessageAbandoned, ErrNotDelivered, ErrMessageAbandoned}, ErrNotDelivered},
		{"abort", []MessageOptions{{}, {Lifetime: time.Hour}}, func(_ *world, a, _ *Conn) error { return a.Abort() },
			[]error{net.ErrClosed, net.ErrClosed}, nil},
		{"peer closes", []MessageOptions{{}, {Lifetime: time.Hour}}, func(w *world, _, b *Conn) error {
			w.net.Heal("10.0.0.1", "10.0.0.2")
			return b.Close()
		}, []error{ErrPeerClosed, ErrPeerClosed}, nil},
	} {
		inWorld(t, 6, clean, func(w *world) {
			a, b, _ := w.pair(&Config{MessageMode: true, Linger: time.Second}, nil)
			time.Sleep(time.Second)
			w.net.Cut("10.0.0.1", "10.0.0.2")
			var mu sync.Mutex
			got := make([][]error, len(tc.send))
			for i, o := range tc.send {
				o.Done = func(err error) {
					mu.Lock()
					defer mu.Unlock()
					got[i] = append(got[i], err)
				}
				require.NoError(t, a.SendMessage(content(uint64(i), 5000), &o))
			}
			time.Sleep(time.Second)
			require.ErrorIs(t, tc.end(w, a, b), tc.err, tc.name)
			time.Sleep(2 * time.Minute)
			mu.Lock()
			defer mu.Unlock()
			for i, want := range tc.want {
				require.True(t, len(got[i]) == 1 && errors.Is(got[i][0], want), "%s: message %d: %v", tc.name, i, got[i])
			}
		})
	}
}

// What is sent again without content drops its message, whatever of it arrives, and
// in which order, and no other.
func TestAbandonedSegments(t *testing.T) {
	type part struct {
		frg  uint8
		text string // "": abandoned
	}
	for _, tc := range []struct {
		parts []part
		want  []string
	}{
		{[]part{{0, ""}, {0, "b"}}, []string{"b"}},
		{[]part{{0, "a"}, {0, ""}, {0, "c"}}, []string{"a", "c"}},
		{[]part{{1, ""}, {0, "a"}, {0, "b"}}, []string{"b"}},                      // the rest has arrived
		{[]part{{1, "a"}, {0, ""}, {0, "b"}}, []string{"b"}},                      // the beginning has
		{[]part{{2, "a"}, {1, ""}, {0, "c"}, {1, "d"}, {0, "e"}}, []string{"de"}}, // in the middle
		{[]part{{9, "a"}, {0, ""}, {1, "b"}, {0, "c"}}, []string{"bc"}},           // the rest was not sent
		{[]part{{9, ""}, {0, ""}, {8, "b"}}, nil},
		{[]part{{9, ""}, {0, "b"}, {8, ""}, {7, "c"}, {0, "d"}}, []string{"b", "d"}}, // from a bad peer
		{[]part{{0, "a"}, {255, ""}, {254, "b"}, {0, "c"}}, []string{"a", "c"}},
	} {
		for i := range fewer(24) {
			k := New(1, func([]byte) {})
			require.NoError(t, k.SetWindow(32, 32))
			newTestHost(t, k)
			order := rand.Perm(len(tc.parts))
			if i < 2 {
				slices.Sort(order)
			}
			direct := make([]byte, 16)
			if i%2 == 1 {
				k.lendReadBuffer(direct)
			}
			for _, sn := range order {
				input := func() {
					p := tc.parts[sn]
					h := header{conv: 1, cmd: cmdPush, frg: p.frg, wnd: 32, sn: seq(sn), len: uint32(len(p.text))}
					payload := []byte(p.text)
					if p.text == "" {
						payload = (&streamHeader{kind: streamAbandon}).append(nil)
						h.cmd, h.len = cmdStream, uint32(len(payload))
					}
					b := make([]byte, headerSize+len(payload))
					h.encode(b)
					copy(b[headerSize:], payload)
					require.NoError(t, k.Input(b))
					books, err := k.recount()
					require.NoError(t, err)
					require.Equal(t, k.books(), books)
				}
				input()
				input() // a duplicate
			}
			var got []string
			if i%2 == 1 {
				n := len(direct) - k.takeReadBuffer()
				n += k.recvBytes(direct[n:])
				require.Equal(t, strings.Join(tc.want, ""), string(direct[:n]), "%v in the order %v", tc.parts, order)
				continue
			}
			for k.PeekSize() >= 0 {
				p := make([]byte, k.PeekSize())
				n, err := k.Recv(p)
				require.NoError(t, err)
				got = append(got, string(p[:n]))
			}
			require.Equal(t, tc.want, got, "%v in the order %v", tc.parts, order)
			require.EqualValues(t, len(tc.parts), k.rcv.nxt)
			require.EqualValues(t, len(tc.parts), k.counters.Duplicates)
			require.Zero(t, k.rcv.void)
		}
	}
}

// An abandoned segment outside the window is dropped, as is one of another stream,
// or of another form, for the session itself; and one at an end that takes no
// streams.
func TestBadAbandonedSegments(t *testing.T) {
	abandon := (&streamHeader{kind: streamAbandon}).append(nil)
	for _, v := range []struct {
		name    string
		payload []byte
		sn      seq // beyond rcv_nxt
		streams int
		want    Drops
		beyond  uint64 // counted as out of the window
	}{
		{name: "as it must be", payload: abandon},
		{name: "outside the window", payload: abandon, sn: 1 << 31, beyond: 1},
		{name: "behind the window", payload: abandon, sn: maxWindow, beyond: 1},
		{name: "too long", payload: append(slices.Clone(abandon), 0), want: Drops{Stream: 1}},
		{name: "too short", payload: abandon[:10], want: Drops{Stream: 1}},
		{name: "with bit 3", payload: (&streamHeader{kind: streamAbandon, end: true}).append(nil), want: Drops{Stream: 1}},
		{name: "DATA", payload: append((&streamHeader{kind: streamData, end: true}).append(nil), 0, 0), want: Drops{Stream: 1}},
		{name: "no streams here", payload: abandon, streams: -1, want: Drops{Command: 1}},
	} {
		inWorld(t, 7, clean, func(w *world) {
			a, b, _ := w.pair(&Config{MessageMode: true}, &Config{MaxStreams: v.streams})
			require.NoError(t, a.WriteMessage([]byte("before")))
			receive(t, b, []byte("before"))
			b.mu.Lock()
			h := header{conv: b.Conv(), cmd: cmdStream, wnd: 100, sn: b.kcp.rcv.nxt + v.sn, una: b.kcp.snd.una, len: uint32(len(v.payload))}
			p := make([]byte, headerSize+len(v.payload))
			h.encode(p)
			copy(p[headerSize:], v.payload)
			before := b.kcp.counters.OutOfWindow
			b.packetDone(b.kcp.Input(p), len(p), b.ep.now())
			require.Equal(t, v.beyond, b.kcp.counters.OutOfWindow-before, v.name)
			moved := b.kcp.rcv.nxt == h.sn+1
			b.mu.Unlock()
			require.Equal(t, v.want, b.Stats().Dropped, v.name)
			require.Equal(t, v.beyond == 0 && v.want.Command == 0, moved, v.name)
			if moved { // the sender would find that out as if it had sent it
				_ = a.Abort()
				return
			}
			require.NoError(t, a.WriteMessage([]byte("after")))
			receive(t, b, []byte("after"))
			require.NoError(t, a.Close())
		})
	}
}

// A sender that always has something to send and whose messages are too old before
// they can leave: what is taken out of the queue leaves no room behind, and those
// that are not too old keep their order.
func TestQueueOfSpentMessages(t *testing.T) {
	sequential(t)
	k := New(1, func([]byte) {})
	k.SetExtensions(Extensions{PipeWindow: true})
	h := newTestHost(t, k)
	now := uint32(1)
	k.SetClock(now)
	fed := 0
	for range 2000 {
		for range 3 {
			fed++
			tag := &streamTag{deadline: int64(now+5) * 1000}
			require.NoError(t, k.sendMessage(make([]byte, fed%4*1000), tag))
		}
		now++
		k.SetClock(now)
		k.Flush()
		for k.dropSpent() {
		}
		require.LessOrEqual(t, len(k.snd.ring.slots), 512)
		h.check()
		b, err := k.recount()
		require.NoError(t, err)
		require.Equal(t, k.books(), b)
	}
	last := int64(0)
	k.messages(func(tag *streamTag) {
		if !tag.begun {
			require.GreaterOrEqual(t, tag.deadline, last)
			last = tag.deadline
			require.Greater(t, last, int64(now)*1000)
		}
	})
	require.NotZero(t, last)
}
