//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// result is what was measured of a tunnel at one loss. A figure is 0 if it is missing.
type result struct {
	one, ten   float64 // Mbit/s of downloads
	p50, p99   float64 // ms of a request of 1 KB beside one download
	cpu        float64 // s for each GB, of both ends, over both transfers
	idle, busy float64 // MB of both ends, with many connections
}

// serveTarget answers each 8 bytes with as many bytes as they say; 0: no end.
func serveTarget(l net.Listener) {
	data := make([]byte, 64<<10)
	rand.NewChaCha8([32]byte{}).Read(data) // which no tunnel can compress
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			var head [8]byte
			for {
				if _, err := io.ReadFull(conn, head[:]); err != nil {
					return
				}
				left := binary.BigEndian.Uint64(head[:])
				for endless := left == 0; endless || left > 0; {
					n := uint64(len(data))
					if !endless {
						n = min(n, left)
						left -= n
					}
					if _, err := conn.Write(data[:n]); err != nil {
						return
					}
				}
			}
		}()
	}
}

// measure runs a tunnel, and measures it.
func (l *lab) measure(ctx context.Context, p peer, each time.Duration) (r result, err error) {
	var target net.Listener
	if err = l.server.do(func() (err error) {
		target, err = net.Listen("tcp", targetAddr)
		return err
	}); err != nil {
		return r, err
	}
	defer target.Close()
	go serveTarget(target)
	stop, err := l.start(p)
	if err != nil {
		return r, err
	}
	defer stop()
	if err := l.ready(ctx); err != nil {
		return r, err
	}
	before := l.processor()
	one, latencies, err := l.download(ctx, 1, each)
	if err != nil {
		return r, fmt.Errorf("a download and requests: %w", err)
	}
	ten, _, err := l.download(ctx, 10, each)
	if err != nil {
		return r, fmt.Errorf("ten downloads: %w", err)
	}
	used := l.processor() - before
	r.one, r.ten = one.mbit, ten.mbit
	r.cpu = used.Seconds() / (float64(one.total+ten.total) / 1e9)
	slices.Sort(latencies)
	n := len(latencies)
	r.p50, r.p99 = 1e3*latencies[n/2].Seconds(), 1e3*latencies[n*99/100].Seconds()
	if r.idle, r.busy, err = l.hold(ctx); err != nil {
		err = fmt.Errorf("%d connections: %w", manyConn, err)
	}
	return r, err
}

// dial connects with the client's end of the tunnel.
func (l *lab) dial() (conn net.Conn, err error) {
	err = l.client.do(func() error {
		conn, err = net.Dial("tcp", localAddr)
		return err
	})
	return conn, err
}

// request asks for n bytes, and reads them; 0: asks only.
func request(conn net.Conn, n int) error {
	if _, err := conn.Write(binary.BigEndian.AppendUint64(nil, uint64(n))); err != nil || n == 0 {
		return err
	}
	_, err := io.CopyN(io.Discard, conn, int64(n))
	return err
}

// ready waits until the tunnel carries a request.
func (l *lab) ready(ctx context.Context) error {
	var last error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		conn, err := l.dial()
		if err == nil {
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			err = request(conn, 1024)
			_ = conn.Close()
		}
		if err == nil {
			return nil
		}
		last = err
	}
	return errors.Join(ctx.Err(), fmt.Errorf("the tunnel carries nothing: %w", last))
}

// transfer is what downloads have brought.
type transfer struct {
	mbit  float64 // while it was measured
	total int64   // bytes, of all of the time
}

// download runs n downloads, and beside them a request every 100 ms, or as soon as the one
// before is answered.
func (l *lab) download(ctx context.Context, n int, d time.Duration) (t transfer, latencies []time.Duration, err error) {
	var got atomic.Int64
	var reading sync.WaitGroup
	defer time.Sleep(500 * time.Millisecond) // what is underway passes
	defer reading.Wait()
	for range n {
		conn, err := l.dial()
		if err != nil {
			return t, nil, err
		}
		defer conn.Close()
		if err := request(conn, 0); err != nil {
			return t, nil, err
		}
		reading.Go(func() {
			buf := make([]byte, 64<<10)
			for {
				n, err := conn.Read(buf)
				got.Add(int64(n))
				if err != nil {
					return
				}
			}
		})
	}
	asking, err := l.dial()
	if err != nil {
		return t, nil, err
	}
	defer asking.Close()
	_ = asking.SetDeadline(time.Now().Add(d + time.Minute))
	time.Sleep(warmUp)
	begun, before := time.Now(), got.Load()
	for time.Since(begun) < d && ctx.Err() == nil {
		asked := time.Now()
		if err := request(asking, 1024); err != nil {
			return t, nil, err
		}
		latencies = append(latencies, time.Since(asked))
		time.Sleep(100*time.Millisecond - time.Since(asked))
	}
	t.total = got.Load()
	t.mbit = float64(t.total-before) * 8 / 1e6 / time.Since(begun).Seconds()
	return t, latencies, ctx.Err()
}

// hold opens connections, and returns what the tunnel holds while they are idle, and
// at most while all of them download for 5 s. In MB.
func (l *lab) hold(ctx context.Context) (idle, busy float64, err error) {
	var conns []net.Conn
	answered := make(chan error, manyConn)
	for range manyConn {
		conn, err := l.dial()
		if err != nil {
			return 0, 0, err
		}
		defer conn.Close()
		conns = append(conns, conn)
		_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
		go func() { answered <- request(conn, 1024) }()
	}
	for range manyConn {
		err = errors.Join(err, <-answered)
	}
	if err != nil {
		return 0, 0, err
	}
	time.Sleep(3 * time.Second)
	idle = l.memory()
	for _, conn := range conns {
		if err := request(conn, 0); err != nil {
			return 0, 0, err
		}
		go func() { _, _ = io.Copy(io.Discard, conn) }()
	}
	for range 10 {
		time.Sleep(500 * time.Millisecond)
		busy = max(busy, l.memory())
	}
	return idle, busy, ctx.Err()
}
