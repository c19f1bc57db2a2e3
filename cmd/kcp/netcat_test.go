package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
)

// The tests of netcats spend their time with waiting. So they all run at once,
// whatever the number of processors.
func TestNetcat(t *testing.T) {
	var running sync.WaitGroup
	for name, test := range map[string]func(*testing.T){
		"pipes":     testPipes,
		"keep":      testListenKeepsListening,
		"nobody":    testDialNobody,
		"no answer": testDialNoAnswer,
		"wrong key": testWrongKey,
		"any order": testDialWaitsForTheListener,
		"interrupt": testInterruptEndsCleanly,
		"ports":     testListenPorts,
	} {
		running.Go(func() { t.Run(name, test) })
	}
	running.Wait()
}

// data returns n bytes that are another for each index.
func data(t *testing.T, index, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	_, err := io.ReadFull(randomData(42, index), b)
	require.NoError(t, err)
	return b
}

// endless is a stdin that gives nothing and does not end before the test does.
func endless(t *testing.T) io.Reader {
	r, w := io.Pipe()
	t.Cleanup(func() { w.Close() })
	return r
}

// process is a command at work.
type process struct {
	code chan int
	out  testenv.Records
	err  testenv.Records
}

func start(ctx context.Context, stdin io.Reader, args ...string) *process {
	p := &process{code: make(chan int, 1)}
	go func() { p.code <- run(ctx, args, stdin, &p.out, &p.err) }()
	return p
}

// listen starts kcp listen and returns the address that it has got.
func listen(ctx context.Context, t *testing.T, stdin io.Reader, args ...string) (*process, string) {
	t.Helper()
	p := start(ctx, stdin, append([]string{"listen", "127.0.0.1:0", "-v"}, args...)...)
	return p, p.err.Find(t, `listening on (\S+)\n`)
}

func dial(ctx context.Context, stdin io.Reader, addr string, args ...string) *process {
	return start(ctx, stdin, append([]string{"dial", addr}, args...)...)
}

// wait waits for the end and returns the exit code.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	return <-p.code
}

func requireSame(t *testing.T, name string, want, got []byte) {
	t.Helper()
	require.True(t, bytes.Equal(want, got), "%s: want %d bytes, got %d, or others", name, len(want), len(got))
}

// transfer is one session between kcp listen and kcp dial.
type transfer struct {
	name                 string
	listenIn, dialIn     io.Reader
	listenArgs, dialArgs string
	up, down             []byte // what must arrive at the listener, and at the dialler
	l, d                 *process
}

func testPipes(t *testing.T) {
	up, down, little := data(t, 0, 1<<20), data(t, 1, 1<<20), data(t, 2, 30_000)
	from := func(b []byte) io.Reader { return bytes.NewReader(b) }
	unread := iotest.ErrReader(errors.New("stdin was read"))
	transfers := []*transfer{
		{name: "both ways", listenIn: from(down), dialIn: from(up), up: up, down: down},
		// The stdin of a listener that only receives need not end.
		{name: "to listener", listenIn: unread, listenArgs: "-d", dialIn: from(little), up: little},
		// A dialler that sends nothing opens the session all the same.
		{name: "to dialler", listenIn: from(little), dialIn: unread, dialArgs: "-d", down: little},
		{name: "to dialler without input", listenIn: from(little), dialIn: from(nil), down: little},
	}
	for _, args := range []string{"-profile lowlatency", "-profile classic", "-message -mtu 200"} {
		transfers = append(transfers, &transfer{
			name: args, listenArgs: args, dialArgs: args, listenIn: from(down[:1]), dialIn: from(little), up: little, down: down[:1],
		})
	}
	for _, tr := range transfers {
		var addr string
		tr.l, addr = listen(t.Context(), t, tr.listenIn, strings.Fields(tr.listenArgs)...)
		tr.d = dial(t.Context(), tr.dialIn, addr, strings.Fields(tr.dialArgs)...)
	}
	for _, tr := range transfers {
		require.Equal(t, exitOK, tr.d.wait(t), "%s: %s%s", tr.name, &tr.d.err, &tr.l.err)
		require.Equal(t, exitOK, tr.l.wait(t), "%s: %s", tr.name, tr.l.err.String())
		requireSame(t, tr.name, tr.up, []byte(tr.l.out.String()))
		requireSame(t, tr.name, tr.down, []byte(tr.d.out.String()))
		require.Empty(t, tr.d.err.String(), "talks without -v")
	}
	require.Regexp(t, `kcp listen: session with 127\.0\.0\.1:\d+ ended after .*: sent 1\.0 MB, received 1\.0 MB, resent \d`,
		transfers[0].l.err.String())
}

func testListenKeepsListening(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l, addr := listen(ctx, t, strings.NewReader("welcome"), "-k")
	var want []byte
	for i := range 2 {
		up := data(t, i, 10_000)
		want = append(want, up...)
		d := dial(t.Context(), bytes.NewReader(up), addr)
		require.Equal(t, exitOK, d.wait(t), d.err.String())
		require.Equal(t, i == 0, d.out.String() == "welcome", "stdin goes to the first session")
	}
	conn, err := kcp.Dial("udp", addr, nil) // a reset ends its session alone
	require.NoError(t, err)
	l.err.Find(t, `(?s)(session with.*session with.*session with \S+\n)`)
	require.NoError(t, conn.Abort(0, ""))
	l.err.Find(t, `session with \S+: the peer (broke off)`)
	l.err.Find(t, `(?s)ended after.*ended after.*(ended after)`)
	cancel()
	require.Equal(t, exitOK, l.wait(t), l.err.String())
	requireSame(t, "all", want, []byte(l.out.String()))
}

// freeAddr returns an address without a listener. If every address of
// 127.0.0.0/8 is this machine, it is one that no other program gets.
func freeAddr(t *testing.T) string {
	ip := net.IPv4(127, 0, 0, 1)
	if runtime.GOOS == "linux" {
		ip = net.IPv4(127, 75, 67, 80)
	}
	free, err := net.ListenUDP("udp", &net.UDPAddr{IP: ip})
	require.NoError(t, err)
	defer free.Close()
	return free.LocalAddr().String()
}

func testDialNobody(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("not every system tells that a port is closed")
	}
	addr := freeAddr(t)
	d := dial(t.Context(), strings.NewReader("anybody?"), addr)
	require.Equal(t, exitFailed, d.wait(t))
	require.Equal(t, "kcp dial: no listener at "+addr+", or it refuses further sessions; -wait DURATION keeps trying\n", d.err.String())

	d = dial(t.Context(), strings.NewReader("anybody?"), addr, "-wait", "2s")
	require.Equal(t, exitFailed, d.wait(t))
	require.Equal(t, "kcp dial: no listener at "+addr+" for 2s (-wait), or it refuses further sessions\n", d.err.String())
}

func testDialNoAnswer(t *testing.T) {
	deaf, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer deaf.Close()
	d := dial(t.Context(), strings.NewReader("anybody?"), deaf.LocalAddr().String(), "-wait", "2s")
	require.Equal(t, exitFailed, d.wait(t))
	require.Equal(t, "kcp dial: no answer from "+deaf.LocalAddr().String()+" in 2s (-wait), or it has another -cipher or -key\n", d.err.String())
}

// Both ends say it if their keys differ.
func testWrongKey(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l, addr := listen(ctx, t, strings.NewReader(""), "-cipher", "xchacha20-poly1305", "-key", "one")
	d := dial(t.Context(), strings.NewReader("x"), addr, "-cipher", "xchacha20-poly1305", "-key", "two", "-wait", "1s")
	l.err.Find(t, `packets (cannot be opened)`)
	require.Equal(t, exitFailed, d.wait(t))
	require.Contains(t, d.err.String(), "in 1s (-wait), or it has another -cipher or -key")
	cancel()
	require.Equal(t, exitInterrupted, l.wait(t))
}

func testDialWaitsForTheListener(t *testing.T) {
	addr := freeAddr(t)
	d := dial(t.Context(), strings.NewReader("early"), addr, "-v", "-wait", "-1")
	if runtime.GOOS == "linux" {
		d.err.Find(t, `or it (refuses) further sessions; retrying`)
	}
	l := start(t.Context(), strings.NewReader("late"), "listen", addr)
	require.Equal(t, exitOK, d.wait(t), d.err.String())
	require.Equal(t, exitOK, l.wait(t), l.err.String())
	require.Equal(t, "early", l.out.String())
	require.Equal(t, "late", d.out.String())
}

func testInterruptEndsCleanly(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	waiting, _ := listen(ctx, t, strings.NewReader(""))
	dialling := dial(ctx, endless(t), freeAddr(t), "-v", "-wait", "-1")
	if runtime.GOOS == "linux" {
		dialling.err.Find(t, `(retrying)`)
	}
	cancel()
	for _, p := range []*process{waiting, dialling} {
		require.Equal(t, exitInterrupted, p.wait(t), p.err.String())
		require.True(t, strings.HasSuffix(p.err.String(), ": interrupted\n"), p.err.String())
	}
}

// A bare port is one of all addresses; one that is taken is an error.
func testListenPorts(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := start(ctx, nil, "listen", "0", "-v", "-d")
	port := l.err.Find(t, `listening on \S+:(\d+)\n`)
	got := runWith(t.Context(), nil, "listen", port)
	require.Equal(t, exitFailed, got.code)
	require.Contains(t, got.err, "kcp listen: listen udp")
	cancel()
	require.Equal(t, exitInterrupted, l.wait(t))
}
