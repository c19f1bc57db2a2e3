package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// resultsFile is the table that a folder of results has beside its charts.
const resultsFile = "README.md"

// writeResults writes charts and a Markdown table of a suite: the charts to a
// folder, the table to w.
func writeResults(w io.Writer, dir string, s *suite, p plan, results map[string]series) error {
	files, err := drawCharts(dir, s, p, results)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "## %s\n\n%s.\n%s\n\n", s.name, s.about, how(s, p))
	for i, row := range tableOf(s, p, results) {
		markdownRow(w, row)
		if i == 0 {
			markdownRow(w, slices.Repeat([]string{"---"}, len(row)))
		}
	}
	fmt.Fprintln(w)
	for _, f := range files {
		fmt.Fprintf(w, "![%s](%s)\n\n", strings.TrimSuffix(f, ".svg"), f)
	}
	return nil
}

// how says how the figures of a suite came about.
func how(s *suite, p plan) string {
	switch {
	case s.virtual:
		return "In virtual time, one round."
	case p.rounds == 1:
		return fmt.Sprintf("One round of %v.", p.duration)
	}
	return fmt.Sprintf("Medians of %d rounds of %v, ± half their range.", p.rounds, p.duration)
}

// better says whether a larger figure of a metric is the better one.
func better(metric string) string {
	switch metric {
	case metricGoodput, metricRate, metricSlowest, metricEchoes, metricShare, metricAlive:
		return "more"
	}
	return "less"
}

func markdownRow(w io.Writer, cells []string) {
	fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
}

// createResults makes the folder and begins its table.
func createResults(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(dir, resultsFile))
	if err != nil {
		return nil, err
	}
	fmt.Fprint(f, "# Results\n\nWritten by `make bench`. Only ratios of figures of one run mean anything.\n\n```\n")
	if err := writeHeader(f); err != nil {
		return nil, err
	}
	fmt.Fprint(f, "```\n\n")
	return f, nil
}

// writeGoals ends the table with the goals and what became of them.
func writeGoals(w io.Writer, lines string) {
	if lines != "" {
		fmt.Fprintf(w, "## Goals\n\nWhat is aimed at, reached or not.\n\n```\n%s```\n", lines)
	}
}
