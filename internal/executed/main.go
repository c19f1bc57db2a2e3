// Executed counts the files and functions of the module that an operation of a
// warm session executes. It says how much code a reader has to follow.
//
//	go run ./internal/executed [-check] [-list write|read|dial|stream]
//
// It builds itself with coverage counters and runs each operation in a process
// of its own. The counters are cleared right before the operation and written
// right after it. Both ends are in memory, and a gate holds packets back, so
// that only one end runs. Lines say what was counted, and the most there may be.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const module = "github.com/arqnet/kcp"

// operation is something to be counted, and its limits.
type operation struct {
	name, what       string
	files, functions int
	run              func(counted func(func()))
}

var operations = []operation{
	{"write", "Write of one byte", 35, 115, write},
	{"read", "packet with ACK and data into a blocked Read", 45, 175, read},
	{"dial", "Dial with TLS, both ends", 60, 300, dial},
	{"stream", "Write of one byte to a stream", 40, 150, stream},
}

func main() {
	run := flag.String("run", "", "run the `operation` and write its counters to GOCOVERDIR")
	list := flag.String("list", "", "list the functions that the `operation` executes")
	check := flag.Bool("check", false, "fail if an operation executes more than it may")
	flag.Parse()
	for _, op := range operations {
		if op.name == *run {
			op.run(counted)
			return
		}
	}
	if err := report(*list, *check); err != nil {
		fmt.Fprintln(os.Stderr, "executed:", err)
		os.Exit(1)
	}
}

// report counts all operations and prints a line for each.
func report(list string, check bool) error {
	dir, err := os.MkdirTemp("", "executed")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "program")
	packages := strings.Join([]string{module, module + "/congestion", module + "/crypt", module + "/internal/..."}, ",")
	if _, err := output(nil, "go", "build", "-cover", "-covermode=atomic", "-coverpkg="+packages, "-o", program, module+"/internal/executed"); err != nil {
		return err
	}
	var above []string
	for _, op := range operations {
		counters := filepath.Join(dir, op.name)
		if err := os.Mkdir(counters, 0o755); err != nil {
			return err
		}
		if _, err := output([]string{"GOCOVERDIR=" + counters}, program, "-run", op.name); err != nil {
			return err
		}
		functions, err := executed(counters)
		if err != nil {
			return err
		}
		files := make(map[string]bool)
		for _, f := range functions {
			files[f.file] = true
			if op.name == list {
				fmt.Printf("  %-50s %s\n", f.file, f.name)
			}
		}
		fmt.Printf("%-48s files %3d (at most %3d)  functions %3d (at most %3d)\n", op.what, len(files), op.files, len(functions), op.functions)
		if op.name == list {
			fmt.Println(strings.Join(slices.Sorted(maps.Keys(files)), " "))
		}
		if len(files) > op.files || len(functions) > op.functions {
			above = append(above, op.name)
		}
	}
	if check && above != nil {
		return fmt.Errorf("more than there may be: %s", strings.Join(above, ", "))
	}
	return nil
}

// function is a function of the module.
type function struct{ file, name string }

// executed returns the functions with counters in dir that are not zero, but
// for those of this program.
func executed(dir string) ([]function, error) {
	profile := filepath.Join(dir, "profile")
	if _, err := output(nil, "go", "tool", "covdata", "textfmt", "-i="+dir, "-o="+profile); err != nil {
		return nil, err
	}
	text, err := output(nil, "go", "tool", "cover", "-func="+profile)
	if err != nil {
		return nil, err
	}
	var functions []function
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
	return functions, nil
}

// output runs a command with env added to the environment.
func output(env []string, name string, args ...string) ([]byte, error) {
	command := exec.Command(name, args...)
	command.Env = append(os.Environ(), env...)
	var errors bytes.Buffer
	command.Stderr = &errors
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, errors.Bytes())
	}
	return out, nil
}
