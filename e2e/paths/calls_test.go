package paths

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/stats"
)

// scenario is what an application does while its path changes. It calls pathChanges once.
type scenario struct {
	name      string
	configure func(c *kcp.Config) // of both ends
	opens     bool                // opens the session itself
	brief     bool                // not while nothing passes for as long as TIME-WAIT lasts
	do        func(w *world)
}

// scenarios have all calls that wait for a path, or measure it.
var scenarios = []scenario{
	{name: "dial", brief: true, opens: true, do: dials},
	{name: "dial without waiting", brief: true, opens: true, do: dials, configure: func(c *kcp.Config) { c.DialTimeout = -1 }},
	{name: "echo", do: echoes},
	{name: "ask", do: asks},
	{name: "datagrams", do: sendsDatagrams},
	{name: "full buffers", do: fillsBuffers, configure: func(c *kcp.Config) {
		c.WriteBuffer, c.StreamWriteBuffer, c.StreamReceiveBuffer, c.ReceiveWindow = 64<<10, 4096, 64<<10, 128
	}},
	{name: "close", brief: true, do: closes},
	{name: "close with a reason", brief: true, do: closesWithReason},
	{name: "abort", brief: true, do: aborts},
	{name: "shutdown", brief: true, opens: true, do: shutsDown},
	{name: "measure", do: measures},
}

// calm is how long a change may last without an end of the session.
const calm = 2 * time.Minute

// Every call returns on every path, whatever happens to it: in time, with what was sent,
// and nothing is left behind. Without KCP_LONG=1 each path meets each change with one of
// the scenarios. Path and change decide the seed.
func TestCallsOnEveryPath(t *testing.T) {
	testenv.Simulated(t)
	ciphers := []string{"plain", "AEAD", "TLS"}
	for i, k := range kinds {
		for j, c := range changes {
			for n, s := range scenarios {
				for m, by := range ciphers {
					if !testenv.InFull() && (n != (3*i+7*j)%len(scenarios) || m != (i+j)%len(ciphers)) {
						continue
					}
					if s.brief && c.gone >= time.Minute || by == "plain" && c.moves || by == "TLS" && k.down.MTU == 576 {
						continue // the peer has forgotten it; ends the session; has packets of 1200 bytes
					}
					t.Run(fmt.Sprintf("%s/%s/%s/%s", k.name, c.name, s.name, by), func(t *testing.T) {
						t.Parallel()
						s.over(t, k.path, c, uint64(100*i+j), protections(t)[by])
					})
				}
			}
		}
	}
}

// over runs a scenario over a path that changes.
func (s scenario) over(t *testing.T, p path, c change, seed uint64, protected func(kcp.Config) *kcp.Config) {
	config := kcp.Config{PeerTimeout: calm, DialTimeout: calm, Linger: calm}
	if s.configure != nil {
		s.configure(&config)
	}
	t.Logf("seed %d", seed)
	between(t, p, seed, protected(config), protected(config), func(w *world) {
		w.change = c
		stuck := time.AfterFunc(time.Hour, func() {
			t.Error("a call does not return")
			_, _ = w.listening.Close(), w.dialling.Close()
		})
		defer stuck.Stop()
		if !s.opens {
			w.opens()
		}
		s.do(w)
		w.join()
		w.leavesNothing()
	})
}

// leavesNothing ends the sessions, and requires that the endpoints have none.
func (w *world) leavesNothing() {
	for _, c := range []*kcp.Conn{w.client, w.server} {
		if c != nil {
			_ = c.Abort(0, "")
		}
	}
	time.Sleep(w.patience(0) + 10*time.Second)
	for _, e := range []*kcp.Endpoint{w.dialling, w.listening} {
		s := e.Stats()
		require.Zero(w.t, s.Sessions, "%+v", s)
		require.Zero(w.t, s.Buffered)
		require.Zero(w.t, s.WriteBuffered)
		require.Zero(w.t, s.Backlog)
	}
}

// pathChanges has the path change, within two round trips.
func (w *world) pathChanges() { w.happens(w.change) }

// call makes a call that moves so many bytes. It returns no error, and in time.
func (w *world) call(what string, bytes int, f func() error) {
	w.t.Helper()
	begin := w.net.Elapsed()
	err := f()
	took := w.net.Elapsed() - begin
	require.NoError(w.t, err, "%s after %v", what, took)
	require.LessOrEqual(w.t, took, w.patience(bytes), what)
}

// getsAll requires that what follows in r is want, and the end.
func getsAll(r io.Reader, want []byte) error {
	if err := testenv.Compare(r, want); err != nil {
		return err
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		return fmt.Errorf("%d bytes more, %w", n, err)
	}
	return nil
}

// writes writes all of b, and closes for writing.
func writes(w interface {
	io.Writer
	CloseWrite() error
}, b []byte) error {
	if _, err := w.Write(b); err != nil {
		return err
	}
	return w.CloseWrite()
}

// echo returns what has arrived on the session, and on one stream.
func (w *world) echo(c *kcp.Conn) {
	w.also(func() error {
		b, err := io.ReadAll(c)
		if err == nil {
			err = writes(c, b)
		}
		return err
	})
	w.also(func() error {
		s, err := c.AcceptStream(context.Background())
		if err == nil {
			_, err = io.Copy(s, s)
		}
		if err == nil {
			err = s.CloseWrite()
		}
		return err
	})
}

const some = 18_000 // bytes

func dials(w *world) {
	first := testenv.Content(1, some)
	w.pathChanges()
	w.call("Dial", 10_000, func() (err error) {
		w.client, err = w.dialling.Dial(context.Background(), w.listener.Addr(), nil)
		return err
	})
	w.call("Write", 0, func() error {
		_, err := w.client.Write(first)
		return err
	})
	w.call("Accept", 10_000+some, func() (err error) {
		w.server, err = w.listener.AcceptKCP(context.Background())
		return err
	})
	w.call("Read", 10_000+some, func() error { return testenv.Compare(w.server, first) })
	w.call("Write back", 0, func() error {
		_, err := w.server.Write(first)
		return err
	})
	w.call("Read back", some, func() error { return testenv.Compare(w.client, first) })
}

func echoes(w *world) {
	a, b := testenv.Content(1, some), testenv.Content(2, some)
	w.echo(w.server)
	w.call("Write", 0, func() error {
		_, err := w.client.Write(a)
		return err
	})
	w.pathChanges()
	var s *kcp.Stream
	w.call("OpenStream", some, func() (err error) {
		s, err = w.client.OpenStream(context.Background(), nil)
		return err
	})
	w.call("Write of the stream", 0, func() error { return writes(s, b) })
	w.call("CloseWrite", 0, w.client.CloseWrite)
	w.call("Ping", 2*some, func() error {
		_, err := w.client.Ping(context.Background())
		return err
	})
	w.call("Flush", 2*some, func() error { return w.client.Flush(context.Background()) })
	w.call("Read", 4*some, func() error { return getsAll(w.client, a) })
	w.call("Read of the stream", 4*some, func() error { return getsAll(s, b) })
	w.join()
	w.call("Close", 0, w.client.Close)
	w.call("Close of the peer", 0, w.server.Close)
}

// asks makes each call that waits for an answer at both ends, on a quiet session.
func asks(w *world) {
	w.pathChanges()
	for i := range 3 {
		ends := []*kcp.Conn{w.client, w.server}
		for j, c := range ends {
			other := ends[1-j]
			w.call("Ping", 0, func() error {
				_, err := c.Ping(context.Background())
				return err
			})
			w.call("Write and Flush", 100, func() error {
				if _, err := c.Write(testenv.Content(uint64(i), 100)); err != nil {
					return err
				}
				return c.Flush(context.Background())
			})
			w.call("Read", 0, func() error { return testenv.Compare(other, testenv.Content(uint64(i), 100)) })
			w.call("OpenStream and AcceptStream", 100, func() error {
				s, err := c.OpenStream(context.Background(), nil)
				if err != nil {
					return err
				}
				if err = writes(s, testenv.Content(uint64(i), 100)); err != nil {
					return err
				}
				r, err := other.AcceptStream(context.Background())
				if err != nil {
					return err
				}
				if err = getsAll(r, testenv.Content(uint64(i), 100)); err != nil {
					return err
				}
				return errors.Join(r.Close(), s.Close())
			})
		}
	}
}

// sendsDatagrams sends datagrams of the largest size until one has arrived, both ways.
func sendsDatagrams(w *world) {
	w.pathChanges()
	ends := []*kcp.Conn{w.client, w.server}
	for i, from := range ends {
		arrived := make(chan error, 1)
		go func() {
			b, err := ends[1-i].ReceiveDatagram(context.Background())
			if err == nil && !bytes.Equal(b, numbered(len(b), i)) {
				err = errors.New("another datagram than was sent")
			}
			arrived <- err
		}()
		w.call("ReceiveDatagram", 10*1400, func() error {
			for {
				if err := from.SendDatagram(numbered(from.MaxDatagramSize(), i)); err != nil && !errors.Is(err, kcp.ErrMessageTooLarge) {
					return err
				}
				select {
				case err := <-arrived:
					return err
				case <-time.After(50*time.Millisecond + 2*w.slowest(1400)):
				}
			}
		})
	}
}

// fillsBuffers has writers wait for readers.
func fillsBuffers(w *world) {
	const n = 300_000
	a, b := testenv.Content(1, n), testenv.Content(2, n)
	s, err := w.client.OpenStream(context.Background(), nil)
	require.NoError(w.t, err)
	w.also(func() error { return writes(w.client, a) })
	w.also(func() error { return writes(s, b) })
	time.Sleep(5*time.Second + w.slowest(n))
	n1, err := w.client.TryWrite(a)
	require.ErrorIs(w.t, err, kcp.ErrWouldBlock)
	require.Zero(w.t, n1)
	w.pathChanges()
	time.Sleep(w.patience(0))
	w.call("Read", n, func() error { return getsAll(w.server, a) })
	r, err := w.server.AcceptStream(context.Background())
	require.NoError(w.t, err)
	w.call("Read of the stream", n, func() error { return getsAll(r, b) })
	w.join()
}

// measures requires figures that are those of the path, some time after it has changed.
func measures(w *world) {
	w.pathChanges()
	time.Sleep(w.patience(0))
	for range 40 {
		w.call("Ping", 0, func() error {
			_, err := w.client.Ping(context.Background())
			return err
		})
		_ = w.client.SendDatagram(make([]byte, w.client.MaxDatagramSize()))
		time.Sleep(200*time.Millisecond + 2*w.slowest(1400))
	}
	p := w.paths[len(w.paths)-1]
	if w.change.back {
		p = w.paths[0]
	}
	s := w.client.Stats()
	require.GreaterOrEqual(w.t, s.RTT, (p.up.Delay+p.down.Delay)*9/10)
	require.LessOrEqual(w.t, s.RTT, p.round()*11/10+50*time.Millisecond)
	require.NotEqual(w.t, stats.LimitOutage, s.LimitedBy)
	if mtu := p.up.MTU; mtu > 0 {
		require.LessOrEqual(w.t, w.client.MaxDatagramSize(), mtu)
	}
}
