package kcp

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"math/bits"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/netpath"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/arqnet/kcp/internal/session"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tableRows returns the rows of the tables of a page by their headings, without heads.
func tableRows(t *testing.T, page string) map[string][][]string {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	rows, heading := make(map[string][][]string), ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "#"):
			heading = strings.TrimSpace(strings.TrimLeft(line, "#"))
		case strings.HasPrefix(line, "| ---"):
			rows[heading] = nil // what came before was the head
		case strings.HasPrefix(line, "|"):
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows[heading] = append(rows[heading], cells)
		}
	}
	return rows
}

var codeSpan = regexp.MustCompile("`([^`\n]+)`")

// spans returns what stands between backquotes.
func spans(cell string) (all []string) {
	for _, m := range codeSpan.FindAllStringSubmatch(cell, -1) {
		all = append(all, m[1])
	}
	return all
}

// ARCHITECTURE.md names each file of the package once, under its layer, and no other.
func TestArchitectureFileMap(t *testing.T) {
	ofSources(t)
	sequential(t)
	doc := tableRows(t, "ARCHITECTURE.md")
	layer := func(file string) string {
		switch {
		case strings.HasPrefix(file, "conn"), file == "session.go", file == "stream.go":
			return "Conn"
		case strings.HasPrefix(file, "endpoint"):
			return "Endpoint"
		}
		return "Face"
	}
	mapped := make(map[string]bool)
	for _, heading := range []string{"Conn", "Endpoint", "Face"} {
		assert.NotEmpty(t, doc[heading], "ARCHITECTURE.md has no files of layer %s", heading)
		for _, row := range doc[heading] {
			for _, file := range spans(row[0]) {
				assert.FileExists(t, file)
				assert.False(t, mapped[file], "%s is in the file map twice", file)
				assert.Equal(t, layer(file), heading, "%s stands under the wrong layer", file)
				mapped[file] = true
			}
		}
	}
	for _, file := range rootFiles(t) {
		assert.True(t, mapped[file], "%s is missing from the file map of ARCHITECTURE.md", file)
	}
	for _, row := range doc["Other packages"] {
		for _, folder := range spans(row[0]) {
			assert.DirExists(t, folder)
		}
	}
}

// function matches the name of a function or method.
var function = regexp.MustCompile(`(?m)^func (?:\([^)]*\) )?(\w+)[(\[]`)

// functions returns the functions and methods of the repository, as pacing.Refill, or
// flushLost for one of the root, the machine or sessions, and its tests. A test is true if it is more than one of
// programs, examples or pages.
func functions(t *testing.T) (code, tests map[string]bool) {
	t.Helper()
	code, tests = make(map[string]bool), make(map[string]bool)
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		folder := filepath.ToSlash(filepath.Dir(path))
		of := ""
		if folder != "." {
			of = filepath.Base(folder) + "."
		}
		top, _, _ := strings.Cut(folder, "/")
		for _, m := range function.FindAllSubmatch(text, -1) {
			if name := string(m[1]); strings.HasSuffix(path, "_test.go") {
				tests[name] = tests[name] || top != "cmd" && top != "docs" && top != "examples"
			} else {
				code[of+name] = true
				code[name] = code[name] || folder == "internal/machine" || folder == "internal/session"
			}
		}
		return err
	}))
	return code, tests
}

// sectionHeading is a heading of WIRE.md, which begins with its number.
var sectionHeading = regexp.MustCompile(`(?m)^#+ ([0-9.]*[0-9])\.? `)

// Each rule of RULES.md names functions and tests, and headings there sections of WIRE.md,
// all of which exist. So do the tests that other pages name.
func TestArchitectureRules(t *testing.T) {
	t.Parallel()
	ofSources(t)
	sequential(t)
	wire, err := os.ReadFile("WIRE.md")
	require.NoError(t, err)
	sections := make(map[string]bool)
	for _, m := range sectionHeading.FindAllStringSubmatch(string(wire), -1) {
		sections["§"+m[1]] = true
	}
	code, tests := functions(t)
	rules := 0
	for heading, rows := range tableRows(t, "RULES.md") {
		for _, section := range regexp.MustCompile(`§[0-9.]+`).FindAllString(heading, -1) {
			assert.True(t, sections[section], "%s: WIRE.md has no section %s", heading, section)
		}
		for _, row := range rows {
			rules++
			require.Len(t, row, 3, row[0])
			deciding, noticing := strings.Fields(row[1]), strings.Fields(row[2])
			assert.NotEmpty(t, deciding, "%s: no code", row[0])
			assert.NotEmpty(t, noticing, "%s: no test", row[0])
			for _, name := range deciding {
				assert.True(t, code[name], "%s: there is no function %s", row[0], name)
			}
			for _, name := range noticing {
				assert.True(t, tests[name], "%s: there is no test %s", row[0], name)
			}
		}
	}
	require.Greater(t, rules, 150, "the rule tables are not as they were")
	page, err := os.Stat("RULES.md")
	require.NoError(t, err)
	assert.LessOrEqual(t, page.Size(), int64(40<<10), "RULES.md is to be read")
	for _, page := range []string{"SECURITY.md", "ARCHITECTURE.md", "docs/locks.md", "docs/design.md", "docs/how-to.md", "docs/walks.md"} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(text), -1) {
			assert.Contains(t, tests, name, "%s names %s", page, name)
		}
	}
}

// rootFiles returns the Go files of the package, without its tests.
func rootFiles(t *testing.T) (files []string) {
	t.Helper()
	all, err := filepath.Glob("*.go")
	require.NoError(t, err)
	return slices.DeleteFunc(all, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
}

// typeCheck checks files as a package of their own, with the text of more added,
// and returns the errors found.
func typeCheck(t *testing.T, fset *token.FileSet, imports types.Importer, files []string, more string) (info *types.Info, parsed []*ast.File, errs []error) {
	t.Helper()
	for _, name := range files {
		file, err := parser.ParseFile(fset, name, nil, 0)
		require.NoError(t, err)
		parsed = append(parsed, file)
	}
	file, err := parser.ParseFile(fset, "session_more.go", "package kcp\n"+more, 0)
	require.NoError(t, err)
	info = &types.Info{Selections: make(map[*ast.SelectorExpr]*types.Selection), Uses: make(map[*ast.Ident]types.Object)}
	config := types.Config{Importer: imports, Error: func(err error) { errs = append(errs, err) }}
	parsed = append(parsed, file)
	_, _ = config.Check("kcp", fset, parsed, info)
	return info, parsed, errs
}

// findsAll wants no violation in the package but one in each of the bad functions, which
// are added together, a line each.
func findsAll(t *testing.T, violations func(t *testing.T, added string) []string, bad ...string) {
	t.Helper()
	sequential(t)
	var lines []string
	for _, v := range violations(t, strings.Join(bad, "\n")) {
		lines = append(lines, strings.Join(strings.SplitN(v, ":", 3)[:2], ":"))
	}
	slices.Sort(lines)
	var want []string
	for i := range bad {
		want = append(want, fmt.Sprintf("session_more.go:%d", 2+i))
	}
	require.Equal(t, want, lines)
}

// noImports finds no package.
type noImports struct{}

func (noImports) Import(path string) (*types.Package, error) {
	return nil, fmt.Errorf("%s is not loaded", path)
}

// Rules of locks that can be read off the source:
//
//   - A function whose name ends in Locked is called by others of that kind, or by
//     functions that take a lock.
//   - Methods of Conn that do not take Conn.mu want it held. So exported ones
//     take it, unless they touch nothing that it guards; functions of other types
//     that call one of them take it; and no method calls one that takes it.
//
// The order in which locks are taken is not checked, nor what is done after a
// function has released one.
func TestLocksAreHeld(t *testing.T) {
	t.Parallel()
	ofSources(t)
	findsAll(t, lockViolations,
		"func (e *Endpoint) Bad1(c *Conn) { e.addLocked(c) }",
		"func (c *Conn) Bad2() bool { return c.session.Over() }",
		"func (c *Conn) Bad3() bool { return c.io.filling }",
		"func (c *Conn) bad4() { c.Stats() }",
		"func (e *Endpoint) bad5(c *Conn) { c.session.End(nil) }",
		"func (e *Endpoint) bad6(c *Conn) { c.stopDeadlines() }",
	)
}

// unguarded is what of a Conn, or of its session, may be used without Conn.mu: what does
// not change, and what is atomic or has another lock.
var unguarded = []string{"ep", "ends", "mu", "writing", "LocalAddr", "RemoteAddr", "Conv", "opError",
	"value", "wakeAt", "wakeIndex", "wakeHash", "Seed", "Init", "Accept",
	"Extended", "HalfOpen", "Evictable", "PacketKeys", "ResetBy", "Weight", "SetConv", "Addresses", "Encode", "Place"}

// lockExempt are functions that the rules do not see through.
var lockExempt = []string{
	"notifier.Broadcast",    // Conn.mu is held
	"Conn.writePackets",     // Conn.mu is not held
	"sessionHost.WorkTLS",   // entry.Conv does not change
	".newConn",              // no other goroutine knows the session yet
	"sessionHost.NewStream", // Conn.mu is held, as for all of a sessionHost
	"streamOwner.Readable",  // the same
	"streamOwner.Writable",  // the same
	"Endpoint.remove",       // retire calls it, which holds Conn.mu
}

// lockScan is the package as the rules see it.
type lockScan struct {
	fset    *token.FileSet
	info    *types.Info
	lockers map[string]bool // methods of Conn that take Conn.mu
	methods map[string]bool // methods of Conn
	broken  []string
}

// lockViolations returns where more, or a file of the package, breaks a rule.
func lockViolations(t *testing.T, more string) []string {
	t.Helper()
	s := lockScan{fset: token.NewFileSet(), lockers: make(map[string]bool), methods: make(map[string]bool)}
	info, files, _ := typeCheck(t, s.fset, noImports{}, rootFiles(t), more)
	s.info = info
	var functions []*ast.FuncDecl
	for _, file := range files {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			functions = append(functions, f)
			if receiverOf(f) == "Conn" {
				s.lockers[f.Name.Name] = s.takes(f, "Conn")
				s.methods[f.Name.Name] = true
			}
		}
	}
	for _, f := range functions {
		if !slices.Contains(lockExempt, receiverOf(f)+"."+f.Name.Name) {
			s.check(f)
		}
	}
	return s.broken
}

// receiverOf returns the name of the type that f is a method of.
func receiverOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	x := f.Recv.List[0].Type
	if star, ok := x.(*ast.StarExpr); ok {
		x = star.X
	}
	if id, ok := x.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}

// owner returns the type of the package whose field or method sel is.
func (s *lockScan) owner(sel *ast.SelectorExpr) string {
	selection := s.info.Selections[sel]
	if selection == nil {
		return ""
	}
	_, name, _ := strings.Cut(strings.TrimPrefix(selection.Recv().String(), "*"), ".")
	return name
}

// takes reports whether f takes a lock named mu, of the given type if that is not
// empty. Conn.await calls what it is given with Conn.mu held.
func (s *lockScan) takes(f *ast.FuncDecl, of string) (found bool) {
	ast.Inspect(f.Body, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		found = found || ok && sel.Sel.Name == "await" && s.owner(sel) == "Conn"
		if !ok || sel.Sel.Name != "Lock" && sel.Sel.Name != "RLock" {
			return true
		}
		mu, ok := sel.X.(*ast.SelectorExpr)
		found = found || ok && mu.Sel.Name == "mu" && (of == "" || s.owner(mu) == of)
		return true
	})
	return found
}

// check looks at what f uses.
func (s *lockScan) check(f *ast.FuncDecl) {
	held := strings.HasSuffix(f.Name.Name, "Locked") || s.takes(f, "")
	method := receiverOf(f) == "Conn"
	free := make(map[ast.Expr]bool) // sessions of which something unguarded is used
	heldConn := s.takes(f, "Conn") || method && !f.Name.IsExported() || strings.HasSuffix(f.Name.Name, "Locked")
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if _, ok := n.(*ast.GoStmt); ok {
			return false // runs without the locks of f
		}
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		name, owner := sel.Sel.Name, s.owner(sel)
		free[sel.X] = slices.Contains(unguarded, name)
		if strings.HasSuffix(name, "Locked") && !held && !method && receiverOf(f) != "session" {
			s.report(sel, "%s is called without a lock", name)
		}
		if owner != "Conn" || slices.Contains(unguarded, name) {
			return true
		}
		switch {
		case s.lockers[name] && method && !f.Name.IsExported() && !s.takes(f, ""):
			s.report(sel, "%s takes the lock, which is held", name)
		case s.lockers[name] || heldConn || free[sel]:
		case name == "session":
			s.report(sel, "the session is used without the lock")
		case s.methods[name] && !ast.IsExported(name):
			s.report(sel, "%s is called without the lock", name)
		case method:
			s.report(sel, "%s is used without the lock", name)
		}
		return true
	})
}

func (s *lockScan) report(at ast.Node, format string, args ...any) {
	s.broken = append(s.broken, fmt.Sprintf("%v: %s", s.fset.Position(at.Pos()), fmt.Sprintf(format, args...)))
}

const millis = time.Millisecond

// The constants of the package are the figures that RULES.md and WIRE.md say.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", sessionFigures())
	rulebook.Check(t, "RULES.md", endpointFigures())
	rulebook.Check(t, "WIRE.md", wireFigures())
}

// sessionFigures are those of sessions.
func sessionFigures() []rulebook.Figure {
	const ( // rules
		writes    = "| Write buffer if"
		dial      = "| Dial: "
		legacy    = "| A peer is legacy"
		closing   = "| Close: CLOSE"
		linger    = "| Such sockets"
		keepAlive = "| Keep-alive"
	)
	return []rulebook.Figure{
		{"| RTO back-off", "5 s", session.SessionMaxRTO},
		{"| Zero-window probe", "5 s", session.SessionMaxRTO},
		{"| Fast retransmit", "2 ACKs", defaultFastResend},
		{"| Black hole (RFC", "3 losses", netpath.WatchedLosses},
		{"| Write buffer, unless", "4 MiB", session.DefaultWriteBuffer},
		{"| Write buffer, unless", "64 bytes", machine.WriteCostPerSegment},
		{"| Cap of the rate", "1000 bytes a second", minMaxRate},
		{"| At the cap the write", "4 MiB", session.DefaultWriteBuffer},
		{writes, "64 MiB", session.WritePressure * session.WriteGrain},
		{writes, "256 KiB", session.ScarceWriteBuffer},
		{writes, "4 MiB", session.DefaultWriteBuffer},
		{writes, "16 KiB", session.LeastWriteBuffer},
		{"| Write buffer of streams", "256 KiB", session.DefaultStreamWrite},
		{"| Any segment", "256 of the peer", defaultMaxStreams},
		{"| Credit of a stream", "1 MiB", defaultStreamReceive},
		{"| Dynamic right-sizing", "16 MiB", session.MaxStreamReceive},
		{"| Priorities", "64 KiB", session.BulkAhead},
		{"| Partial reliability (RFC 3758)", "65534", maxRetransmitLimit},
		{"| Half-open sessions", "10 s", session.HandshakeTime},
		{"| What sessions hold", "1 KiB", session.AccountGrain},
		{"| A batch has", "16 KiB", session.LittleHeld},
		{dial, "200", int(opening.FirstHello / millis)},
		{dial, "500 ms", opening.EagerWait},
		{dial, "20th", opening.EagerHellos},
		{dial, "4 cookies", opening.MaxCookies},
		{dial, "50 ms", opening.HelloGap},
		{dial, "2 s", opening.MaxWait},
		{dial, "10 s", defaultDialTimeout},
		{legacy, "2 plain window updates", session.LegacyAnswers},
		{legacy, "8 HELLOs", session.HelloTries},
		{closing, "5 s", session.DefaultLinger},
		{linger, "256 sockets", fair.MostLingering},
		{linger, "an 8th", fair.LingeringPart},
		{keepAlive, "25 s", defaultKeepAlive},

		{"| Idle timeout", "30 min", defaultStallTimeout},
	}
}

// endpointFigures are those of endpoints.
func endpointFigures() []rulebook.Figure {
	const ( // rules
		pressure = "| A batch has"
		foreign  = "| Sockets of NewEndpoint"
		records  = "| Records"
	)
	return []rulebook.Figure{
		{"| Half-open sessions", "1024", defaultMaxHalfOpen},
		{"| Half-open sessions", "3 s", session.EvictAfter},
		{"| Above `MaxBuffered`", "64 KiB", session.LeastShare},
		{pressure, "1024 sessions", scanned},
		{pressure, "16 ended", mostShed},
		{"| TIME-WAIT", "60 s", session.TimeWaitTime},
		{"| Time-outs that are due wait", "1 ms", session.HoldTime},
		{"| Time-outs that are due wait", "1 s", session.MostHold},
		{"| Packets of several sessions", "64", sendBatchSize},
		{foreign, "1 s", closeWait},
		{"| A dropped handshake", "3 times", maxDials - 1},
		{"| TLS works on fewer handshakes", "100 ms", fair.Lease},
		{"| Errors: an alert", "16 wait", maxFailures},
		{"| After a handover", "800 ms", drainHold},
		{records, "100 a second", sessionLogRate},
		{records, "10 s", unopenedLogEvery},
	}
}

// wireFigures are those of the format, and of what WIRE.md says besides.
func wireFigures() []rulebook.Figure {
	const ( // rows and paragraphs
		Packet      = "A UDP payload is one packet"
		info        = "| 2 | INFO | WINS |"
		unvalidated = "What is received is kept up to"
	)
	return []rulebook.Figure{
		{Packet, "default 1400", defaultConfigMTU},
		{info, "bit 1", bits.TrailingZeros(session.CapTLS)},
		{info, "bit 2", bits.TrailingZeros(session.CapReason)},
		{info, "bit 3", bits.TrailingZeros(session.CapStreams)},
		{info, "bit 7", bits.TrailingZeros(session.CapCopies)},
		{info, "bit 10", bits.TrailingZeros(session.CapCounts)},
		{info, "bit 8", bits.TrailingZeros(protect.CapKeys)},
		{info, "bit 9", bits.TrailingZeros(protect.CapChaCha)},
		{info, "version, now 2", handshake.Version},
		{"- CLOSE may carry why", "code 8", closing.ReasonCode},
		{"Peers with signals are shown", "128 first", machine.MinRcvWnd},
		{unvalidated, "16 KiB", machine.UnvalidatedBytes},
		{"a dialler takes no first key", "30 s", session.ResetKeyWithin},
		{"| 0x00f3 | datagram", "conv 4", session.DatagramHeader - fec.HeaderSize},
	}
}

// Session.Inside is for tests: no other code calls it.
func TestArchitectureInside(t *testing.T) {
	t.Parallel()
	ofSources(t)
	sequential(t)
	tests := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		switch calls := strings.Contains(string(text), ".Inside()"); {
		case strings.HasSuffix(path, "_test.go"):
			if calls && filepath.Base(path) != "architecture_test.go" {
				tests++
			}
		default:
			assert.False(t, calls, "%s calls Inside", path)
		}
		return err
	}))
	require.Positive(t, tests, "no test calls Inside: has it another name?")
}
