//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/arqnet/kcp/netsim"
	"golang.org/x/sys/unix"
)

// lab is two hosts with a link between them.
type lab struct {
	dir            string // for programs and keys
	client, server host
	up, down       *wire
}

// host is a network namespace with a TUN device.
type host struct {
	name, ip string
	tun      *os.File
}

// newLab makes the hosts and the link.
func newLab() (l *lab, err error) {
	l = &lab{
		client: host{name: fmt.Sprintf("kcpbench-c%d", os.Getpid()), ip: "10.99.0.1"},
		server: host{name: fmt.Sprintf("kcpbench-s%d", os.Getpid()), ip: "10.99.0.2"},
	}
	if l.dir, err = os.MkdirTemp("", "tunnel-bench"); err == nil {
		err = errors.Join(l.client.make(), l.server.make())
	}
	if err != nil {
		l.close()
		return nil, err
	}
	bytes := int64(linkRate * 1e6 / 8)
	cfg := netsim.LinkConfig{Delay: linkRTT / 2, Rate: bytes, Queue: int(float64(bytes) * linkRTT.Seconds())}
	l.up, l.down = join(l.client.tun, l.server.tun, cfg, 1), join(l.server.tun, l.client.tun, cfg, 2)
	return l, nil
}

// close removes what newLab has made.
func (l *lab) close() {
	for _, h := range []host{l.client, l.server} {
		_ = h.tun.Close()
		_ = command("ip netns del " + h.name)
	}
	_ = os.RemoveAll(l.dir)
}

// make makes the namespace.
func (h *host) make() error {
	err := command("ip netns add " + h.name)
	if err == nil {
		err = h.do(func() (err error) {
			h.tun, err = openTUN("link0")
			return err
		})
	}
	for _, line := range []string{
		"link set lo up", "addr add " + h.ip + "/24 dev link0", "link set link0 mtu 1500 txqueuelen 10000 up",
		// The sysctl takes only what the system allows namespaces.
		"route replace 10.99.0.0/24 dev link0 src " + h.ip + " congctl cubic",
	} {
		if err == nil {
			err = command("ip -n " + h.name + " " + line)
		}
	}
	return err
}

// command runs a command to its end.
func command(line string) error {
	args := strings.Fields(line)
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", line, err, out)
	}
	return nil
}

// do calls f on a thread that is in the host's namespace. Sockets that f opens stay
// there.
func (h *host) do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		ns, err := os.Open(filepath.Join("/var/run/netns", h.name))
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			_ = ns.Close()
		}
		if err == nil {
			err = f()
		}
		done <- err
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
		err = errors.Join(unix.IoctlIfreq(fd, unix.TUNSETIFF, request), unix.SetNonblock(fd, true))
	}
	return os.NewFile(uintptr(fd), "tun"), err
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
	go func() {
		for d := range w.queue {
			time.Sleep(d.At - time.Since(w.begun))
			_, _ = to.Write(d.Data) // fails when the device is closed
		}
	}()
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
		w.mu.Lock()
		all := w.link.Send(time.Since(w.begun), buf[:max(n, 0)])
		w.mu.Unlock()
		for _, d := range all {
			w.queue <- d
		}
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
