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

// result is what was measured of a tunnel at one loss.
type result struct {
	Tunnel string  `json:"tunnel"`
	Loss   float64 `json:"loss_percent"`
	One    float64 `json:"one_download_mbit"`
	Ten    float64 `json:"ten_downloads_mbit"`
	P50    float64 `json:"request_p50_ms"` // 1 KB beside one download
	P99    float64 `json:"request_p99_ms"`
	CPU    float64 `json:"processor_s_per_gb"` // of both ends, over both transfers
	Idle   float64 `json:"idle_mb"`            // of both ends, with that many connections
	Busy   float64 `json:"busy_mb"`
	Failed string  `json:"failed,omitempty"` // why figures are missing, which are 0 then
}

// serveTarget answers each 8 bytes with as many bytes as they say; 0: no end.
func serveTarget(l net.Listener) {
	data := make([]byte, 64<<10)
	rand.NewChaCha8([32]byte{}).Read(data)
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
func (l *lab) measure(ctx context.Context, p peer, o *options) (r result, err error) {
	var target net.Listener
	err = l.server.do(func() error {
		target, err = net.Listen("tcp", targetAddr)
		return err
	})
	if err != nil {
		return r, err
	}
	defer target.Close()
	go serveTarget(target)
	t, err := l.start(p)
	if err != nil {
		return r, err
	}
	defer t.stop()
	if err := l.ready(ctx); err != nil {
		return r, err
	}
	before := t.processor()
	one, latencies, err := l.download(ctx, 1, true, o)
	if err != nil {
		return r, fmt.Errorf("a download and requests: %w", err)
	}
	ten, _, err := l.download(ctx, 10, false, o)
	if err != nil {
		return r, fmt.Errorf("ten downloads: %w", err)
	}
	used := t.processor() - before
	r.One, r.Ten = one.mbit, ten.mbit
	r.CPU = used.Seconds() / (float64(one.total+ten.total) / 1e9)
	slices.Sort(latencies)
	if n := len(latencies); n > 0 {
		r.P50, r.P99 = milliseconds(latencies[n/2]), milliseconds(latencies[min(n-1, n*99/100)])
	}
	if o.conns > 0 {
		if r.Idle, r.Busy, err = l.hold(ctx, t, o.conns); err != nil {
			r.Failed = fmt.Sprintf("%d connections: %v", o.conns, err)
		}
	}
	return r, ctx.Err()
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

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

// download runs n downloads, and beside them a request every 100 ms.
func (l *lab) download(ctx context.Context, n int, requests bool, o *options) (t transfer, latencies []time.Duration, err error) {
	var got atomic.Int64
	var conns []net.Conn
	var reading sync.WaitGroup
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
		reading.Wait()
		time.Sleep(500 * time.Millisecond) // what is underway passes
	}()
	for range n {
		conn, err := l.dial()
		if err != nil {
			return t, nil, err
		}
		conns = append(conns, conn)
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
	if err := sleep(ctx, o.warm); err != nil {
		return t, nil, err
	}
	begun, before := time.Now(), got.Load()
	if requests {
		latencies, err = l.requests(ctx, o.time)
	} else {
		err = sleep(ctx, o.time)
	}
	if err != nil {
		return t, nil, err
	}
	t.total = got.Load()
	t.mbit = float64(t.total-before) * 8 / 1e6 / time.Since(begun).Seconds()
	return t, latencies, nil
}

// sleep waits.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// requests asks for 1 KB every 100 ms, or as soon as the one before is answered.
func (l *lab) requests(ctx context.Context, d time.Duration) (all []time.Duration, err error) {
	conn, err := l.dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(d + time.Minute))
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); {
		begun := time.Now()
		if err := request(conn, 1024); err != nil {
			return nil, err
		}
		all = append(all, time.Since(begun))
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
	return all, nil
}

// hold opens connections, and returns what the tunnel holds while they are idle, and
// at most while all of them download for 5 s. In MB.
func (l *lab) hold(ctx context.Context, t *running, n int) (idle, busy float64, err error) {
	var conns []net.Conn
	var reading sync.WaitGroup
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
		reading.Wait()
	}()
	failed := make(chan error, n)
	for range n {
		conn, err := l.dial()
		if err != nil {
			return 0, 0, err
		}
		conns = append(conns, conn)
		_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
		reading.Go(func() { failed <- request(conn, 1024) })
	}
	for range n {
		if err := <-failed; err != nil {
			return 0, 0, fmt.Errorf("one of %d connections: %w", n, err)
		}
	}
	if err := sleep(ctx, 3*time.Second); err != nil {
		return 0, 0, err
	}
	idle = float64(t.memory()) / 1e6
	for _, conn := range conns {
		if err := request(conn, 0); err != nil {
			return 0, 0, err
		}
		reading.Go(func() { _, _ = io.Copy(io.Discard, conn) })
	}
	for range 10 {
		if err := sleep(ctx, 500*time.Millisecond); err != nil {
			return 0, 0, err
		}
		busy = max(busy, float64(t.memory())/1e6)
	}
	return idle, busy, nil
}
