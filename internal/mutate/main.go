// Program mutate changes the code that RULES.md names, one place at a time, and
// reports which changes the tests of the same row do not notice: constants doubled
// and halved, and checks that return early taken out. It runs in the root of the
// repository:
//
//	go run ./internal/mutate [-rule regexp] [-place regexp] [-what regexp] [-list] [-jobs n]
//
// A change of a tuning value that no rule promises may survive; tuning.txt lists
// those, with the reason. Any other survivor makes the exit status 1.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
)

func main() {
	rule := flag.String("rule", "", "only rules whose text matches this `regexp`")
	place := flag.String("place", "", "only places that match this `regexp`, such as retransmit.go:resendFirst")
	what := flag.String("what", "", "only changes that match this `regexp`: doubled, halved, check removed")
	list := flag.Bool("list", false, "list the changes, and run nothing")
	jobs := flag.Int("jobs", 2, "changes that are tested at the same time")
	flag.Parse()
	ok, err := run(*rule, *place, *what, *list, *jobs)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// run tests all changes, and reports whether each is noticed or is in tuning.txt.
func run(rule, place, what string, list bool, jobs int) (ok bool, err error) {
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
	tests, err := findTests(".")
	if err != nil {
		return false, err
	}
	changes, err := changesOf(rules)
	if err != nil {
		return false, err
	}
	changes = filter(changes, places, whats)
	if list {
		for _, c := range changes {
			fmt.Println(c)
		}
		return true, nil
	}
	return testAll(changes, tests, reasons, jobs), nil
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
func testAll(changes []change, tests map[string][]string, reasons map[string]string, jobs int) bool {
	queue, results := make(chan change), make(chan result)
	var workers sync.WaitGroup
	for range max(jobs, 1) {
		workers.Go(func() {
			for c := range queue {
				results <- c.test(tests)
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
		if why := reasons[r.place()]; r.outcome == survived && why != "" {
			r.outcome, r.note = tuning, why
		}
		sum[r.outcome]++
		fmt.Printf("%d/%d %-9s %s %s\n", done, len(changes), r.outcome, r.change, r.note)
	}
	noticed, all := sum[caught], sum[caught]+sum[survived]+sum[tuning]
	fmt.Printf("caught %d of %d; survived %d, as tuning values %d; no change of the program %d\n",
		noticed, all, sum[survived], sum[tuning], sum[invalid])
	return sum[survived] == 0
}

// readReasons reads lines of a place and a reason.
func readReasons(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	reasons := make(map[string]string)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if at, why, ok := strings.Cut(strings.TrimSpace(lines.Text()), " "); ok && !strings.HasPrefix(at, "#") {
			reasons[at] = strings.TrimSpace(why)
		}
	}
	return reasons, nil
}
