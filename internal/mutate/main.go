// Program mutate changes the code that RULES.md names, one place at a time, and
// reports which changes the tests of the same row do not notice: constants doubled
// and halved, each use of a figure four times as large and a fourth, and checks that
// return early taken out. It runs in the root of the repository:
//
//	go run ./internal/mutate [-rule regexp] [-place regexp] [-what regexp] [-operands]
//		[-sample n] [-list] [-jobs n]
//
// With -operands each operand of && and || is taken out, too. Many of those only save
// work, and tuning.txt does not list them: it is for samples, which are read.
//
// TestRuleFigures of the package of a constant, which compares it with what RULES.md
// says, belongs to every rule. The output names the test that has noticed a change.
//
// A change of a tuning value that no rule promises may survive, and so may the
// removal of a check that only saves work. tuning.txt lists those, with the reason.
// uses.txt lists uses that no test of their rules holds yet. Any other survivor makes the
// exit status 1.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"sync"
)

func main() {
	rule := flag.String("rule", "", "only rules whose text matches this `regexp`")
	place := flag.String("place", "", "only places that match this `regexp`, such as retransmit.go:resendFirst")
	what := flag.String("what", "", "only changes that match this `regexp`: doubled, halved, use of, check removed")
	operands := flag.Bool("operands", false, "take operands out of conditions, too")
	sample := flag.Int("sample", 0, "only so many of the changes, at random; 0: all")
	list := flag.Bool("list", false, "list the changes, and run nothing")
	jobs := flag.Int("jobs", 2, "changes that are tested at the same time")
	flag.Parse()
	ok, err := run(&analysis{operands: *operands}, *rule, *place, *what, *sample, *list, *jobs)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// run tests all changes, and reports whether each is noticed or is in tuning.txt.
func run(a *analysis, rule, place, what string, sample int, list bool, jobs int) (ok bool, err error) {
	rules, err := readRules("RULES.md", rule)
	if err != nil {
		return false, err
	}
	places, err := regexp.Compile(place)
	if err != nil {
		return false, err
	}
	whats, err := regexp.Compile(what)
	if err != nil {
		return false, err
	}
	reasons, err := readReasons("internal/mutate/tuning.txt")
	if err != nil {
		return false, err
	}
	more, err := readReasons("internal/mutate/uses.txt")
	if err != nil {
		return false, err
	}
	for _, r := range more {
		r.outcome = unheld
		reasons = append(reasons, r)
	}
	tests, err := findTests(".")
	if err != nil {
		return false, err
	}
	changes, err := a.changesOf(rules)
	if err != nil {
		return false, err
	}
	changes = filter(changes, places, whats)
	if sample > 0 {
		rand.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
		changes = changes[:min(sample, len(changes))]
	}
	if list {
		for _, c := range changes {
			fmt.Println(c)
		}
		return true, nil
	}
	b, err := buildChecks(changes, tests)
	if b != nil {
		defer os.RemoveAll(b.folder)
	}
	if err != nil {
		return false, err
	}
	return testAll(changes, tests, b, reasons, jobs), nil
}

// filter returns the changes that match.
func filter(changes []change, places, whats *regexp.Regexp) (some []change) {
	for _, c := range changes {
		if places.MatchString(c.place()) && whats.MatchString(c.what) {
			some = append(some, c)
		}
	}
	return some
}

// testAll tests the changes, prints a line for each, and the sum.
func testAll(changes []change, tests map[string][]string, b *checks, reasons []reason, jobs int) bool {
	queue, results := make(chan change), make(chan result)
	var workers sync.WaitGroup
	for range max(jobs, 1) {
		workers.Go(func() {
			for c := range queue {
				if c.isConstant() {
					results <- c.test(tests)
				} else {
					results <- b.test(c, tests)
				}
			}
		})
	}
	go func() {
		for _, c := range changes {
			queue <- c
		}
		close(queue)
		workers.Wait()
		close(results)
	}()
	sum := make(map[string]int)
	done := 0
	for r := range results {
		done++
		if why := reasonOf(reasons, r.change); r.outcome == survived && why.why != "" {
			r.outcome, r.note = why.outcome, why.why
		}
		sum[r.outcome]++
		fmt.Printf("%d/%d %-9s %s %s\n", done, len(changes), r.outcome, r.change, r.note)
	}
	noticed, all := sum[caught], sum[caught]+sum[survived]+sum[tuning]+sum[unheld]
	fmt.Printf("caught %d of %d; survived %d, as tuning values %d, as uses that nothing holds %d; no change of the program %d\n",
		noticed, all, sum[survived], sum[tuning], sum[unheld], sum[invalid])
	return sum[survived] == 0
}

// reason says why some changes of a place may survive.
type reason struct {
	place, text, why string // text is the condition of the check, or the constant that is used; empty: its value
	outcome          string
}

// reasonOf returns why a change may survive; nothing if no line of tuning.txt and
// uses.txt is about it.
func reasonOf(reasons []reason, c change) (none reason) {
	for _, r := range reasons {
		if r.place == c.place() && r.text == strings.Join(strings.Fields(c.text), " ") && c.kind != operand {
			return r
		}
	}
	return none
}

// readReasons reads lines of a place, between backquotes the condition that is
// removed if it is not a constant that changes, and the reason.
func readReasons(path string) (reasons []reason, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		at, why, ok := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if !ok || strings.HasPrefix(at, "#") {
			continue
		}
		r := reason{place: at, why: strings.TrimSpace(why), outcome: tuning}
		if rest, ok := strings.CutPrefix(r.why, "`"); ok {
			if r.text, r.why, ok = strings.Cut(rest, "`"); !ok {
				return nil, fmt.Errorf("%s: %s has no end of the condition", path, at)
			}
		}
		if r.why = strings.TrimSpace(r.why); r.why == "" {
			return nil, fmt.Errorf("%s: %s has no reason", path, at)
		}
		reasons = append(reasons, r)
	}
	return reasons, lines.Err()
}
