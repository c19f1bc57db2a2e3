package paths

import (
	"encoding/binary"
	"io"
	"os"
	"slices"
	"time"

	"github.com/arqnet/kcp"
	"github.com/stretchr/testify/require"
)

// downloadStream starts a flow on a stream of the server's.
func (w *world) downloadStream() *flow {
	f := &flow{w: w}
	go func() {
		s, err := w.server.OpenStream(w.t.Context(), nil)
		if err != nil {
			return
		}
		chunk := make([]byte, 64<<10)
		for err == nil {
			_, err = s.Write(chunk)
		}
	}()
	go func() {
		s, err := w.client.AcceptStream(w.t.Context())
		chunk := make([]byte, 64<<10)
		for n := 0; err == nil; {
			n, err = s.Read(chunk)
			f.received += int64(n)
		}
	}()
	return f
}

// messageEvery is the time between two messages of messages, and messageSize their bytes.
const (
	messageEvery = 50 * time.Millisecond
	messageSize  = 200
)

// messages sends messages to the client for a time, on a stream before all others, and
// returns how long each has taken, in order of time.
func (w *world) messages(d time.Duration) []time.Duration {
	s, err := w.server.OpenStream(w.t.Context(), &kcp.StreamOptions{Priority: 7})
	require.NoError(w.t, err)
	go func() {
		message := make([]byte, messageSize)
		for end := w.net.Elapsed() + d; w.net.Elapsed() < end; time.Sleep(messageEvery) {
			binary.LittleEndian.PutUint64(message, uint64(w.net.Elapsed()))
			if _, err := s.Write(message); err != nil {
				return
			}
		}
		_ = s.CloseWrite()
	}()
	r, err := w.client.AcceptStream(w.t.Context())
	require.NoError(w.t, err)
	var took []time.Duration
	for message := make([]byte, messageSize); ; {
		if _, err := io.ReadFull(r, message); err != nil {
			break
		}
		if os.Getenv("TL") != "" && len(took)%10 == 0 {
			st := w.server.Stats()
			w.t.Logf("%v: took %v; in flight %d wnd %d queued %d rtt %v rto %v limit %v resent %d timeouts %d fast %d spur %d", w.net.Elapsed(), w.net.Elapsed()-time.Duration(binary.LittleEndian.Uint64(message)), st.InFlight, st.CongestionWindow, st.Queued, st.RTT, st.RTO, st.LimitedBy, st.Retransmits(), st.TimeoutRetransmits, st.FastRetransmits, st.SpuriousRetransmits)
		}
		took = append(took, w.net.Elapsed()-time.Duration(binary.LittleEndian.Uint64(message)))
	}
	slices.Sort(took)
	return took
}
