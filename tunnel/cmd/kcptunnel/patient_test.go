package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// gate is a writer that waits until it is opened.
type gate struct {
	open chan struct{}
	b    bytes.Buffer
}

func (g *gate) Write(b []byte) (int, error) {
	<-g.open
	return g.b.Write(b)
}

// A log that nobody reads is kept as far as there is room, and nothing waits for it. What
// is left out is said.
func TestLogThatNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		p := patient(g)
		log := p.logger("json", false)
		record := strings.Repeat("x", 1000)
		for i := range 2000 {
			log.Info(record, "n", i)
		}
		begun := time.Now()
		p.flush(flushTime)
		require.Equal(t, flushTime, time.Since(begun))
		close(g.open)
		p.flush(time.Hour)
		require.Equal(t, flushTime, time.Since(begun))
		lines := strings.Split(strings.TrimSpace(g.b.String()), "\n")
		for i, line := range lines[:len(lines)-1] {
			require.Contains(t, line, fmt.Sprintf(`"n":%d}`, i))
		}
		require.Greater(t, len(lines), 500)
		require.Contains(t, lines[len(lines)-1], fmt.Sprintf(`"records":%d}`, 2000-(len(lines)-1)))
		require.Contains(t, lines[len(lines)-1], `"level":"WARN"`)
		log.Info("again")
		synctest.Wait()
		require.Contains(t, g.b.String(), `"msg":"again"`)
	})
}
