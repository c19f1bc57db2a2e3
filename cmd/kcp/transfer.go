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

	arrived     atomic.Int64  // bytes received
	finished    atomic.Int64  // took, in nanoseconds, once all has arrived; 0: not yet
	took        time.Duration // until the last byte was received
	sentSum     []byte
	receivedSum []byte

	// Set at the end.
	sender, receiver kcp.ConnStats
	relayed          netsim.LinkStats
}

// percent returns the share of bytes received.
func (dir *direction) percent() string {
	return fmt.Sprintf("%d%%", 100*dir.arrived.Load()/max(dir.size, 1))
}

// overlooked returns how many packets were sent but not seen by the relay or
// the receiver: those that the system dropped, because socket buffers were
// full.
func (dir *direction) overlooked() int64 {
	before := int64(dir.sender.PacketsSent) - dir.relayed.Sent.Packets
	behind := dir.relayed.Delivered.Packets - int64(dir.receiver.PacketsReceived)
	return max(before, 0) + max(behind, 0)
}

// intact reports whether the received data equals the sent data.
func (dir *direction) intact() bool {
	return len(dir.sentSum) > 0 && bytes.Equal(dir.sentSum, dir.receivedSum)
}

// open sets the source of each direction.
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

// randomData returns an endless stream that differs for each seed and index.
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
	dialed, accepted, err := connect(ctx, l, relay.Addr().String(), cfg)
	if err != nil {
		return err
	}

	d.debug.show("dial", dialed.Endpoint())
	d.debug.show("listen", accepted.Endpoint())

	work, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	start := time.Now()
	up.from, up.to, down.from, down.to = dialed, accepted, accepted, dialed
	var running sync.WaitGroup
	for _, dir := range []*direction{up, down} {
		for _, step := range []func() error{
			dir.send,
			func() error { return dir.receive(start, d.tamper) },
		} {
			running.Go(func() {
				if err := step(); err != nil {
					fail(err)
				}
			})
		}
	}
	stopWatching := context.AfterFunc(work, func() {
		_ = dialed.Abort() // fails only if the session has ended
		_ = accepted.Abort()
	})
	status := newStatus(d.std.out, up, down)
	status.failed = fail
	if d.lines.on {
		status.redraw = false
		status.object = func(o jsonDemo) error {
			o.Seed = d.seed
			return d.lines.print(o)
		}
	}
	status.run()
	running.Wait()
	stopWatching()
	status.stop(work.Err() == nil)
	if work.Err() != nil {
		return context.Cause(work)
	}
	err = closeBoth(dialed, accepted)
	for _, dir := range []*direction{up, down} {
		dir.sender, dir.receiver = dir.from.Stats(), dir.to.Stats()
	}
	up.relayed, down.relayed = relay.Stats()
	return err
}

// connect opens a session. ctx bounds how long that takes, and so does the
// PeerTimeout of cfg.
func connect(ctx context.Context, l *kcp.Listener, addr string, cfg *kcp.Config) (dialed, accepted *kcp.Conn, err error) {
	patient := *cfg
	switch {
	case cfg.PeerTimeout < 0:
		patient.DialTimeout = forEver
	case cfg.PeerTimeout > 0:
		patient.DialTimeout = cfg.PeerTimeout
	default:
		patient.DialTimeout = defaultPatience
	}
	d := kcp.Dialer{Config: &patient}
	conn, err := d.DialContext(ctx, "udp", addr)
	if err == nil {
		dialed = conn.(*kcp.Conn)
		if accepted, err = l.AcceptKCP(ctx); err == nil {
			return dialed, accepted, nil
		}
		_ = dialed.Abort()
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return nil, nil, err
}

// closeBoth closes both ends at the same time, since each waits for the other's
// answer.
func closeBoth(a, b *kcp.Conn) error {
	done := make(chan error)
	go func() { done <- a.Close() }()
	err := b.Close()
	return errors.Join(err, <-done)
}

// send copies the source to the session.
func (dir *direction) send() error {
	sum := sha256.New()
	n, err := io.CopyBuffer(io.MultiWriter(dir.from, sum), io.LimitReader(dir.source, dir.size), make([]byte, 64<<10))
	if err != nil {
		return fmt.Errorf("%s: after %s: %w", dir.name, plural(n, "byte"), err)
	}
	if n < dir.size {
		return fmt.Errorf("%s: the file has shrunk from %d to %s", dir.name, dir.size, plural(n, "byte"))
	}
	dir.sentSum = sum.Sum(nil)
	return dir.from.CloseWrite()
}

// receive reads the session to its end.
func (dir *direction) receive(start time.Time, tamper func(string, []byte)) error {
	sink := &hashSink{direction: dir, start: start, sum: sha256.New(), tamper: tamper}
	n, err := io.CopyBuffer(sink, dir.to, make([]byte, 64<<10))
	if err != nil {
		return fmt.Errorf("%s: after %s: %w", dir.name, plural(n, "byte"), err)
	}
	dir.receivedSum = sink.sum.Sum(nil)
	dir.finished.Store(int64(max(dir.took, 1)))
	return nil
}

// hashSink counts and hashes received data.
type hashSink struct {
	direction *direction
	start     time.Time
	sum       hash.Hash
	tamper    func(direction string, data []byte)
}

func (s *hashSink) Write(p []byte) (int, error) {
	if s.tamper != nil {
		s.tamper(s.direction.name, p)
	}
	s.direction.arrived.Add(int64(len(p)))
	s.direction.took = time.Since(s.start)
	return s.sum.Write(p)
}
