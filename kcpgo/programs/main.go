// Command programs builds programs that nobody wrote for this module, each once
// with kcp-go and once with package kcpgo in its place, as their users would,
// and sends data through them: both ends with ours, one with ours and one with
// kcp-go, each way round.
//
//	go run ./programs                       glider and frp
//	go run ./programs -programs all         gost, rpcx and snowflake besides
//	go run ./programs -cases 'aes' -v       some cases, with what the programs say
//
// It downloads the programs and what they import by exact versions through the
// Go module proxy, and builds them in a temporary directory. They talk over
// 127.0.0.1 alone. It is run from the folder kcpgo of a checkout.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"
)

// options are the options of the command line.
type options struct {
	programs string         // names with commas, or "all"
	cases    *regexp.Regexp // of the names of cases
	size     int            // bytes each way
	limit    time.Duration  // of a case
	build    time.Duration  // of a build
	relay    bool           // run everything through the relay too
	verbose  bool
	module   string // the folder kcpgo
	temp     string // where everything is built
}

func main() {
	var o options
	var cases string
	var megabytes int
	flag.StringVar(&o.programs, "programs", "glider,frp", "names with commas, or all")
	flag.StringVar(&cases, "cases", "", "run the cases that this expression matches")
	flag.IntVar(&megabytes, "size", 20, "megabytes each way")
	flag.DurationVar(&o.limit, "limit", 2*time.Minute, "time limit of a case")
	flag.DurationVar(&o.build, "build", 15*time.Minute, "time limit of a build")
	flag.BoolVar(&o.relay, "relay", true, "also through a relay that loses 3 % and takes 10 ms")
	flag.BoolVar(&o.verbose, "v", false, "show what programs print")
	flag.Parse()
	o.size = megabytes * 1_000_000
	if err := o.run(cases); err != nil {
		fmt.Fprintln(os.Stderr, "programs:", err)
		os.Exit(1)
	}
}

// errFailed means that the table has said it all.
var errFailed = errors.New("some cases failed")

// run runs all programs and prints the table.
func (o *options) run(cases string) (err error) {
	if o.cases, err = regexp.Compile(cases); err != nil {
		return err
	}
	if o.module, err = os.Getwd(); err != nil {
		return err
	}
	if o.temp, err = os.MkdirTemp("", "kcpgo-programs-"); err != nil {
		return err
	}
	defer os.RemoveAll(o.temp)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	var results []result
	for _, p := range programs() {
		if o.programs != "all" && !strings.Contains(","+o.programs+",", ","+p.name+",") {
			continue
		}
		results = append(results, o.runProgram(ctx, p)...)
	}
	return report(results)
}

// result is the outcome of one case.
type result struct {
	program, name, pair, path string
	took                      time.Duration
	err                       error
}

func (r result) String() string {
	if r.err != nil {
		return "FAILED: " + strings.SplitN(r.err.Error(), "\n", 2)[0]
	}
	return "ok"
}

// report prints the table.
func report(results []result) error {
	fmt.Println()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "program\tcase\tclient-server\tpath\tseconds\tresult")
	failed := 0
	for _, r := range results {
		if r.err != nil {
			failed++
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.1f\t%s\n", r.program, r.name, r.pair, r.path, r.took.Seconds(), r)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Printf("%d of %d cases passed\n", len(results)-failed, len(results))
	if failed > 0 || len(results) == 0 {
		return errFailed
	}
	return nil
}

// progress prints a line with the time.
func progress(format string, args ...any) {
	fmt.Printf("%s "+format+"\n", append([]any{time.Now().Format("15:04:05")}, args...)...)
}
