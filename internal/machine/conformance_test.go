package machine

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/congestion"
)

// TestConformance replays recordings of the reference implementation: return
// values, output packets and state must agree after every step. The format is
// described in testdata/conformance/README.md. KCP_CONFORMANCE_DIR names
// another folder of recordings.
func TestConformance(t *testing.T) {
	t.Parallel()
	simulated(t)
	sequential(t)
	dir := os.Getenv("KCP_CONFORMANCE_DIR")
	if dir == "" {
		dir = filepath.Join("..", "..", "testdata", "conformance")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.trace.gz"))
	require.NoError(t, err)
	require.NotEmpty(t, files, "no *.trace.gz in %s", dir)
	for i, file := range files {
		if repeated() && i%8 != 0 {
			continue
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			replayFile(t, file)
		})
	}
}

func replayFile(t *testing.T, file string) {
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	r := &traceReplay{}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		if err := r.line(n, lines.Text()); err != nil {
			t.Fatalf("%s:%d: %v\n%.200s", file, n, err, lines.Text())
		}
	}
	require.NoError(t, lines.Err())
	if err := r.settle(); err != nil {
		t.Fatalf("%s: at the end: %v", file, err)
	}
	require.Positive(t, r.steps, "an empty trace proves nothing")
}

// traceReplay holds a state machine under replay and what the recording says of
// it. The records that follow an operation (output, state) are compared as they
// come; settle checks, when the next operation begins, that nothing is left
// over.
type traceReplay struct {
	k      *KCP
	nc     bool // congestion control is off
	output [][]byte
	want   []uint32 // by stateNames
	known  []bool   // of want
	steps  int
}

func (r *traceReplay) line(n int, text string) error {
	kind, rest, _ := strings.Cut(text, " ")
	if n == 1 {
		if text != "kcp-trace 1" {
			return errors.New("not a trace")
		}
		return nil
	}
	switch kind {
	case ">":
		return r.packet(rest)
	case "=":
		return r.state(rest)
	}
	if r.k != nil {
		if err := r.settle(); err != nil {
			return fmt.Errorf("before this step: %w", err)
		}
	}
	fields := strings.Fields(rest)
	if kind == "config" {
		return r.config(fields)
	}
	if r.k == nil {
		return errors.New("operation before config")
	}
	r.steps++
	return r.operation(kind, fields)
}

// settle checks that all output was recorded and the state is as recorded.
func (r *traceReplay) settle() error {
	if len(r.output) > 0 {
		return fmt.Errorf("output that the reference did not make: %x", r.output[0])
	}
	if r.want == nil {
		return nil
	}
	got := r.k.traceState()
	for i, want := range r.want {
		if r.known[i] && got[i] != want {
			return fmt.Errorf("%s = %d, want %d", stateNames[i], got[i], want)
		}
	}
	return nil
}

func (r *traceReplay) packet(text string) error {
	if len(r.output) == 0 {
		return errors.New("the reference put out a packet here")
	}
	got := r.output[0]
	r.output = r.output[1:]
	want, err := hex.DecodeString(text)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("packet differs: got %x", got)
	}
	return nil
}

func (r *traceReplay) state(text string) error {
	if r.want == nil {
		r.want, r.known = make([]uint32, len(stateNames)), make([]bool, len(stateNames))
	}
	for field := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(field, "=")
		v, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return err
		}
		i := slices.Index(stateNames, name)
		if i < 0 {
			return fmt.Errorf("unknown state %q", name)
		}
		r.want[i], r.known[i] = uint32(v), true
	}
	return r.settle()
}

func (r *traceReplay) config(fields []string) error {
	v := make(map[string]int64)
	for _, field := range fields {
		name, value, _ := strings.Cut(field, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return err
		}
		v[name] = n
	}
	r.k = New(uint32(v["conv"]), func(p []byte) { r.output = append(r.output, bytes.Clone(p)) })
	if err := r.k.SetMTU(int(v["mtu"])); err != nil {
		return err
	}
	if err := r.k.SetWindow(int(v["sndwnd"]), int(v["rcvwnd"])); err != nil {
		return err
	}
	if err := r.nodelay(int(v["nodelay"]), int(v["interval"]), int(v["resend"]), int(v["nc"])); err != nil {
		return err
	}
	r.k.SetStream(v["stream"] != 0)
	if v["minrto"] >= 0 {
		if err := r.k.SetMinRTO(uint32(v["minrto"])); err != nil {
			return err
		}
	}
	sn := Seq(v["sn"])
	r.k.snd.una, r.k.snd.nxt, r.k.rcv.nxt = sn, sn, sn
	return nil
}

func (r *traceReplay) operation(kind string, f []string) error {
	want := map[string]int{"S": 3, "I": 2, "R": 3, "U": 1, "C": 2, "F": 0, "P": 1, "Q": 1, "N": 4, "W": 2, "M": 2, "V": 2}
	if n, ok := want[kind]; !ok || len(f) != n {
		return fmt.Errorf("malformed %q record", kind)
	}
	switch kind {
	case "S":
		return r.send(f)
	case "I":
		return r.input(f)
	case "R":
		return r.recv(f)
	case "U":
		now, err := strconv.ParseUint(f[0], 10, 32)
		r.k.Update(uint32(now))
		return err
	case "C":
		now, err := strconv.ParseUint(f[0], 10, 32)
		if err != nil {
			return err
		}
		return same(strconv.FormatUint(uint64(r.k.Check(uint32(now))), 10), f[1])
	case "F":
		r.k.Flush()
		return nil
	case "P":
		return same(strconv.Itoa(r.k.PeekSize()), f[0])
	case "Q":
		return same(strconv.Itoa(r.k.WaitSend()), f[0])
	default:
		return r.setting(kind, f)
	}
}

// setting changes settings in mid-flow, as the calls and fields of the reference do.
func (r *traceReplay) setting(kind string, f []string) error {
	v := make([]int, len(f))
	for i := range f {
		if kind == "V" && i == 0 {
			continue // a name
		}
		var err error
		if v[i], err = strconv.Atoi(f[i]); err != nil {
			return err
		}
	}
	switch kind {
	case "N":
		return r.nodelay(v[0], v[1], v[2], v[3])
	case "W":
		cfg := &r.k.cfg // what is 0 stays as it is
		return r.k.SetWindow(cmp.Or(v[0], int(cfg.sndWnd)), cmp.Or(v[1], int(cfg.rcvWnd)))
	case "M":
		result := "0"
		if r.k.SetMTU(v[0]) != nil {
			result = "-1"
		}
		return same(result, f[1])
	}
	switch f[0] {
	case "stream":
		r.k.SetStream(v[1] != 0)
	case "minrto":
		return r.k.SetMinRTO(uint32(v[1]))
	case "fastlimit":
		r.k.SetFastResendLimit(uint32(v[1]))
	case "deadlink":
		r.k.SetDeadLink(uint32(v[1]))
	default:
		return fmt.Errorf("unknown setting %q", f[0])
	}
	return nil
}

// nodelay is ikcp_nodelay: what is negative stays as it is, and the interval, which we
// refuse if it is out of range, is clamped.
func (r *traceReplay) nodelay(nodelay, interval, resend, nc int) error {
	if nodelay >= 0 {
		r.k.SetNoDelay(NoDelayOff + NoDelay(min(nodelay, 2)))
	}
	if interval >= 0 {
		if err := r.k.SetInterval(uint32(min(max(interval, MinInterval), MaxInterval))); err != nil {
			return err
		}
	}
	if resend >= 0 {
		r.k.SetFastResend(uint32(resend))
	}
	if nc >= 0 && r.nc != (nc != 0) {
		if r.nc = nc != 0; r.nc {
			r.k.SetCongestionControl(congestion.NewNone())
		} else {
			r.k.SetCongestionControl(congestion.NewReference())
		}
	}
	return nil
}

func (r *traceReplay) send(f []string) error {
	size, err := strconv.Atoi(f[0])
	if err != nil {
		return err
	}
	tag, err := strconv.Atoi(f[1])
	if err != nil {
		return err
	}
	p := make([]byte, size)
	for i := range p {
		p[i] = uint8(tag*131 + i*7)
	}
	n, err := r.k.Send(p)
	return same(code(n, err, map[error]int{ErrMessageTooLarge: -2}), f[2])
}

func (r *traceReplay) input(f []string) error {
	var p []byte
	if f[0] != "-" {
		var err error
		if p, err = hex.DecodeString(f[0]); err != nil {
			return err
		}
	}
	err := r.k.Input(p)
	return same(code(0, err, map[error]int{
		ErrPacketShort: -1, ErrConv: -1, ErrSegmentLength: -2, ErrCommand: -3,
	}), f[1])
}

func (r *traceReplay) recv(f []string) error {
	size, err := strconv.Atoi(f[0])
	if err != nil {
		return err
	}
	p := make([]byte, size)
	n, err := r.k.Recv(p)
	got := code(n, err, map[error]int{
		ErrNoData: -1, ErrPartialMessage: -2, io.ErrShortBuffer: -3,
	})
	if err := same(got, f[1]); err != nil {
		return err
	}
	data := "-"
	if n > 0 {
		data = hex.EncodeToString(p[:n])
	}
	return same(data, f[2])
}

// code maps a result of ours to the reference's int.
func code(n int, err error, codes map[error]int) string {
	if err == nil {
		return strconv.Itoa(n)
	}
	if c, ok := codes[err]; ok {
		return strconv.Itoa(c)
	}
	return err.Error()
}

func same(got, want string) error {
	if got != want {
		return fmt.Errorf("returned %s, want %s", got, want)
	}
	return nil
}

// stateNames are the names of the recordings for what traceState returns.
var stateNames = strings.Fields("snd_una snd_nxt rcv_nxt ssthresh cwnd incr rttvar srtt rto rmt_wnd " +
	"probe ts_probe probe_wait ts_flush state nrcv_buf nsnd_buf nrcv_que nsnd_que")

// traceState returns the state, by stateNames.
func (k *KCP) traceState() []uint32 {
	cwnd, ssthresh, incr := k.snd.cc.(interface {
		Variables() (cwnd, ssthresh, incr uint32)
	}).Variables()
	state := uint32(0)
	if k.dead {
		state = 0xffffffff
	}
	return []uint32{
		uint32(k.snd.una), uint32(k.snd.nxt), uint32(k.rcv.nxt), ssthresh, cwnd, incr,
		uint32(k.snd.rtt.rttvar), uint32(k.snd.rtt.srtt), k.snd.rtt.rto, k.peer.wnd,
		uint32(k.peer.probe), uint32(k.peer.tsProbe), k.peer.probeWait, uint32(k.clock.tsFlush), state,
		k.rcv.early, uint32(k.snd.inFlight), k.rcv.queue.n, uint32(k.snd.queue.n),
	}
}
