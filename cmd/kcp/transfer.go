package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
)

// direction is one of the two transfers of a demo.
type direction struct {
	name     string
	source   io.ReadCloser
	size     int64
	from, to *kcp.Conn

	arrived     atomic.Int64  // bytes
	took        time.Duration // until the last byte had arrived
	sentSum     []byte
	receivedSum []byte

	// At the end.
	sender, receiver kcp.ConnStats
	relayed          netsim.LinkStats
}

// percent returns how much has arrived.
func (dir *direction) percent() string {
	return fmt.Sprintf("%d%%", 100*dir.arrived.Load()/max(dir.size, 1))
}

// overlooked returns how many packets neither the relay nor the receiver has
// seen, though they were sent: those that the system had no room for.
func (dir *direction) overlooked() int64 {
	before := int64(dir.sender.PacketsSent) - dir.relayed.Sent.Packets
	behind := dir.relayed.Delivered.Packets - int64(dir.receiver.PacketsReceived)
	return max(before, 0) + max(behind, 0)
}

// intact reports whether what arrived is what was sent.
func (dir *direction) intact() bool {
	return len(dir.sentSum) > 0 && bytes.Equal(dir.sentSum, dir.receivedSum)
}

// open gives each direction its source.
func (d *demo) open(directions ...*direction) error {
	for i, dir := range directions {
		if d.file == "" {
			dir.source = io.NopCloser(randomData(d.seed, i))
		} else {
			f, size, err := openFile(d.file)
			if err != nil {
				return err
			}
			dir.source, d.size = f, size
		}
		dir.size = d.size
	}
	return nil
}

// randomData returns endless data that is another for each seed and index.
func randomData(seed uint64, index int) io.Reader {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	key[8] = byte(index)
	return rand.NewChaCha8(key)
}

func openFile(path string) (*os.File, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file", path)
	case info.Size() == 0:
		err = fmt.Errorf("%s is empty", path)
	default:
		return f, info.Size(), nil
	}
	f.Close()
	return nil, 0, err
}

// transfer moves both directions through a relay, and shows the progress.
func (d *demo) transfer(ctx context.Context, cfg *kcp.Config, up, down *direction) error {
	l, err := kcp.Listen("udp", "127.0.0.1:0", cfg)
	if err != nil {
		return err
	}
	defer l.Close()
	relay, err := netsim.NewRelay(l.Addr().String(), d.link, d.link, d.seed)
	if err != nil {
		return err
	}
	defer relay.Close()
	dialed, err := kcp.Dial("udp", relay.Addr().String(), cfg)
	if err != nil {
		return err
	}

	work, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	start := time.Now()
	var running sync.WaitGroup
	attempt := func(step func() error) {
		running.Go(func() {
			if err := step(); err != nil {
				fail(err)
			}
		})
	}
	// A session begins at the listener with the first data from the dialler.
	up.from, down.to = dialed, dialed
	attempt(up.send)
	accepted, err := l.AcceptKCP(work)
	if err == nil {
		up.to, down.from = accepted, accepted
		attempt(down.send)
		attempt(func() error { return up.receive(start, d.tamper) })
		attempt(func() error { return down.receive(start, d.tamper) })
	} else {
		fail(err)
	}
	stopWatching := context.AfterFunc(work, func() { abort(dialed, accepted) })
	status := newStatus(d.std.out, up, down)
	if accepted != nil {
		status.run()
	}
	running.Wait()
	stopWatching()
	status.stop(work.Err() == nil)

	if work.Err() != nil {
		drop(l, dialed)
		return context.Cause(work)
	}
	err = closeBoth(dialed, accepted)
	for _, dir := range []*direction{up, down} {
		dir.sender, dir.receiver = dir.from.Stats(), dir.to.Stats()
	}
	up.relayed, down.relayed = relay.Stats()
	return err
}

// abort makes the calls in progress on sessions fail.
func abort(conns ...*kcp.Conn) {
	for _, c := range conns {
		if c != nil {
			_ = c.SetDeadline(time.Unix(1, 0)) // fails only where nothing is in progress
		}
	}
}

// drop ends both sessions without waiting for what is undelivered.
func drop(l *kcp.Listener, dialed *kcp.Conn) {
	_ = l.Endpoint().Close()
	// This would linger, for acknowledgements that do not come any more.
	go dialed.Close()
}

// closeBoth closes both ends. They do it at once, as each may have to answer
// repetitions of the other.
func closeBoth(a, b *kcp.Conn) error {
	done := make(chan error)
	go func() { done <- a.Close() }()
	err := b.Close()
	return errors.Join(err, <-done)
}

// send writes the source to the session.
func (dir *direction) send() error {
	sum := sha256.New()
	n, err := io.CopyBuffer(io.MultiWriter(dir.from, sum), io.LimitReader(dir.source, dir.size), make([]byte, 64<<10))
	if err != nil {
		return fmt.Errorf("%s: after %d bytes: %w", dir.name, n, err)
	}
	if n < dir.size {
		return fmt.Errorf("%s: the file has shrunk from %d to %d bytes", dir.name, dir.size, n)
	}
	dir.sentSum = sum.Sum(nil)
	return nil
}

// receive reads all of the data from the session.
func (dir *direction) receive(start time.Time, tamper func(string, []byte)) error {
	sink := &hashSink{direction: dir, sum: sha256.New(), tamper: tamper}
	n, err := io.CopyBuffer(sink, io.LimitReader(dir.to, dir.size), make([]byte, 64<<10))
	if err != nil {
		return fmt.Errorf("%s: after %d bytes: %w", dir.name, n, err)
	}
	dir.took = time.Since(start)
	dir.receivedSum = sink.sum.Sum(nil)
	return nil
}

// hashSink takes what has arrived.
type hashSink struct {
	direction *direction
	sum       hash.Hash
	tamper    func(direction string, data []byte)
}

func (s *hashSink) Write(p []byte) (int, error) {
	if s.tamper != nil {
		s.tamper(s.direction.name, p)
	}
	s.direction.arrived.Add(int64(len(p)))
	return s.sum.Write(p)
}
