package rulebook

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// All numbers of 32 bits or less are in testdata/numbers.txt, with how fast they
// advance and what lasts how long.
func TestNumbersDoNotComeAround(t *testing.T) {
	testenv.OfSources(t)
	found, err := Narrow(os.DirFS("../.."), "bench", "examples", "interop_test", "soak", "fuzz", "e2e", "docs", "scripts", ".git",
		"internal/testenv", "internal/mutate", "internal/executed", "internal/uplot", "kcpgo/programs", "kcpgo/contract", "tunnel/bench")
	require.NoError(t, err)
	table, err := os.ReadFile("testdata/numbers.txt")
	require.NoError(t, err)
	require.Empty(t, strings.Join(CheckNumbers(string(table), found), "\n"))
}

// What a table lacks is found, and what is in no source.
func TestNarrow(t *testing.T) {
	const source = `package p

type kind uint8
const first kind = 1
type number uint16
type s struct {
	a, b uint32
	c    struct{ d map[int]*uint8 }
	e    atomic.Int32
	f    []byte
	g    uint64
	h    []serial.Number
}
var v int32
var w = 3
`
	found, err := Narrow(fstest.MapFS{"x/y.go": {Data: []byte(source)}, "x/y_test.go": {Data: []byte("package p; var z int8")},
		"z/y.go": {Data: []byte("package p; var z int8")}}, "z")
	require.NoError(t, err)
	require.Equal(t, [][3]string{
		{"x", "[]serial.Number", "s.h"}, {"x", "atomic.Int32", "s.e"}, {"x", "int32", "v"}, {"x", "map[int]*uint8", "s.d"},
		{"x", "uint16", "type number"}, {"x", "uint32", "s.a"}, {"x", "uint32", "s.b"},
	}, found)
	const table = `# a comment
x | uint32 | s.a, s.b | 1 a second | hours
x | []serial.Number | s.h | the peer | it may
x | atomic.Int32 | s.e | | hours
x | int32 | v, v | never | ever
x | uint8 | s.d | never | ever
x | uint16 | type number | never | ever
`
	require.Equal(t, []string{
		"not in one row: x | atomic.Int32 | s.e", "not in one row: x | int32 | v", "not in one row: x | map[int]*uint8 | s.d",
		"not in the sources: x | uint8 | s.d", "x | atomic.Int32 | s.e | | hours",
	}, CheckNumbers(table, found))
}
