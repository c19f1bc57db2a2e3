package contract

import (
	"flag"
	"fmt"
	"net"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/xtaci/kcp-go/v5"
)

var update = flag.Bool("update", false, "write testdata/api.txt; with kcp-go only")

// functions are all that kcp-go exports.
var functions = []struct {
	name string
	f    any
}{
	{"Dial", kcp.Dial}, {"DialWithOptions", kcp.DialWithOptions}, {"Listen", kcp.Listen},
	{"ListenWithOptions", kcp.ListenWithOptions}, {"NewAEADCrypt", kcp.NewAEADCrypt},
	{"NewAESBlockCrypt", kcp.NewAESBlockCrypt}, {"NewAESGCMCrypt", kcp.NewAESGCMCrypt},
	{"NewBlowfishBlockCrypt", kcp.NewBlowfishBlockCrypt},
	{"NewCast5BlockCrypt", kcp.NewCast5BlockCrypt}, {"NewConn", kcp.NewConn},
	{"NewConn2", kcp.NewConn2}, {"NewConn3", kcp.NewConn3}, {"NewConn4", kcp.NewConn4},
	{"NewEntropy", kcp.NewEntropy}, {"NewEntropyAES", kcp.NewEntropyAES},
	{"NewEntropyChacha8", kcp.NewEntropyChacha8}, {"NewKCP", kcp.NewKCP},
	{"NewNoneBlockCrypt", kcp.NewNoneBlockCrypt},
	{"NewRingBuffer", kcp.NewRingBuffer[string]},
	{"NewSM4BlockCrypt", kcp.NewSM4BlockCrypt},
	{"NewSalsa20BlockCrypt", kcp.NewSalsa20BlockCrypt},
	{"NewSimpleXORBlockCrypt", kcp.NewSimpleXORBlockCrypt},
	{"NewTEABlockCrypt", kcp.NewTEABlockCrypt}, {"NewTimedSched", kcp.NewTimedSched},
	{"NewTripleDESBlockCrypt", kcp.NewTripleDESBlockCrypt},
	{"NewTwofishBlockCrypt", kcp.NewTwofishBlockCrypt},
	{"NewXTEABlockCrypt", kcp.NewXTEABlockCrypt}, {"ServeConn", kcp.ServeConn},
	{"SetEntropy", kcp.SetEntropy},
}

// types are all that kcp-go exports; those with methods of pointers as such.
var types = []reflect.Type{
	reflect.TypeFor[kcp.BlockCrypt](),
	reflect.TypeFor[kcp.FlushType](),
	reflect.TypeFor[*kcp.KCP](),
	reflect.TypeFor[kcp.KCPLogType](),
	reflect.TypeFor[*kcp.Listener](),
	reflect.TypeFor[kcp.OOBCallBackType](),
	reflect.TypeFor[kcp.PacketType](),
	reflect.TypeFor[*kcp.RingBuffer[string]](),
	reflect.TypeFor[*kcp.Snmp](),
	reflect.TypeFor[*kcp.TimedSched](),
	reflect.TypeFor[*kcp.UDPSession](),
}

// constants are all that kcp-go exports.
var constants = []struct {
	name  string
	value any
}{
	{"IKCP_RTO_NDL", kcp.IKCP_RTO_NDL}, {"IKCP_RTO_MIN", kcp.IKCP_RTO_MIN},
	{"IKCP_RTO_DEF", kcp.IKCP_RTO_DEF}, {"IKCP_RTO_MAX", kcp.IKCP_RTO_MAX},
	{"IKCP_CMD_PUSH", kcp.IKCP_CMD_PUSH}, {"IKCP_CMD_ACK", kcp.IKCP_CMD_ACK},
	{"IKCP_CMD_WASK", kcp.IKCP_CMD_WASK}, {"IKCP_CMD_WINS", kcp.IKCP_CMD_WINS},
	{"IKCP_ASK_SEND", kcp.IKCP_ASK_SEND}, {"IKCP_ASK_TELL", kcp.IKCP_ASK_TELL},
	{"IKCP_WND_SND", kcp.IKCP_WND_SND}, {"IKCP_WND_RCV", kcp.IKCP_WND_RCV},
	{"IKCP_MTU_DEF", kcp.IKCP_MTU_DEF}, {"IKCP_ACK_FAST", kcp.IKCP_ACK_FAST},
	{"IKCP_INTERVAL", kcp.IKCP_INTERVAL}, {"IKCP_OVERHEAD", kcp.IKCP_OVERHEAD},
	{"IKCP_DEADLINK", kcp.IKCP_DEADLINK}, {"IKCP_THRESH_INIT", kcp.IKCP_THRESH_INIT},
	{"IKCP_THRESH_MIN", kcp.IKCP_THRESH_MIN}, {"IKCP_PROBE_INIT", kcp.IKCP_PROBE_INIT},
	{"IKCP_PROBE_LIMIT", kcp.IKCP_PROBE_LIMIT}, {"IKCP_SN_OFFSET", kcp.IKCP_SN_OFFSET},
	{"IKCP_PACKET_REGULAR", kcp.IKCP_PACKET_REGULAR},
	{"IKCP_PACKET_FEC", kcp.IKCP_PACKET_FEC},
	{"IKCP_FLUSH_ACKONLY", kcp.IKCP_FLUSH_ACKONLY},
	{"IKCP_FLUSH_FULL", kcp.IKCP_FLUSH_FULL}, {"IKCP_LOG_OUTPUT", kcp.IKCP_LOG_OUTPUT},
	{"IKCP_LOG_INPUT", kcp.IKCP_LOG_INPUT}, {"IKCP_LOG_SEND", kcp.IKCP_LOG_SEND},
	{"IKCP_LOG_RECV", kcp.IKCP_LOG_RECV}, {"IKCP_LOG_OUT_ACK", kcp.IKCP_LOG_OUT_ACK},
	{"IKCP_LOG_OUT_PUSH", kcp.IKCP_LOG_OUT_PUSH},
	{"IKCP_LOG_OUT_WASK", kcp.IKCP_LOG_OUT_WASK},
	{"IKCP_LOG_OUT_WINS", kcp.IKCP_LOG_OUT_WINS},
	{"IKCP_LOG_IN_ACK", kcp.IKCP_LOG_IN_ACK}, {"IKCP_LOG_IN_PUSH", kcp.IKCP_LOG_IN_PUSH},
	{"IKCP_LOG_IN_WASK", kcp.IKCP_LOG_IN_WASK},
	{"IKCP_LOG_IN_WINS", kcp.IKCP_LOG_IN_WINS},
	{"IKCP_LOG_OUTPUT_ALL", kcp.IKCP_LOG_OUTPUT_ALL},
	{"IKCP_LOG_INPUT_ALL", kcp.IKCP_LOG_INPUT_ALL}, {"IKCP_LOG_ALL", kcp.IKCP_LOG_ALL},
	{"RINGBUFFER_MIN", kcp.RINGBUFFER_MIN}, {"RINGBUFFER_EXP", kcp.RINGBUFFER_EXP},
}

// Untyped constants fit into any type that holds them, and interfaces hold.
var (
	_ uint8   = kcp.IKCP_CMD_PUSH
	_ float32 = kcp.IKCP_RTO_MAX
	_ int8    = kcp.RINGBUFFER_MIN

	_ net.Conn     = (*kcp.UDPSession)(nil)
	_ net.Listener = (*kcp.Listener)(nil)
)

// signature describes a function type without names of the package's own.
func signature(t reflect.Type) string {
	if t.Kind() != reflect.Func {
		return strings.TrimPrefix(t.String(), "kcp.")
	}
	var in, out []string
	for i := range t.NumIn() {
		in = append(in, describe(t.In(i)))
		if t.IsVariadic() && i == t.NumIn()-1 {
			in[i] = "..." + in[i][2:]
		}
	}
	for i := range t.NumOut() {
		out = append(out, describe(t.Out(i)))
	}
	return fmt.Sprintf("(%s) (%s)", strings.Join(in, ", "), strings.Join(out, ", "))
}

// describe is signature for parameters: function types that are not exported
// are written out.
func describe(t reflect.Type) string {
	if t.Kind() == reflect.Func && (t.Name() == "" || t.Name()[0] >= 'a') {
		return "func" + signature(t)
	}
	return t.String()
}

// surface describes all that is exported.
func surface() string {
	var b strings.Builder
	for _, f := range functions {
		fmt.Fprintf(&b, "func %s%s\n", f.name, signature(reflect.TypeOf(f.f)))
	}
	for _, t := range types {
		fmt.Fprintf(&b, "type %s %v\n", t, kind(t))
		for i := range t.NumMethod() {
			m := t.Method(i)
			fmt.Fprintf(&b, "\t%s%s\n", m.Name, signature(m.Type))
		}
	}
	s := reflect.TypeFor[kcp.Snmp]()
	for i := range s.NumField() {
		fmt.Fprintf(&b, "field Snmp.%s %v\n", s.Field(i).Name, s.Field(i).Type)
	}
	for _, c := range constants {
		fmt.Fprintf(&b, "const %s %T = %v\n", c.name, c.value, c.value)
	}
	fmt.Fprintf(&b, "var DefaultSnmp %T\nvar SystemTimedSched %T\n", kcp.DefaultSnmp, kcp.SystemTimedSched)
	return b.String()
}

func kind(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		return "*" + t.Elem().Kind().String()
	}
	return t.Kind().String()
}

// The whole API is there, with nothing missing and nothing of another type.
func TestAPI(t *testing.T) {
	const file = "testdata/api.txt"
	got := surface()
	if *update && !ours {
		must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	must(t, err)
	have := strings.Split(got, "\n")
	for i, line := range strings.Split(string(want), "\n") {
		if i >= len(have) || have[i] != line {
			t.Fatalf("line %d: %q, want %q", i+1, append(have, "nothing")[i], line)
		}
	}
	wrong(t, got != string(want), "there is more than kcp-go has")
}
