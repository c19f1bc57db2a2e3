package main

import (
	"context"
	"time"
)

// runTests runs the program's own tests with each implementation.
func (o *options) runTests(ctx context.Context, p *program, folders map[side]string) (results []result) {
	for _, s := range []side{ours, theirs} {
		ctx, cancel := context.WithTimeout(ctx, o.build)
		start := time.Now()
		err := goTool(ctx, folders[s], "test", "-mod=mod", "-count=3", "-timeout=5m", p.testOnly)
		cancel()
		results = append(results, result{program: p.name, name: "its tests, 3 times", pair: s.String(), path: "-", took: time.Since(start), err: err}.logged())
	}
	return results
}
