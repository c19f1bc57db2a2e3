package budget

import (
	"go/importer"
	"go/parser"
	"slices"
	"strings"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

const root = "../.."

// The figures of testdata/budgets.txt are no higher than their lines.
func TestBudgets(t *testing.T) {
	t.Parallel()
	testenv.OfSources(t)
	figures, err := Texts(root)
	require.NoError(t, err)
	figures["go-doc"], err = Docs(root)
	require.NoError(t, err)
	p, err := Load(root)
	require.NoError(t, err)
	figures["Conn-methods"], figures["Stream-methods"] = p.Methods("Conn"), p.Methods("Stream")
	figures["session-methods"] = p.Methods("session")
	figures["Conn-fields"], figures["Conn-bools"] = p.Fields("Conn")
	figures["KCP-used"] = p.Used("KCP")
	Test(t, figures)
	t.Run("locks", func(t *testing.T) {
		held, free := p.Releasers("Conn", "Conn.endIfUnwound", "Conn.endUnsent", "Conn.unlock", "Conn.unlockWhenSent")
		figures["mu-held"], figures["mu-free"] = len(held), len(free)
		t.Logf("mu-held:\n%s\nmu-free:\n%s", strings.Join(held, "\n"), strings.Join(free, "\n"))
		Test(t, map[string]int{"mu-held": len(held), "mu-free": len(free)})
	})
	lines, err := Parse(table)
	require.NoError(t, err)
	for _, line := range lines {
		if op, _, _ := strings.Cut(line.Name, "-"); !slices.Contains(executed, op) {
			require.Contains(t, figures, line.Name, "a line without a figure")
		}
	}
}

// executed are the operations whose figures TestExecuted compares.
var executed = []string{"write", "read", "dial", "stream"}

// Figures above their lines are found, and those without a line. Those that have fallen
// are in order.
func TestCheck(t *testing.T) {
	t.Parallel()
	lines, err := Parse("# a comment\n\nlines 1000 lines of code\nfiles 20  files of code\n")
	require.NoError(t, err)
	require.Equal(t, []Line{{"lines", 1000, "lines of code"}, {"files", 20, "files of code"}}, lines)
	for _, test := range []struct {
		figures map[string]int
		wrong   []string
	}{
		{map[string]int{"lines": 1000, "files": 20}, nil},
		{map[string]int{"lines": 1, "files": 0}, nil},
		{map[string]int{"lines": 1001}, []string{"lines: 1001, which is 1 above its line: lines                1000  lines of code"}},
		{map[string]int{"bytes": 3}, []string{"no line: bytes                   3  ..."}},
	} {
		require.Equal(t, test.wrong, Check(lines, test.figures))
	}
	for _, bad := range []string{"lines 1000", "lines many of code", "lines 1 a\nlines 2 b"} {
		_, err := Parse(bad)
		require.Error(t, err, bad)
	}
}

// source is a package with a lock, and what the figures are to find in it.
const source = `package p

import (
	"io"
	"sync"
)

type Conn struct {
	mu    sync.Mutex
	a, b  bool
	parts struct{ c bool }
	array [2]part
	far   *part
	wait  waiter
	k     KCP
}

type part struct{ d bool; e int }

type KCP struct{ f int }

func (k *KCP) used()   {}
func (k *KCP) unused() {}

type waiter struct{ cond sync.Cond }

type other struct {
	mu   sync.Mutex
	cond sync.Cond
}

type host interface{ called() }

// They release it.

func (c *Conn) unlocked(f func()) {
	c.mu.Unlock()
	defer c.mu.Lock()
	f()
}
func (c *Conn) called()         { c.unlocked(c.keeps) }
func (c *Conn) throughHost(h host) { h.called() }
func (c *Conn) literal()        { func() { c.called() }() }
func (w *waiter) wait()         { w.cond.Wait() }
func locker(l sync.Locker)      { l.Unlock(); l.Lock() }
func (c *Conn) passes()         { locker(&c.mu) }
func (c *Conn) value() func()   { return c.called }
func (c *Conn) Free()           { c.mu.Lock(); defer c.mu.Unlock(); c.called() }
func (c *Conn) Middle()         { c.mu.Lock(); c.mu.Unlock(); c.mu.Lock(); c.mu.Unlock() }
func (c *Conn) Later()          { AfterFunc(func() { c.mu.Lock(); c.called() }) }

// They do not.

func AfterFunc(f func())        {}
func (c *Conn) keeps()          { c.k.used() }
func (c *Conn) Takes()          { c.mu.Lock(); defer c.mu.Unlock(); c.keeps() }
func (c *Conn) once()           { c.mu.Unlock() }
func (c *Conn) calls(d *Conn)   { d.Free(); d.Middle() }
func (c *Conn) starts()         { go c.called() }
func (c *Conn) later()          { AfterFunc(func() { c.called() }) }
func (c *Conn) unwound()        { c.called() }
func (c *Conn) defers()         { defer c.unwound() }
func (c *Conn) reads(r io.Reader) { r.Read(nil) }
func (o *other) waits()         { o.cond.Wait() }
func (o *other) passes()        { locker(&o.mu) }
func (o *other) middle()        { o.mu.Unlock(); o.mu.Lock() }
`

// checked returns source as the package of session.go.
func checked(t *testing.T) *Package {
	p := newPackage()
	file, err := parser.ParseFile(p.fset, "session.go", source, 0)
	require.NoError(t, err)
	p.files = append(p.files, file)
	require.NoError(t, p.check(importer.ForCompiler(p.fset, "gc", nil)))
	return p
}

// Methods and fields are counted, also those of structs in the struct.
func TestShape(t *testing.T) {
	t.Parallel()
	p := checked(t)
	require.Equal(t, 2, p.Methods("KCP"))
	require.Equal(t, 1, p.Used("KCP"))
	fields, bools := p.Fields("Conn")
	require.Equal(t, []int{9, 4}, []int{fields, bools})
}

// Functions that release the lock are found, whatever way they take, and no others.
func TestReleasers(t *testing.T) {
	t.Parallel()
	held, free := checked(t).Releasers("Conn", "Conn.unwound")
	require.Equal(t, []string{
		"Conn.called by Conn.unlocked", "Conn.literal by Conn.called", "Conn.passes by locker", "Conn.throughHost by Conn.called",
		"Conn.unlocked", "Conn.value by Conn.called", "locker", "waiter.wait",
	}, held)
	require.Equal(t, []string{"Conn.Free by Conn.called", "Conn.Later by Conn.called", "Conn.Middle"}, free)
}
