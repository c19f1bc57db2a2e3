package rulebook

import (
	"bufio"
	"bytes"
	_ "embed"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/testenv"
)

//go:embed budgets.txt
var budgets string

// headroom is how far above its line a figure may be, in percent.
const headroom = 2

// No figure of the code is above its line in budgets.txt. With -v the test prints all of
// them. KCP_EXECUTED=write (or read, dial, stream) lists the functions of that figure.
func TestBudgets(t *testing.T) {
	t.Parallel()
	testenv.OfSources(t)
	figures := lines(t, "../..")
	figures["go-doc"] = bytes.Count(output(t, nil, "go", "doc", "-all", "../.."), []byte("\n"))
	if runtime.GOOS == "linux" && strconv.IntSize == 64 { // other systems execute other functions
		maps.Copy(figures, executed(t))
	}
	for _, problem := range above(t, budgets, figures) {
		t.Error("internal/rulebook/budgets.txt: " + problem)
	}
}

// above returns which figures are above their lines in a table, and which lines of it
// have no name of a figure.
func above(t testing.TB, table string, figures map[string]int) (problems []string) {
	most := make(map[string]int)
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		n, err := strconv.Atoi(fields[1])
		require.NoError(t, err, line)
		most[fields[0]] = n
	}
	for _, name := range slices.Sorted(maps.Keys(figures)) {
		t.Logf("%-18s %6d of %d", name, figures[name], most[name])
		if 100*figures[name] > (100+headroom)*most[name] {
			problems = append(problems, name+" is "+strconv.Itoa(figures[name]))
		}
	}
	return problems
}

// A figure within the headroom is in order, one above it or without a line is not.
func TestAbove(t *testing.T) {
	const table = "# a comment\n\nlines 1000 of code\nfiles 20 of code\n"
	for _, in := range []map[string]int{{"lines": 1020, "files": 20}, {"lines": 1, "files": 0}, {}} {
		require.Empty(t, above(t, table, in))
	}
	require.Equal(t, []string{"bytes is 1", "lines is 1021"}, above(t, table, map[string]int{"lines": 1021, "bytes": 1}))
}

// lines returns how many lines of Go a tree has, and its root folder.
func lines(t *testing.T, root string) map[string]int {
	figures := make(map[string]int)
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		n := bytes.Count(text, []byte("\n"))
		if strings.HasSuffix(path, "_test.go") {
			figures["test-lines"] += n
			return err
		}
		figures["code-lines"] += n
		if filepath.Dir(path) == filepath.Clean(root) {
			figures["root-lines"] += n
			figures["root-files"]++
		}
		return err
	}))
	return figures
}

const module = "github.com/arqnet/kcp"

// executed returns how many functions each operation of testdata/executed executes.
func executed(t *testing.T) map[string]int {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	packages := strings.Join([]string{module, module + "/congestion", module + "/crypt", module + "/internal/..."}, ",")
	fast := "-gcflags=" + module + "/...=-N -l" // to build: what it executes is the same
	output(t, nil, "go", "build", "-cover", "-covermode=atomic", "-coverpkg="+packages, fast, "-ldflags=-w", "-o", program, "./testdata/executed")
	figures := make(map[string]int)
	for _, op := range []string{"write", "read", "dial", "stream"} {
		counters := filepath.Join(dir, op)
		require.NoError(t, os.Mkdir(counters, 0o755))
		output(t, []string{"GOCOVERDIR=" + counters}, program, op)
		profile := filepath.Join(counters, "profile")
		output(t, nil, "go", "tool", "covdata", "textfmt", "-i="+counters, "-o="+profile)
		text := output(t, nil, "go", "tool", "cover", "-func="+profile)
		for scan := bufio.NewScanner(bytes.NewReader(text)); scan.Scan(); {
			place, rest, _ := strings.Cut(scan.Text(), ":")
			file := strings.TrimPrefix(place, module+"/")
			fields := strings.Fields(rest)
			if len(fields) != 3 || strings.HasPrefix(file, "internal/rulebook/") || fields[2] == "0.0%" {
				continue
			}
			figures[op+"-functions"]++
			if os.Getenv("KCP_EXECUTED") == op {
				t.Logf("%s:%s %s", file, fields[0], fields[1])
			}
		}
	}
	return figures
}

// output runs a command with env added to the environment.
func output(t *testing.T, env []string, name string, args ...string) []byte {
	command := exec.Command(name, args...)
	command.Env = append(os.Environ(), env...)
	var errors bytes.Buffer
	command.Stderr = &errors
	out, err := command.Output()
	require.NoError(t, err, "%s %s\n%s", name, strings.Join(args, " "), &errors)
	return out
}
