package machine

import (
	"fmt"
	"testing"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

// harness drives one state machine segment by segment. Whatever it puts out
// must be claimed by want before the next step, so that nothing unexpected
// goes by unseen.
type harness struct {
	t   *testing.T
	k   *KCP
	now uint32
	out []string
}

// newHarness returns a harness at time 1000 that has flushed once.
func newHarness(t *testing.T, setup func(k *KCP)) *harness {
	simulated(t)
	h := &harness{t: t, now: 1000}
	h.k = New(7, func(packet []byte) { h.out = append(h.out, describe(t, packet)...) })
	h.k.SetNoDelay(NoDelayOn)
	h.k.SetCongestionControl(congestion.NewNone())
	require.NoError(t, h.k.SetInterval(10))
	if setup != nil {
		setup(h.k)
	}
	h.k.Update(h.now)
	t.Cleanup(func() { h.want() })
	return h
}

// describe returns the segments of a packet as text: command, sn, and what the
// command makes use of.
func describe(t *testing.T, packet []byte) []string {
	var out []string
	for len(packet) > 0 {
		require.GreaterOrEqual(t, len(packet), wire.HeaderSize)
		h := wire.DecodeHeader(packet)
		payload, ok := h.Payload(packet[wire.HeaderSize:])
		require.True(t, ok)
		switch h.Cmd {
		case wire.CmdPush:
			out = append(out, fmt.Sprintf("push %d frg=%d %q", h.SN, h.Frg, payload))
		case wire.CmdAck:
			s := fmt.Sprintf("ack %d ts=%d una=%d wnd=%d", h.SN, h.TS, h.Una, h.Wnd)
			if h.Frg != 0 {
				s += fmt.Sprintf(" frg=%#x", h.Frg)
			}
			out = append(out, s)
		case wire.CmdWask:
			out = append(out, "wask")
		case wire.CmdWins:
			out = append(out, fmt.Sprintf("wins una=%d wnd=%d", h.Una, h.Wnd))
		}
		packet = packet[wire.HeaderSize+len(payload):]
	}
	return out
}

// want claims the output since the last call.
func (h *harness) want(segments ...string) {
	h.t.Helper()
	require.Equal(h.t, segments, h.out)
	h.out = nil
}

// advance lets ms pass and flushes.
func (h *harness) advance(ms uint32) {
	h.t.Helper()
	h.now += ms
	h.k.SetClock(h.now)
	h.k.Flush()
}

func (h *harness) send(data string) {
	h.t.Helper()
	n, err := h.k.Send([]byte(data))
	require.NoError(h.t, err)
	require.Equal(h.t, len(data), n)
}

// input gives the state machine one packet of the segments.
func (h *harness) input(segments ...[]byte) {
	h.t.Helper()
	require.NoError(h.t, h.k.Input(concat(segments)))
}

// recv reads one message.
func (h *harness) recv(want string) {
	h.t.Helper()
	buf := make([]byte, 1<<16)
	n, err := h.k.Recv(buf)
	require.NoError(h.t, err)
	require.Equal(h.t, want, string(buf[:n]))
}

// Numbers from the network: every field of every command at every distance that
// comparisons on a circle may get wrong, in every state of the machine.

// requireBooks compares what the state machine has counted with what it holds.
func requireBooks(t *testing.T, k *KCP) {
	t.Helper()
	require.NoError(t, k.Audit())
}

// asSession gives k the settings that sessions have by default.
func asSession(k *KCP, c congestion.Control) {
	k.Configure(Settings{
		MTU: 1400, SendWindow: MostWindow, ReceiveWindow: 2048, NoDelay: NoDelayOn, Interval: 30,
		FastResend: 2, FastResendLimit: 5, Data: StreamData, Extensions: SessionExtensions(5000, 0),
	})
	k.SetCongestionControl(c)
}
