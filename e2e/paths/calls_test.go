package paths

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

// kinds are paths of every kind.
var kinds = map[string]path{
	"0.1 ms":      delay(100 * time.Microsecond),
	"80 ms":       delay(80 * time.Millisecond),
	"600 ms":      delay(600 * time.Millisecond),
	"3 s":         delay(3 * time.Second),
	"64 kbit/s":   bothNarrow(0.064, time.Second, 100*time.Millisecond),
	"1 Mbit/s":    bothNarrow(1, 10*time.Second, 40*time.Millisecond),
	"lossy":       lossy(0.1, netsim.GilbertElliott{}),
	"bursts":      lossy(0, netsim.BurstLoss(0.05, 4)),
	"jitter":      jittery(100 * time.Millisecond),
	"bunches":     bunched(205 * time.Millisecond),
	"small":       small(1232),
	"policer":     policed(1),
	"back narrow": changed(delay(40*time.Millisecond), func(p *path) { p.up.Rate, p.up.Queue = megabits(0.064), 16<<10 }),
}

func bothNarrow(rate float64, queue, rtt time.Duration) path {
	p := narrow(rate, queue, rtt)
	p.up = p.down
	return p
}

func lossy(share float64, burst netsim.GilbertElliott) path {
	p := delay(60 * time.Millisecond)
	for _, l := range []*netsim.LinkConfig{&p.up, &p.down} {
		l.Loss, l.Burst = share, burst
	}
	return p
}

func jittery(most time.Duration) path {
	p := delay(60 * time.Millisecond)
	p.up.Jitter, p.down.Jitter = most, most
	return p
}

func bunched(every time.Duration) path {
	p := delay(20 * time.Millisecond)
	p.up.Bunch, p.down.Bunch = every, every
	return p
}

func small(mtu int) path {
	p := delay(40 * time.Millisecond)
	p.up.MTU, p.down.MTU = mtu, mtu
	return p
}

func policed(rate float64) path {
	p := delay(30 * time.Millisecond)
	p.down.Rate, p.down.Bucket, p.down.Queue = megabits(rate), 8000, 1
	return p
}

// changes are what may happen to a path during a call.
var changes = map[string]func(w *world, p path){
	"none":             func(*world, path) {},
	"longer":           func(w *world, p path) { w.set(longer(p, 400*time.Millisecond)) },
	"shorter":          func(w *world, p path) { p.up.Delay /= 4; p.down.Delay /= 4; w.set(p) },
	"narrower":         func(w *world, p path) { w.set(narrowed(p)) },
	"lossier":          func(w *world, p path) { p.up.Loss, p.down.Loss = 0.3, 0.3; w.set(p) },
	"smaller":          func(w *world, p path) { p.up.MTU, p.down.MTU = 1232, 1232; w.set(p) },
	"gone for 100 ms":  func(w *world, p path) { w.gone(p, 100*time.Millisecond) },
	"gone for 5 s":     func(w *world, p path) { w.gone(p, 5*time.Second) },
	"gone for 15 s":    func(w *world, p path) { w.gone(p, 15*time.Second) },
	"longer, narrower": func(w *world, p path) { w.set(narrowed(longer(p, 200*time.Millisecond))) },
}

func longer(p path, by time.Duration) path {
	p.up.Delay += by / 2
	p.down.Delay += by / 2
	return p
}

func narrowed(p path) path {
	p.down.Rate, p.down.Queue = megabits(0.128), 8000
	return p
}

// gone takes the path away for a time.
func (w *world) gone(p path, d time.Duration) {
	down := p
	down.up.Down, down.down.Down = true, true
	w.set(down)
	time.AfterFunc(d, func() { w.set(p) })
}

// patience is how long a call may take, whatever the path: an outage, and some round trips
// of the longest path of these with what is lost of them.
const patience = time.Minute

// Every call that waits for a path ends well on every path, whatever happens to it.
func TestCallsOnEveryPath(t *testing.T) {
	testenv.Simulated(t)
	for name, p := range kinds {
		for what, change := range changes {
			for by, protected := range protections(t) {
				if by != "plain" && !testenv.InFull() {
					continue
				}
				t.Run(name+", "+what+", "+by, func(t *testing.T) {
					t.Parallel()
					over(t, p, protected(kcp.Config{}), protected(kcp.Config{}), func(w *world) {
						w.calls(func() { change(w, p) })
					})
				})
			}
		}
	}
}

// calls has the client make every call, with a change of the path under way, and the server
// answer it.
func (w *world) calls(change func()) {
	t, c, s := w.t, w.client, w.server
	ctx := w.within(patience)
	content := bytes.Repeat([]byte("as it was written "), 1000)
	echoed := make(chan error, 2)
	go func() { // the session's echo
		b := make([]byte, len(content))
		_, err := io.ReadFull(s, b)
		if err == nil {
			_, err = s.Write(b)
		}
		echoed <- err
	}()
	go func() { // a stream's
		r, err := s.AcceptStream(ctx)
		if err == nil {
			_, err = io.Copy(r, r)
		}
		if err == nil {
			err = r.CloseWrite()
		}
		echoed <- err
	}()
	_, err := c.Write(content)
	require.NoError(t, err)
	change()
	st, err := c.OpenStream(ctx, nil)
	require.NoError(t, err)
	_, err = st.Write(content)
	require.NoError(t, err)
	require.NoError(t, st.CloseWrite())
	ping, err := c.Ping(ctx)
	require.NoError(t, err, "Ping")
	require.Positive(t, ping)
	require.NoError(t, c.Flush(ctx), "Flush")
	got := make([]byte, len(content))
	_, err = io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, content, got, "the session's echo")
	got, err = io.ReadAll(st)
	require.NoError(t, err)
	require.Equal(t, content, got, "the stream's echo")
	for range 2 {
		require.NoError(t, <-echoed)
	}
	w.datagram(ctx)
	require.NoError(t, c.Close(), "Close")
	require.Less(t, w.net.Elapsed(), patience+time.Minute)
}

// datagram has the client send datagrams until one has arrived.
func (w *world) datagram(ctx context.Context) {
	arrived := make(chan []byte, 1)
	go func() {
		b, err := w.server.ReceiveDatagram(ctx)
		require.NoError(w.t, err, "ReceiveDatagram")
		arrived <- b
	}()
	for {
		require.NoError(w.t, w.client.SendDatagram([]byte("a datagram")))
		select {
		case b := <-arrived:
			require.Equal(w.t, "a datagram", string(b))
			return
		case <-time.After(time.Second):
		}
	}
}
