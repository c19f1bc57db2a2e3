package lab

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/examples/upgrade/arena"
)

// Player is a session with a server. It talks from Chat to Hush.
type Player struct {
	t      *testing.T
	conn   *kcp.Conn
	name   string
	Server int // the process id of the server

	spoken int
	hush   chan struct{}
	wait   sync.WaitGroup
	err    error // of talking; read after wait
}

// Join dials a player, who must come to the process of that id.
func (s *Service) Join(name string, server int) *Player {
	s.t.Helper()
	c, err := kcp.Dial("udp", s.Addr, arena.Config())
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = c.Abort() })
	p := &Player{t: s.t, conn: c, name: name}
	require.NoError(s.t, c.WriteMessage([]byte(name)))
	welcome, err := p.read()
	require.NoError(s.t, err)
	p.Server, err = strconv.Atoi(strings.TrimPrefix(welcome, "welcome to "))
	require.NoError(s.t, err, welcome)
	require.Equal(s.t, server, p.Server)
	return p
}

func (p *Player) read() (string, error) {
	_ = p.conn.SetReadDeadline(time.Now().Add(limit))
	b := make([]byte, 2000)
	n, err := p.conn.ReadMessage(b)
	return string(b[:n]), err
}

// talk says something that was not said before, and checks that the server repeats it.
func (p *Player) talk() error {
	p.spoken++
	line := fmt.Sprintf("%d, %s", p.spoken, strings.Repeat(strconv.Itoa(p.spoken), 50))
	if err := p.conn.WriteMessage([]byte(line)); err != nil {
		return err
	}
	got, err := p.read()
	if err == nil && got != p.name+": "+line {
		err = fmt.Errorf("%q has come in place of %q", got, line)
	}
	return err
}

// Talks checks that the session goes on.
func (p *Player) Talks() {
	p.t.Helper()
	require.NoError(p.t, p.talk())
}

// Chat talks a hundred times a second, until Hush.
func (p *Player) Chat() {
	p.hush = make(chan struct{})
	p.wait.Go(func() {
		pace := time.NewTicker(10 * time.Millisecond)
		defer pace.Stop()
		for p.err == nil {
			select {
			case <-p.hush:
				return
			case <-pace.C:
				p.err = p.talk()
			}
		}
	})
}

// Hush ends Chat, and checks that every line was repeated.
func (p *Player) Hush() {
	p.t.Helper()
	close(p.hush)
	p.wait.Wait()
	require.NoError(p.t, p.err)
}

// Sees checks that the server shows n players, one of them where this one is.
func (p *Player) Sees(n int) {
	p.t.Helper()
	at := []byte{7, 0, byte(p.spoken), 1}
	end := time.Now().Add(limit)
	for {
		require.NoError(p.t, p.conn.SendDatagram(at))
		require.NoError(p.t, p.conn.SetReadDeadline(end))
		b, err := p.conn.ReceiveDatagram(p.t.Context())
		require.NoError(p.t, err)
		if len(b) == 6*n && strings.Contains(string(b), string(at)) {
			return
		}
		require.True(p.t, time.Now().Before(end), "the server shows %x", b)
	}
}

// Leaves ends the session.
func (p *Player) Leaves() {
	p.t.Helper()
	require.NoError(p.t, p.conn.Close())
}

// IsSentAway checks that the server ends the session in order.
func (p *Player) IsSentAway() {
	p.t.Helper()
	_, err := p.read()
	require.True(p.t, errors.Is(err, io.EOF), "%v", err)
}
