package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"regexp"
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
		s := newScreen(g)
		log := s.logger("json", false)
		record := strings.Repeat("x", 1000)
		for i := range 2000 {
			log.Info(record, "n", i)
		}
		require.True(t, s.log.busy())
		begun := time.Now()
		s.log.flush(flushTime)
		require.Equal(t, flushTime, time.Since(begun))
		close(g.open)
		s.log.flush(time.Hour)
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
		require.False(t, s.log.busy())
	})
}

// New clients are served, and a signal ends the program, while nobody reads its log.
func TestServesWhileNobodyReadsTheLog(t *testing.T) {
	at := echo(t)
	users := file(t, "users.json", `{"me:secret": [""]}`)
	read, write := io.Pipe()
	out := new(output)
	p := &program{stdin: strings.NewReader(""), stdout: out, stderr: write}
	ctx, cancel := context.WithCancel(context.Background())
	code := make(chan int, 1)
	go func() {
		code <- p.run(ctx, []string{"kcptunnel", "server", "-v", "-auth", users, "-key", file(t, "dir", "") + ".pem", "127.0.0.1:0"})
	}()
	lines := bufio.NewReader(read)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	server := regexp.MustCompile(`listening address=(\S+)`).FindStringSubmatch(line)[1]
	fingerprint := find(t, out, `fingerprint (SHA256:\S+)\n`)
	for range 3 {
		c := start(t, "client", "-fingerprint", fingerprint, "-auth", "me:secret", server, "0:"+at)
		says(t, find(t, c.err, `msg=listening .*address=(\S+)`))
	}
	cancel()
	require.Equal(t, exitOK, <-code)
	require.NoError(t, read.Close())
}
