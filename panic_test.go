package kcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/wakeup"
	"github.com/stretchr/testify/require"
)

// trap panics once, on the goroutine that has armed it.
type trap struct {
	mu    sync.Mutex
	armed string // what runs it; "": nothing
	on    string // the goroutine
}

// goroutine returns the name of the calling goroutine.
func goroutine() string {
	b := make([]byte, 64)
	name, _, _ := strings.Cut(string(b[:runtime.Stack(b, false)]), "[")
	return name
}

func (b *trap) arm(by string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.armed, b.on = by, goroutine()
}

// reached panics if the trap is armed for what has run.
func (b *trap) reached(by string) {
	b.mu.Lock()
	panics := b.armed == by && b.on == goroutine()
	if panics {
		b.armed = ""
	}
	b.mu.Unlock()
	if panics {
		panic(b)
	}
}

// hooks returns hooks that all reach the trap.
func (b *trap) hooks() *Trace {
	t := new(Trace)
	v := reflect.ValueOf(t).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		v.Field(i).Set(reflect.MakeFunc(v.Field(i).Type(), func([]reflect.Value) []reflect.Value {
			b.reached("Trace." + name)
			return nil
		}))
	}
	return t
}

// trappedCipher is a cipher whose calls reach a trap.
type trappedCipher struct {
	crypt.Cipher
	*trap
}

func (c trappedCipher) Seal(packet []byte) error {
	c.reached("Cipher.Seal")
	return c.Cipher.Seal(packet)
}

func (c trappedCipher) Open(packet []byte) ([]byte, error) {
	c.reached("Cipher.Open")
	return c.Cipher.Open(packet)
}

// trappedSocket is a socket whose calls reach a trap.
type trappedSocket struct {
	leadable
	*trap
}

func (s trappedSocket) WriteToAddrPort(b []byte, addr netip.AddrPort) (int, error) {
	s.reached("PacketConn.WriteTo")
	return s.leadable.WriteToAddrPort(b, addr)
}

func (s trappedSocket) ReadFromAddrPort(b []byte) (int, netip.AddrPort, error) {
	n, addr, err := s.leadable.ReadFromAddrPort(b)
	s.reached("PacketConn.ReadFrom")
	return n, addr, err
}

// config returns a Config of which everything that it calls reaches the trap.
func (b *trap) config(t *testing.T) *Config {
	return &Config{
		Limits: Limits{MaxStreams: 10},
		Cipher: trappedCipher{testAEAD(t), b},
		Tracer: func(*Conn) *Trace {
			b.reached("Tracer")
			return b.hooks()
		},
		CongestionControl: func() congestion.Control {
			b.reached("CongestionControl")
			return congestion.NewCubic()
		},
	}
}

// callbacks are what the application may have given that a call of its own runs.
func callbacks() (names []string) {
	of := reflect.TypeFor[Trace]()
	for i := range of.NumField() {
		names = append(names, "Trace."+of.Field(i).Name)
	}
	return append(names, "Cipher.Seal", "Cipher.Open", "PacketConn.WriteTo", "PacketConn.ReadFrom", "Tracer", "CongestionControl",
		"HandleDatagrams")
}

// panicWorld is a session whose callbacks panic, with a stream, and its peer.
type panicWorld struct {
	*world
	*trap
	e      *Endpoint
	c      *Conn
	stream *Stream
	other  *Conn      // another session, of a call that needs two
	reads  chan error // the result of a Read of the stream, which waits
	sent   []byte     // written to the session
	got    []byte     // read from it, which echoes
}

// inPanicWorld runs f in one.
func inPanicWorld(t *testing.T, f func(w *panicWorld)) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		w.leads = true
		p := &panicWorld{world: w, trap: new(trap)}
		l := w.listen(&Config{Cipher: testAEAD(t), Limits: Limits{MaxStreams: 10}, MTU: 1400})
		go func() {
			for {
				c, err := l.AcceptKCP(context.Background())
				if err != nil {
					return
				}
				go echoLoudly(c)
			}
		}()
		pc, err := w.net.Listen("10.0.0.2:0")
		require.NoError(t, err)
		defer pc.Close()
		p.e, err = NewEndpoint(trappedSocket{leadable{PacketConn: pc}, p.trap}, p.config(t))
		require.NoError(t, err)
		defer p.e.Close()
		p.c = w.dial(p.e)
		p.c.handleDatagrams(func([]byte) { p.reached("HandleDatagrams") })
		p.stream, err = p.c.OpenStream(context.Background(), nil)
		require.NoError(t, err)
		p.exchange(3)
		f(p)
		_ = p.e.Close() // f may have closed it
		if p.reads != nil {
			require.Error(t, <-p.reads, "a call that has waited is told of the end")
		}
	})
}

// echoLoudly sends back what arrives, and a datagram before it.
func echoLoudly(c *Conn) {
	b := make([]byte, 1<<16)
	for {
		n, err := c.Read(b)
		if err != nil {
			_ = c.Close()
			return
		}
		_ = c.SendDatagram([]byte("hello"))
		_, _ = c.Write(b[:n])
	}
}

// second opens another session, and lets a Read of the stream wait.
func (w *panicWorld) second() {
	w.other = w.dial(w.e)
	w.reads = make(chan error, 1)
	go func() {
		_, err := w.stream.Read(make([]byte, 1))
		w.reads <- err
	}()
	synctest.Wait()
}

// exchange writes something and reads it back, n times, unless the session fails.
func (w *panicWorld) exchange(n int) {
	for i := range n {
		data := content(uint64(i), 10)
		w.sent = append(w.sent, data...)
		if _, err := w.c.Write(data); err != nil {
			return
		}
		for len(w.got) < len(w.sent) {
			b := make([]byte, 100)
			n, err := w.c.Read(b)
			if err != nil {
				return
			}
			w.got = append(w.got, b[:n]...)
		}
	}
}

// panics runs f with the trap armed for what runs it, and reports whether that has
// ended f.
func (b *trap) panics(by string, f func()) (sprung bool) {
	defer b.arm("")
	defer func() {
		if r := recover(); r != nil {
			if r != any(b) {
				panic(r)
			}
			sprung = true
		}
	}()
	b.arm(by)
	f()
	return false
}

// requireUnlocked fails if a lock is held, or somebody seems to be at work.
func (w *panicWorld) requireUnlocked(t *testing.T) {
	t.Helper()
	synctest.Wait()
	for _, mu := range []*sync.Mutex{&w.c.writing, &w.c.mu, &w.stream.writing} {
		require.True(t, mu.TryLock(), "a lock is held")
		mu.Unlock()
	}
	require.True(t, w.e.mu.TryLock(), "the endpoint's lock is held")
	w.e.mu.Unlock()
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	sending, _ := w.c.session.Inside().Writing()
	require.False(t, sending, "a writer that is gone")
	require.False(t, w.c.io.filling || w.stream.filling && w.reads == nil, "a reader that is gone")
	require.NotEqual(t, wakeup.Call, w.e.socket.shards[0].lead.Who(), "a call that is gone reads the socket")
}

// requireUsable fails unless the session goes on, or has ended and says so, and unless
// its endpoint goes on.
func (w *panicWorld) requireUsable(t *testing.T, over bool) {
	t.Helper()
	begun := time.Now()
	_ = w.c.SetDeadline(begun.Add(5 * time.Second))
	w.exchange(2)
	if w.c.Err() == nil && !over {
		require.Equal(t, w.sent, w.got, "the session has not ended, and does not go on")
	}
	if w.other != nil && w.other.Err() == nil {
		require.NoError(t, w.other.SetDeadline(time.Now().Add(5*time.Second)))
		_, err := w.other.Write([]byte("!"))
		require.NoError(t, err)
		var got []byte
		for b := make([]byte, 10); !bytes.HasSuffix(got, []byte("!")); {
			n, err := w.other.Read(b)
			require.NoError(t, err)
			got = append(got, b[:n]...)
		}
		require.Contains(t, []string{"!", "other!"}, string(got))
		require.NoError(t, w.other.Close())
	}
	_ = w.c.Close()
	<-w.c.Done()
	if !w.e.stopped() {
		c := w.dial(w.e)
		require.NoError(t, c.SetDeadline(time.Now().Add(5*time.Second)))
		send(t, c, content(9, 5000))
		receive(t, c, content(9, 5000))
		require.NoError(t, c.Close())
		require.NoError(t, w.e.Close())
	}
	require.Zero(t, w.e.Stats().Sessions)
	require.Less(t, time.Since(begun), 20*time.Second)
}

// panicCalls are calls of the application. Those that end the session are over.
func panicCalls() map[string]func(w *panicWorld) {
	ctx := context.Background()
	return map[string]func(w *panicWorld){
		"exchange": func(w *panicWorld) { w.exchange(30) },
		"Write": func(w *panicWorld) {
			w.sent = append(w.sent, content(3, 20_000)...)
			_, _ = w.c.Write(content(3, 20_000))
		},
		"Group.Send, two": func(w *panicWorld) {
			w.sent = append(w.sent, "here"...)
			NewGroup().Send([]Outgoing{{Conn: w.c, Data: []byte("here")}, {Stream: w.stream, Data: []byte("there")}, {Conn: w.other, Data: []byte("other")}})
		},
		"Group.Send, other way, two": func(w *panicWorld) {
			w.sent = append(w.sent, "here"...)
			NewGroup().Send([]Outgoing{{Conn: w.other, Data: []byte("other")}, {Conn: w.c, Data: []byte("here")}})
		},
		"SendDatagram": func(w *panicWorld) { _ = w.c.SendDatagram([]byte("hello")) },
		"Ping":         func(w *panicWorld) { _, _ = w.c.Ping(ctx) },
		"Stream.Write": func(w *panicWorld) { _, _ = w.stream.Write(content(3, 20_000)) },
		"Stream.Read": func(w *panicWorld) { // reads the socket, and gets nothing
			_, _ = w.c.Write(content(3, 20))
			w.sent = append(w.sent, content(3, 20)...)
			_ = w.stream.SetReadDeadline(time.Now().Add(time.Second))
			_, _ = w.stream.Read(make([]byte, 100))
		},
		"Stream.Reset":         func(w *panicWorld) { _ = w.stream.Reset(7) },
		"SetMTU":               func(w *panicWorld) { _ = w.c.SetMTU(700) },
		"SetCongestionControl": func(w *panicWorld) { _ = w.c.SetCongestionControl(nil) },
		"SetTrace":             func(w *panicWorld) { w.c.SetTrace(nil) },
		"Dial": func(w *panicWorld) {
			if c, err := w.e.Dial(ctx, udpAddr(serverAddr), nil); err == nil {
				_ = c.Abort(0, "")
			}
		},
		"CloseWrite, over":       func(w *panicWorld) { _ = w.c.CloseWrite() },
		"Close, over":            func(w *panicWorld) { _ = w.c.Close() },
		"AbortWithError, over":   func(w *panicWorld) { _ = w.c.Abort(1, "text") },
		"several, over":          func(w *panicWorld) { w.dial(w.e); _ = w.e.Close() },
		"Shutdown several, over": func(w *panicWorld) { w.dial(w.e); _ = w.e.Shutdown(ctx) },
	}
}

// A callback panics within a call of the application, which recovers. No lock stays
// held; the session goes on, or has ended; the endpoint goes on.
func TestPanicsOfCallbacks(t *testing.T) {
	simulated(t)
	t.Parallel()
	sprung := make(map[string]bool) // callbacks and calls
	calls := panicCalls()
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		call := calls[name]
		for _, by := range callbacks() {
			t.Run(name+", "+by, func(t *testing.T) {
				inPanicWorld(t, func(w *panicWorld) {
					if strings.HasSuffix(name, "two") {
						w.second()
					}
					if !w.panics(by, func() { call(w) }) {
						return
					}
					sprung[name], sprung[by] = true, true
					w.requireUnlocked(t)
					w.requireUsable(t, strings.HasSuffix(name, "over"))
				})
			})
		}
		require.True(t, sprung[name], "%s calls nothing", name)
	}
	for _, by := range callbacks() {
		switch by {
		case "Trace.Repeated", "Trace.Lost", "Trace.Spurious", "Trace.Dropped", "Trace.Moved", "Trace.CongestionState":
			// Of bad paths. They run where the others do.
		default:
			require.True(t, sprung[by], "nothing calls %s", by)
		}
	}
}

// On a goroutine of the package a panic ends the program, and the trace names the
// culprit.
func TestPanicsEndTheProgram(t *testing.T) {
	sequential(t)
	simulated(t)
	const variable = "KCP_TEST_PANIC_OF"
	if culprit := os.Getenv(variable); culprit != "" {
		inWorld(t, 1, clean, func(t *testing.T, w *world) { panicOf(w, culprit) })
		return
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	for _, culprit := range []string{"Done", "HandshakeFailed", "datagrams of a reader"} {
		cmd := exec.Command(exe, "-test.run=^TestPanicsEndTheProgram$", "-test.timeout=60m")
		cmd.Env = append(os.Environ(), variable+"="+culprit)
		out, err := cmd.CombinedOutput()
		require.ErrorAs(t, err, new(*exec.ExitError), culprit)
		require.Contains(t, string(out), "panic: of "+culprit)
		require.Contains(t, string(out), "kcp.theCulprit(")
	}
}

// theCulprit panics.
func theCulprit(name string) { panic("of " + name) }

// panicOf brings about that a goroutine of the package calls theCulprit.
func panicOf(w *world, culprit string) {
	if culprit == "HandshakeFailed" {
		w.listen(&Config{TLS: testTLS(), HandshakeFailed: func(net.Addr, error) { theCulprit(culprit) }})
		e, _ := w.endpoint("10.0.0.2:0", &Config{TLS: &tls.Config{ServerName: "another"}})
		_, _ = e.Dial(context.Background(), udpAddr(serverAddr), nil)
	} else {
		config := &Config{MessageMode: true}
		a, b, _ := w.pair(config, config)
		b.handleDatagrams(func([]byte) { theCulprit(culprit) })
		if culprit == "Done" {
			_ = a.WriteMessage([]byte("x"), &MessageOptions{Done: func(error) { theCulprit(culprit) }})
		} else {
			_ = a.SendDatagram([]byte("x"))
		}
	}
	time.Sleep(time.Minute)
}
