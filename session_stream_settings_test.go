package kcp

import (
	"bytes"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// modeWriter writes on a session, and changes its mode from time to time.
type modeWriter struct {
	c      *Conn
	random *rand.Rand
	mode   bool
	wrote  []modeItem
}

// modeItem is a message, or a run of bytes without boundaries.
type modeItem struct {
	message bool
	data    []byte
}

// step changes the mode, or writes something.
func (m *modeWriter) step(t *testing.T) {
	if m.random.IntN(4) == 0 {
		m.mode = !m.mode
		require.NoError(t, m.c.SetMessageMode(m.mode))
	}
	size := 1 + m.random.IntN(3000)
	if m.mode && m.random.IntN(4) == 0 {
		size = 0
	}
	p := content(m.random.Uint64(), size)
	last := len(m.wrote) - 1
	switch {
	case m.mode:
		require.NoError(t, m.c.WriteMessage(p))
		m.wrote = append(m.wrote, modeItem{true, p})
		return
	case last >= 0 && !m.wrote[last].message:
		m.wrote[last].data = append(m.wrote[last].data, p...)
	default:
		m.wrote = append(m.wrote, modeItem{false, p})
	}
	require.ErrorIs(t, m.c.WriteMessage(p), ErrNotMessageMode)
	_, err := m.c.Write(p)
	require.NoError(t, err)
}

// check holds what ReadMessage has returned against what was written: messages as
// they are, and runs of bytes in any parts.
func (m *modeWriter) check(t *testing.T, read [][]byte) {
	for i, item := range m.wrote {
		for rest := item.data; ; {
			require.NotEmpty(t, read, "before item %d", i)
			p := read[0]
			read = read[1:]
			if item.message {
				require.True(t, bytes.Equal(rest, p), "message %d: %d bytes, want %d", i, len(p), len(rest))
				break
			}
			require.True(t, bytes.HasPrefix(rest, p), "run %d", i)
			if rest = rest[len(p):]; len(rest) == 0 {
				break
			}
		}
	}
	require.Empty(t, read)
}

// readMessages reads c to its end.
func readMessages(t *testing.T, c *Conn) (read [][]byte) {
	buf := make([]byte, 1<<16)
	for {
		n, err := c.ReadMessage(buf)
		if err != nil {
			require.Equal(t, io.EOF, err)
			return read
		}
		read = append(read, bytes.Clone(buf[:n]))
	}
}

// The mode of the session changes while streams are open and busy. What the
// session sends keeps exactly the boundaries of its messages, and the streams are
// not concerned.
func TestSetMessageModeBesideStreams(t *testing.T) {
	for seed := range fewer(8) {
		inWorld(t, seed, lossy, func(w *world) {
			a, b, _ := w.pair(&Config{SendWindow: 2 + int(seed)*8}, nil)
			random := rand.New(rand.NewPCG(seed, 6))
			m := &modeWriter{c: a, random: random}
			bytesOf, readsBytes := streamPair(t, a, b, nil)
			messages, readsMessages := streamPair(t, a, b, &StreamOptions{Priority: 1})
			up := content(seed, 60000)
			var wg sync.WaitGroup
			wg.Go(func() { receive(t, readsBytes, up) })
			wg.Go(func() {
				buf := make([]byte, 10000)
				for i := range 60 {
					n, err := readsMessages.ReadMessage(buf)
					require.NoError(t, err)
					require.True(t, bytes.Equal(up[i:i*100], buf[:n]), "message %d", i)
				}
			})
			var read [][]byte
			wg.Go(func() { read = readMessages(t, b) })
			for i := range 60 {
				_, err := bytesOf.Write(up[i*1000 : (i+1)*1000])
				require.NoError(t, err)
				m.step(t)
				require.NoError(t, messages.WriteMessage(up[i:max(i, i*100)]))
				m.step(t)
				if random.IntN(4) == 0 {
					time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
				}
			}
			require.NoError(t, a.CloseWrite())
			wg.Wait()
			m.check(t, read)
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		})
	}
}
