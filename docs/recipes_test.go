package docs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
)

// Codes for CloseWithError, Abort and Stream.Reset.
const (
	kicked    = 2
	cancelled = 3
)

func upload(ctx context.Context, conn *kcp.Conn, file io.Reader, show func(delivered uint64)) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, file)
		done <- errors.Join(err, conn.Flush(ctx))
	}()
	for {
		select {
		case err := <-done:
			show(conn.Stats().BytesAcked)
			return err
		case <-tick.C:
			show(conn.Stats().BytesAcked)
		case <-ctx.Done(): // Close would make half a file look whole
			_ = conn.Abort(cancelled, "the upload was cancelled")
			return ctx.Err()
		}
	}
}

func broadcast(conns []*kcp.Conn, message []byte) (missed []*kcp.Conn) {
	for _, conn := range conns {
		if err := conn.WriteMessage(message, &kcp.MessageOptions{NoWait: true}); errors.Is(err, kcp.ErrWouldBlock) {
			missed = append(missed, conn)
		}
	}
	return missed
}

// writeBuffer returns Config.WriteBuffer for messages of size bytes, perSecond of them,
// to readers that may fall behind.
func writeBuffer(size, perSecond int, behind time.Duration) int {
	message := size + 64*(1+size/1200) // each packet counts 64 bytes more
	return max(4096, int(behind.Seconds()*float64(perSecond*message)))
}

func save(ctx context.Context, conn *kcp.Conn, record []byte) error {
	if _, err := conn.Write(record); err != nil {
		return err
	}
	return conn.Flush(ctx) // the peer's endpoint has all of it
}

func sendState(group *kcp.Group, players []*kcp.Stream, state []byte) {
	batch := make([]kcp.Outgoing, len(players))
	for i, stream := range players {
		batch[i] = kcp.Outgoing{Stream: stream, Data: state, Lifetime: 100 * time.Millisecond}
	}
	group.Send(batch) // ErrWouldBlock: that player misses this state
}

func openPositions(ctx context.Context, conn *kcp.Conn) (*kcp.Stream, error) {
	return conn.OpenStream(ctx, &kcp.StreamOptions{
		MaxLifetime: 100 * time.Millisecond, // then it is not sent any more
		Unordered:   true,                   // nothing waits for what was given up
	})
}

// ask has a stream of its own for a question and its answer. When ctx ends, so do its
// calls, and the peer's of that stream fail with the code cancelled.
func ask(ctx context.Context, conn *kcp.Conn, question []byte) ([]byte, error) {
	stream, err := conn.OpenStream(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	defer context.AfterFunc(ctx, func() { _ = stream.Reset(cancelled) })()
	if _, err := stream.Write(question); err != nil {
		return nil, err
	}
	if err := stream.CloseWrite(); err != nil {
		return nil, err
	}
	return io.ReadAll(stream)
}

func scoreboard(server *kcp.Endpoint) map[string]time.Duration {
	ping := make(map[string]time.Duration)
	for conn := range server.Sessions() {
		ping[conn.RemoteAddr().String()] = conn.Stats().RTT.Round(time.Millisecond)
	}
	return ping
}

func explain(err error) string {
	var closed *kcp.PeerCloseError
	var lost *kcp.PeerLostError
	var silent *kcp.NoAnswerError
	var handshake *kcp.HandshakeError
	switch {
	case errors.Is(err, io.EOF):
		return "the peer has ended its side"
	case errors.As(err, &closed): // of CloseWithError
		return fmt.Sprintf("the peer has closed: %q", closed.Text)
	case errors.Is(err, kcp.ErrReset):
		return "the peer has aborted, was restarted, or found the session idle: dial again"
	case errors.Is(err, kcp.ErrPeerClosed): // of Write; Read returns io.EOF
		return "the peer has closed, and takes no more"
	case errors.Is(err, kcp.ErrNotDelivered): // of Close
		return "the peer may not have all that was written"
	case errors.As(err, &handshake):
		return "one end refuses the other's certificate, name, protocol or version: " + handshake.Err.Error()
	case errors.As(err, &lost):
		return "the peer has vanished, or was idle for too long: dial again"
	case errors.Is(err, kcp.ErrRefused):
		return "no server there, or not yet, or it has all the sessions it takes"
	case errors.As(err, &silent):
		return "no answer: wrong address, a firewall, another key, or a full backlog"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "a deadline has passed; the session goes on"
	}
	return err.Error()
}

func kick(conn *kcp.Conn, reason string) {
	go func() { _ = conn.CloseWithError(kicked, reason) }()
}

func stop(ctx context.Context, l *kcp.Listener) error {
	return l.Endpoint().Shutdown(ctx) // a *ShutdownError says how many clients did not get all
}

// hall is a server with clients on a simulated network. It has to be used in
// virtual time.
type hall struct {
	net      *netsim.Network
	listener *kcp.Listener
	client   *kcp.Endpoint // of all clients
	dialled  []*kcp.Conn
	accepted []*kcp.Conn // the other ends of dialled
}

// newHall returns a hall of n clients.
func newHall(t *testing.T, n int, config *kcp.Config, link netsim.LinkConfig) *hall {
	h := &hall{net: netsim.NewNetwork(1, link)}
	server, _ := endpoint(t, h.net, "10.0.0.1:4000", config)
	h.client, _ = endpoint(t, h.net, "10.0.0.2:4000", config)
	var err error
	h.listener, err = server.Listen()
	require.NoError(t, err)
	h.dialled = make([]*kcp.Conn, n)
	require.NoError(t, dialAll(t.Context(), h.client, h.listener.Addr(), h.dialled))
	byConv := make(map[uint32]*kcp.Conn)
	for range n {
		c, err := h.listener.AcceptKCP(t.Context())
		require.NoError(t, err)
		byConv[c.Conv()] = c
	}
	for _, c := range h.dialled {
		h.accepted = append(h.accepted, byConv[c.Conv()])
	}
	return h
}

// inHall runs a test in virtual time. Packets take 20 ms, and get lost now and then.
func inHall(t *testing.T, n int, config *kcp.Config, f func(t *testing.T, h *hall)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(t, newHall(t, n, config, netsim.LinkConfig{Delay: 20 * time.Millisecond, Loss: 0.02}))
	})
}

// outage loses all packets from now on, for a while.
func (h *hall) outage(length time.Duration) {
	_ = h.net.Play("", "", netsim.Outage(h.net.Elapsed(), length)) // its settings are in range
}

// TestUpload shows progress that the receiver has made, not the write buffer.
func TestUpload(t *testing.T) {
	inHall(t, 1, nil, func(t *testing.T, h *hall) {
		slow := netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: 125_000, Queue: 32 << 10}
		h.net.SetLink("", "", slow)
		file := bytes.Repeat([]byte("0123456789"), 50_000)
		var shown []uint64
		go func() {
			_ = upload(t.Context(), h.dialled[0], bytes.NewReader(file), func(n uint64) { shown = append(shown, n) })
			_ = h.dialled[0].CloseWrite()
		}()
		got, err := io.ReadAll(h.accepted[0])
		require.NoError(t, err)
		require.True(t, bytes.Equal(file, got))
		synctest.Wait()
		require.Equal(t, uint64(len(file)), shown[len(shown)-1])
		require.Greater(t, len(shown), 3)
		for i, n := range shown[:3] { // 125 kB/s, of which headers take some
			require.InDelta(t, 115_000*(i+1), n, 25_000)
		}
	})
}

// TestUploadIsCancelled ends an upload that waits for a receiver that does not read, and
// one that waits for its file. The receiver does not take what it has for the whole.
func TestUploadIsCancelled(t *testing.T) {
	for _, waits := range []bool{false, true} {
		inHall(t, 1, nil, func(t *testing.T, h *hall) {
			h.net.SetLink("", "", netsim.LinkConfig{Delay: 20 * time.Millisecond}) // the reason is sent once
			silent, _ := io.Pipe()
			defer silent.Close() // so that the copy ends
			var file io.Reader = bytes.NewReader(make([]byte, 20<<20))
			if waits {
				file = silent
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			begin := time.Now()
			require.ErrorIs(t, upload(ctx, h.dialled[0], file, func(uint64) {}), context.DeadlineExceeded)
			require.Less(t, time.Since(begin), 6*time.Second)
			_, err := io.ReadAll(h.accepted[0])
			var aborted *kcp.PeerCloseError
			require.ErrorAs(t, err, &aborted)
			require.EqualValues(t, cancelled, aborted.Code)
		})
	}
}

// TestBroadcast has three readers, of which one does not read: the others get every
// message at once, and what the slow one has is whole messages.
func TestBroadcast(t *testing.T) {
	const messages, size = 90, 5000
	config := &kcp.Config{MessageMode: true, WriteBuffer: writeBuffer(size, 20, time.Second), ReceiveWindow: 128}
	inHall(t, 3, config, func(t *testing.T, h *hall) {
		missed := 0
		var got [3]int
		read := func(reader, n int) {
			for b := make([]byte, 2*size); n > 0; n-- {
				k, err := h.dialled[reader].ReadMessage(b)
				require.NoError(t, err)
				require.Equal(t, bytes.Repeat(b[:1], size), b[:k])
				if reader > 0 {
					require.Equal(t, byte(got[reader]), b[0])
				}
				got[reader]++
			}
		}
		for i := range messages {
			start := time.Now()
			for _, c := range broadcast(h.accepted, bytes.Repeat([]byte{byte(i)}, size)) {
				require.Equal(t, h.dialled[0].Conv(), c.Conv(), "a reader that reads has missed a message")
				missed++
			}
			require.Equal(t, start, time.Now(), "the broadcast has waited")
			read(1, 1)
			read(2, 1)
		}
		require.Greater(t, missed, 10)
		read(0, messages-missed)
		require.NoError(t, h.dialled[0].SetReadDeadline(time.Now().Add(time.Second)))
		_, err := h.dialled[0].ReadMessage(make([]byte, 2*size))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	})
}

// TestSave waits until a record is delivered, through an outage.
func TestSave(t *testing.T) {
	inHall(t, 1, nil, func(t *testing.T, h *hall) {
		start := time.Now()
		h.outage(2 * time.Second)
		require.NoError(t, save(t.Context(), h.dialled[0], make([]byte, 10_000)))
		require.GreaterOrEqual(t, time.Since(start), 2*time.Second)
		n, err := h.accepted[0].Read(make([]byte, 20_000)) // it has arrived, so this does not wait
		require.NoError(t, err)
		require.Equal(t, 10_000, n)

		h.outage(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, save(ctx, h.dialled[0], []byte("lost")), context.DeadlineExceeded)
	})
}

// TestPositions sends positions, and state, through an outage: what is of its time never
// arrives.
func TestPositions(t *testing.T) {
	const messages, from, upto = 60, 20, 50 // the outage, in messages
	open := func(t *testing.T, h *hall) *kcp.Stream {
		s, err := openPositions(t.Context(), h.dialled[0])
		require.NoError(t, err)
		return s
	}
	for name, send := range map[string]func(s *kcp.Stream, b []byte) error{
		"positions": func(s *kcp.Stream, b []byte) error { return s.WriteMessage(b, nil) },
		"state": func(s *kcp.Stream, b []byte) error {
			group := kcp.NewGroup()
			defer group.Close()
			sendState(group, []*kcp.Stream{s}, b)
			return nil
		},
	} {
		inHall(t, 1, nil, func(t *testing.T, h *hall) {
			s := open(t, h)
			for i := range messages {
				if i == from {
					h.outage((upto - from) * time.Second / 60)
				}
				require.NoError(t, send(s, []byte{byte(i)}))
				time.Sleep(time.Second / 60)
			}
			peer, err := h.accepted[0].AcceptStream(t.Context())
			require.NoError(t, err)
			require.NoError(t, peer.SetReadDeadline(time.Now().Add(time.Second)))
			var got [messages]bool
			for b := make([]byte, 10); ; {
				if _, err := peer.ReadMessage(b); err != nil {
					require.ErrorIs(t, err, os.ErrDeadlineExceeded)
					break
				}
				got[b[0]] = true
			}
			for i := range got {
				if i < from-2 || i > upto+2 {
					require.True(t, got[i], "%s: %d is lost", name, i)
				} else if i > from+1 && i < upto-8 {
					require.False(t, got[i], "%s: %d was worthless", name, i)
				}
			}
		})
	}
}

// TestAsk has more questions at a time than the peer takes streams: all are answered, and
// no stream is refused. When a context ends, so do a question that waits for its answer,
// which the peer learns, and those that wait for room.
func TestAsk(t *testing.T) {
	inHall(t, 1, &kcp.Config{Limits: kcp.Limits{MaxStreams: 20}}, func(t *testing.T, h *hall) {
		const calls = 50
		answering, ended := make(chan struct{}), make(chan error, calls)
		go func() {
			for {
				stream, err := h.accepted[0].AcceptStream(t.Context())
				if err != nil {
					return
				}
				go func() {
					defer stream.Close()
					select {
					case <-stream.Done():
						ended <- stream.Err()
					case <-answering:
						_, _ = io.Copy(stream, stream)
					}
				}()
			}
		}()
		results := make(chan error, calls)
		start := func(ctx context.Context) {
			for i := range calls {
				go func() {
					question := fmt.Append(nil, "question ", i)
					answer, err := ask(ctx, h.dialled[0], question)
					if err == nil && !bytes.Equal(question, answer) {
						err = fmt.Errorf("%q was answered by %q", question, answer)
					}
					results <- err
				}()
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		start(ctx)
		for range calls {
			require.Error(t, <-results)
		}
		require.NoError(t, t.Context().Err())
		require.Equal(t, &kcp.StreamError{Code: cancelled, Remote: true}, <-ended)
		close(answering)
		start(t.Context())
		for range calls {
			require.NoError(t, <-results)
		}
		require.Zero(t, h.listener.Endpoint().Totals().Streams.Refused)
	})
}
