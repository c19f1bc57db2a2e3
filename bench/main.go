// Command bench compares this module's KCP with other implementations of it
// and with other transports.
//
// All implementations of a suite are measured in one run of the program, in
// alternating order, and each figure is the median over several rounds. Only
// ratios of figures from one run mean anything; absolute figures depend on
// the machine and on what else it does.
//
//	go run . -suite core
//	go run . -suite core -json -rounds 5 -d 2s
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

func main() {
	if role := os.Getenv(roleVariable); role != "" {
		if err := runRole(role, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintf(os.Stderr, "bench, %s: %v\n", role, err)
		}
		os.Exit(2)
	}
	_ = os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true") // sockets of netsim have none
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
		os.Exit(2)
	}
}

// options are the command line.
type options struct {
	suites, cases, peers string
	json, check          bool
	duration             time.Duration
	rounds               int
	out                  string
	seed                 uint64
	recordings           string
}

// run is the program without its process.
func run(args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if err := addRecordings(o.recordings); err != nil {
		return err
	}
	selected, err := selectSuites(o.suites)
	if err != nil {
		return err
	}
	streamsSeed = o.seed
	if !o.json {
		if err := writeHeader(stdout); err != nil {
			return err
		}
	}
	var table io.Writer
	if o.out != "" {
		f, err := createResults(o.out)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		table = f
	}
	missed := 0
	for _, s := range selected {
		results, err := runSuite(stdout, table, s, o)
		if err != nil {
			return err
		}
		if o.check {
			missed += check(stderr, s, results)
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d goals missed", missed)
	}
	return nil
}

// parse reads the command line.
func parse(args []string, stderr io.Writer) (*options, error) {
	o := new(options)
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.suites, "suite", "all", "suites to run, comma-separated, or all: "+strings.Join(suiteNames(), ", "))
	f.StringVar(&o.cases, "cases", "", "cases to run, comma-separated; empty means all of the suite")
	f.StringVar(&o.peers, "peers", "", "implementations to run, comma-separated; empty means all of the suite")
	f.BoolVar(&o.json, "json", false, "print one JSON object per figure instead of a table")
	f.BoolVar(&o.check, "check", false, "compare with the goals of the suite, on standard error; one that is missed makes the exit status 2")
	f.DurationVar(&o.duration, "d", 0, "duration of one measurement; 0 means the suite's default")
	f.IntVar(&o.rounds, "rounds", 3, "measurements of each figure, of which the median is printed; one in virtual time")
	f.StringVar(&o.out, "out", "", "also write a table in Markdown to this folder")
	f.Uint64Var(&o.seed, "seed", streamsSeed, "seed of the losses in streams")
	f.StringVar(&o.recordings, "recordings", "", "files of recorded links for the suite paths, comma-separated: how many packets of 1500 bytes could leave in each 20 ms")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.rounds < 1 || o.duration < 0 {
		return nil, errors.New("-rounds must be positive, and -d not negative")
	}
	return o, nil
}

// runSuite measures s and prints the result, in Markdown too where table is not
// nil.
func runSuite(w, table io.Writer, s *suite, o *options) (results map[string]series, err error) {
	p := plan{duration: cmp.Or(o.duration, s.duration, defaultDuration), rounds: o.rounds}
	if s.virtual {
		p.rounds = 1
	}
	if p.cases, err = restrict(s.cases, o.cases, "case"); err != nil {
		return nil, err
	}
	if p.impls, err = restrict(s.impls, o.peers, "implementation"); err != nil {
		return nil, err
	}
	if results, err = s.run(p); err != nil {
		return nil, err
	}
	if table != nil {
		writeResults(table, s, p, results)
	}
	if o.json {
		err = writeJSON(w, s, p, results)
	} else {
		err = writeTable(w, s, p, results)
	}
	return results, err
}
