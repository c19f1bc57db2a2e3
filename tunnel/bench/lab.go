//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/arqnet/kcp/netsim"
	"golang.org/x/sys/unix"
)

// lab is two hosts with a link between them.
type lab struct {
	dir            string // for programs and keys
	client, server *host
	up, down       *wire
}

// host is a network namespace with a TUN device.
type host struct {
	name, ip string
	tun      *os.File
}

// newLab makes the hosts and the link.
func newLab(o *options) (l *lab, err error) {
	l = new(lab)
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.dir, err = os.MkdirTemp("", "tunnel-bench"); err != nil {
		return l, err
	}
	id := os.Getpid()
	if l.client, err = newHost(fmt.Sprintf("kcpbench-c%d", id), "10.99.0.1", o.control); err != nil {
		return l, err
	}
	if l.server, err = newHost(fmt.Sprintf("kcpbench-s%d", id), "10.99.0.2", o.control); err != nil {
		return l, err
	}
	bytes := int64(o.rate) * 1e6 / 8
	cfg := netsim.LinkConfig{Delay: o.rtt / 2, Rate: bytes, Queue: int(float64(bytes) * o.rtt.Seconds())}
	l.up = join(l.client.tun, l.server.tun, cfg, 1)
	l.down = join(l.server.tun, l.client.tun, cfg, 2)
	return l, nil
}

// close removes what newLab has made.
func (l *lab) close() {
	for _, h := range []*host{l.client, l.server} {
		if h != nil {
			if h.tun != nil {
				_ = h.tun.Close()
			}
			_ = exec.Command("ip", "netns", "del", h.name).Run()
		}
	}
	if l.dir != "" {
		_ = os.RemoveAll(l.dir)
	}
}

// setLoss sets the loss of both directions.
func (l *lab) setLoss(loss float64) {
	l.up.setLoss(loss)
	l.down.setLoss(loss)
}

// newHost makes a network namespace.
func newHost(name, ip, control string) (*host, error) {
	h := &host{name: name, ip: ip}
	if err := command("ip", "netns", "add", name); err != nil {
		return nil, err
	}
	err := h.do(func() (err error) {
		h.tun, err = openTUN("link0")
		return err
	})
	if err != nil {
		return h, err
	}
	for _, args := range [][]string{
		{"ip", "-n", name, "link", "set", "lo", "up"},
		{"ip", "-n", name, "addr", "add", ip + "/24", "dev", "link0"},
		{"ip", "-n", name, "link", "set", "link0", "mtu", "1500", "txqueuelen", "10000", "up"},
		// The sysctl takes only what the system allows namespaces.
		{"ip", "-n", name, "route", "replace", "10.99.0.0/24", "dev", "link0", "src", ip, "congctl", control},
	} {
		if err := command(args...); err != nil {
			return h, err
		}
	}
	return h, nil
}

// command runs a command to its end.
func command(args ...string) error {
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", args, err, out)
	}
	return nil
}

// do calls f on a thread that is in the host's namespace. Sockets that f opens stay
// there.
func (h *host) do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		done <- func() error {
			ns, err := os.Open(filepath.Join("/var/run/netns", h.name))
			if err != nil {
				return err
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("setns: %w", err)
			}
			return f()
		}()
	}()
	return <-done
}

// openTUN opens a new TUN device.
func openTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("TUN device: %w", err)
	}
	return os.NewFile(uintptr(fd), "tun"), nil
}

// wire carries IP packets from one device to another over a link.
type wire struct {
	begun time.Time
	queue chan netsim.Delivery

	mu   sync.Mutex
	link *netsim.Link
}

// join begins to carry packets, until the devices are closed.
func join(from, to *os.File, cfg netsim.LinkConfig, seed uint64) *wire {
	w := &wire{begun: time.Now(), queue: make(chan netsim.Delivery, 1<<16), link: netsim.NewLink(cfg, seed)}
	go w.take(from)
	go w.deliver(to)
	return w
}

// take puts packets on the link. It keeps their order, as the link has no jitter.
func (w *wire) take(from *os.File) {
	defer close(w.queue)
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		w.mu.Lock()
		all := w.link.Send(time.Since(w.begun), buf[:n])
		w.mu.Unlock()
		for _, d := range all {
			w.queue <- d
		}
	}
}

// deliver makes deliveries when they are due.
func (w *wire) deliver(to *os.File) {
	for d := range w.queue {
		if wait := d.At - time.Since(w.begun); wait > 0 {
			time.Sleep(wait)
		}
		_, _ = to.Write(d.Data) // fails when the device is closed
	}
}

// setLoss sets the probability of loss.
func (w *wire) setLoss(loss float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	cfg := w.link.Config()
	cfg.Loss = loss
	w.link.SetConfig(cfg)
}
