package main

import (
	"bufio"
	"bytes"
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/arqnet/kcp/internal/budget"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

const module = "github.com/arqnet/kcp"

// An operation executes no more files and functions than its lines allow. The environment
// variable KCP_EXECUTED names one of which they are listed.
func TestExecuted(t *testing.T) {
	t.Parallel()
	testenv.OfSources(t)
	if runtime.GOOS != "linux" || strconv.IntSize != 64 {
		t.Skip("other systems execute other files")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	packages := strings.Join([]string{module, module + "/congestion", module + "/crypt", module + "/internal/..."}, ",")
	output(t, nil, "go", "build", "-cover", "-covermode=atomic", "-coverpkg="+packages, "-o", program, ".")
	figures := make(map[string]int)
	for op := range operations {
		counters := filepath.Join(dir, op)
		require.NoError(t, os.Mkdir(counters, 0o755))
		output(t, []string{"GOCOVERDIR=" + counters}, program, op)
		files := make(map[string]bool)
		functions := executed(t, counters)
		for _, f := range functions {
			files[f.file] = true
			if os.Getenv("KCP_EXECUTED") == op {
				t.Logf("%-50s %s", f.file, f.name)
			}
		}
		figures[op+"-files"], figures[op+"-functions"] = len(files), len(functions)
	}
	budget.Test(t, figures)
}

// function is a function of the module.
type function struct{ file, name string }

// executed returns the functions with counters in dir that are not zero, but for those of
// this program.
func executed(t *testing.T, dir string) (functions []function) {
	profile := filepath.Join(dir, "profile")
	output(t, nil, "go", "tool", "covdata", "textfmt", "-i="+dir, "-o="+profile)
	text := output(t, nil, "go", "tool", "cover", "-func="+profile)
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		place, rest, _ := strings.Cut(lines.Text(), ":")
		file := strings.TrimPrefix(place, module+"/")
		fields := strings.Fields(rest)
		if len(fields) != 3 || strings.HasPrefix(file, "internal/executed/") || fields[2] == "0.0%" {
			continue
		}
		line := strings.TrimSuffix(fields[0], ":")
		functions = append(functions, function{file, fields[1] + " (line " + line + ")"})
	}
	slices.SortFunc(functions, func(a, b function) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.name, b.name))
	})
	return functions
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
