//go:build amd64 || arm64

package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
)

// Variables of a process that runs in a sandbox.
const (
	rulesVariable = "KCP_SANDBOX"      // what is refused
	lateVariable  = "KCP_SANDBOX_LATE" // not empty: once sessions have begun
)

// outcome is what such a process prints.
type outcome struct {
	Unable  string   // why there is no sandbox; empty: there is one
	Error   string   // why data did not pass; empty: it did
	Records []string // of the loggers, about refusals
}

func TestMain(m *testing.M) {
	rules := os.Getenv(rulesVariable)
	if rules == "" {
		os.Exit(m.Run())
	}
	go func() { // it ends with the test, whatever ends that
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	var o outcome
	var logs testenv.Records
	if err := sandboxed(rulesOf(rules), os.Getenv(lateVariable) != "", &logs); errors.Is(err, errUnable) {
		o.Unable = err.Error()
	} else if err != nil {
		o.Error = err.Error()
	}
	o.Records = logs.Of("the system refuses")
	_ = json.NewEncoder(os.Stdout).Encode(o)
	os.Exit(0)
}

var errUnable = errors.New("no sandbox here")

// confine is refuse, whose error wraps errUnable.
func confine(rules []rule) error {
	if err := refuse(rules); err != nil {
		return fmt.Errorf("%w: %w", errUnable, err)
	}
	return nil
}

// sandboxed lets three sessions exchange data with a server of two sockets: two of Dial
// and one of an endpoint. Rules are in force from the begin, or from the middle of the
// exchanges.
func sandboxed(rules []rule, late bool, logs *testenv.Records) error {
	if !late {
		if err := confine(rules); err != nil {
			return err
		}
	}
	config := &kcp.Config{Logger: logs.Logger(), DialTimeout: time.Hour, PeerTimeout: time.Hour, Shards: 2}
	l, err := kcp.Listen("udp", ":0", config)
	if err != nil {
		return err
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.AcceptKCP(context.Background())
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn) }()
		}
	}()
	conns, err := dialAll(l.Addr().(*net.UDPAddr).Port, config)
	if err != nil {
		return err
	}
	if err := echoAll(conns); err != nil {
		return err
	}
	if late {
		if err := confine(rules); err != nil {
			return err
		}
	}
	return echoAll(conns)
}

// dialAll dials the sessions. The process ends with them.
func dialAll(port int, config *kcp.Config) (conns [3]*kcp.Conn, err error) {
	to := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}
	for i := range 2 {
		if conns[i], err = kcp.Dial("udp", to.String(), config); err != nil {
			return conns, err
		}
	}
	pc, err := net.ListenUDP("udp4", &net.UDPAddr{IP: to.IP})
	if err != nil {
		return conns, err
	}
	e, err := kcp.NewEndpoint(pc, config)
	if err != nil {
		return conns, err
	}
	conns[2], err = e.Dial(context.Background(), to, nil)
	return conns, err
}

// echoAll sends data by each session, and compares what comes back. It is more than one
// batch each way, so that all ways of reading and writing are in use.
func echoAll(conns [3]*kcp.Conn) error {
	var errs [6]error
	var all sync.WaitGroup
	for i, conn := range conns {
		data := testenv.Content(uint64(i), 150_000)
		all.Go(func() { _, errs[i] = conn.Write(data) })
		all.Go(func() { errs[3+i] = testenv.Compare(conn, data) })
	}
	all.Wait()
	return errors.Join(errs[:]...)
}

// run runs the test program in a sandbox. It skips the test where there can be none.
func run(t *testing.T, late bool, rules ...rule) (o outcome) {
	t.Helper()
	texts := make([]string, len(rules))
	for i, r := range rules {
		texts[i] = r.String()
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), rulesVariable+"="+strings.Join(texts, ","))
	if late {
		cmd.Env = append(cmd.Env, lateVariable+"=1")
	}
	_, err := cmd.StdinPipe()
	require.NoError(t, err)
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.Output()
	require.NoError(t, err, "%v: %s", rules, failed.String())
	require.NoError(t, json.Unmarshal(out, &o), "%v: %s", rules, out)
	if o.Unable != "" {
		t.Skip(o.Unable)
	}
	return o
}

// judge fails the test unless data has passed, or a clear error says what was refused
// that nothing can replace.
func judge(t *testing.T, o outcome, late bool, rules ...rule) {
	t.Helper()
	needed := false
	named := false
	for _, r := range rules {
		needed = needed || operations()[r.operation].needed
		named = named || strings.Contains(o.Error, errnos()[r.errno].Error())
	}
	switch {
	case o.Error == "":
	case !needed || late:
		require.Empty(t, o.Error, "%v, late: %v", rules, late)
	default:
		require.True(t, named, "%v: %v", rules, o.Error)
	}
}

// names returns the names of operations in order, and kinds those of errors.
func names() []string { return slices.Sorted(maps.Keys(operations())) }
func kinds() []string { return slices.Sorted(maps.Keys(errnos())) }

// transfers are the names of the calls by which packets pass.
var transfers = []string{"recvmmsg", "recvmsg", "recvfrom", "sendmmsg", "sendmsg", "sendto"}

// passes reports whether packets pass by all these calls.
func passes(calls ...string) bool {
	return !slices.ContainsFunc(calls, func(c string) bool { return !slices.Contains(transfers, c) })
}

// runAll runs the processes that are refused what each element of sets says.
func runAll(t *testing.T, late bool, sets [][]rule) {
	t.Helper()
	for _, rules := range sets {
		t.Run(fmt.Sprint(rules), func(t *testing.T) {
			t.Parallel()
			judge(t, run(t, late, rules...), late, rules...)
		})
	}
}

// few reports whether a part of the cases is enough.
func few() bool { return !testenv.InFull() }

// Whatever a sandbox refuses, and with whatever error, data passes, or a clear error
// comes. Without KCP_LONG each is refused with one of the errors.
func TestRefused(t *testing.T) {
	var sets [][]rule
	for i, name := range names() {
		for j, errno := range kinds() {
			if !few() || i%len(kinds()) == j {
				sets = append(sets, []rule{{name, errno}})
			}
		}
	}
	runAll(t, false, sets)
}

// Two things are refused at once. Without KCP_LONG those are calls by which packets pass.
func TestRefusedPairs(t *testing.T) {
	var sets [][]rule
	all := names()
	for i, one := range all {
		for j, other := range all[:i] {
			for k, errno := range kinds() {
				if !few() || k == (i+j)%len(kinds()) && passes(one, other) {
					sets = append(sets, []rule{{one, errno}, {other, kinds()[(k+i)%len(kinds())]}})
				}
			}
		}
	}
	runAll(t, false, sets)
}

// A process may enter its sandbox when it has sockets already, and sessions.
func TestRefusedLater(t *testing.T) {
	var sets [][]rule
	for i, name := range names() {
		if !few() || passes(name) {
			sets = append(sets, []rule{{name, kinds()[i%len(kinds())]}})
		}
	}
	for i, one := range transfers {
		for _, other := range transfers[:i] {
			errno := kinds()[i%len(kinds())]
			if !few() || one[:4] == other[:4] {
				sets = append(sets, []rule{{one, errno}, {other, errno}})
			}
		}
	}
	runAll(t, true, sets)
}

// Each endpoint has one record of what is refused, and of what follows.
func TestRefusalIsRecorded(t *testing.T) {
	for _, c := range []struct {
		late    bool
		rules   string
		records int // of one listener, two sockets of Dial, and one of NewEndpoint; of those that met it if it is late
		says    []string
	}{
		{false, "recvmmsg=EPERM", 4, []string{"recvmmsg: operation not permitted (packets are received one by one)"}},
		{false, "recvmmsg=EACCES,sendmmsg=ENOSYS", 4, []string{"recvmmsg: permission denied", "sendmmsg: function not implemented"}},
		{false, "set UDP_GRO=EPERM", 4, []string{"UDP_GRO: operation not permitted (datagrams do not arrive merged)"}},
		{false, "set IPV6_RECVPKTINFO=EPERM", 1, []string{"IPV6_RECVPKTINFO: operation not permitted (answers leave"}},
		{true, "sendto=EPERM", 4, []string{"sendto: operation not permitted (packets are sent by other calls)"}},
	} {
		o := run(t, c.late, rulesOf(c.rules)...)
		require.Empty(t, o.Error, c.rules)
		if c.late {
			require.NotEmpty(t, o.Records, c.rules)
		} else {
			require.Len(t, o.Records, c.records, c.rules)
		}
		locals := map[string]bool{}
		for _, record := range o.Records {
			_, rest, _ := strings.Cut(record, " local=")
			local, _, _ := strings.Cut(rest, " ")
			require.False(t, locals[local], record)
			locals[local] = true
			for _, text := range c.says {
				require.Contains(t, record, text, c.rules)
			}
		}
	}
}

// Where no packet can be received, or none sent, the error comes at once, and says why.
func TestNothingPasses(t *testing.T) {
	for _, calls := range [][]string{{"recvmmsg", "recvmsg", "recvfrom"}, {"sendmmsg", "sendmsg", "sendto"}} {
		for i, errno := range kinds() {
			if few() && i%3 > 0 {
				continue
			}
			var rules []rule
			for _, call := range calls {
				rules = append(rules, rule{call, errno})
			}
			o := run(t, false, rules...)
			require.Contains(t, o.Error, calls[2]+": "+errnos()[errno].Error(), "%v", rules)
			require.Contains(t, o.Error, "listen udp", "%v", rules)
		}
	}
}
