package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The server suite runs a server in one process and its clients in another,
// joined by the loopback interface. This process tells both what to do. It
// measures what a server with many sessions costs and how much it gets done.
//
// pace-N has N clients that send a message of 64 bytes 20 times a second, evenly
// spread, and read the echoes. echo-N has N clients that send the next message as
// soon as the echo of the last is there. bulk-N has N clients that send as fast
// as they can, to a server that reads and discards.
//
// starved-N is pace-1000 while N processes beside it compute without a pause. They
// start when all clients are connected.
//
// chatty-N is pace-N beside one more client, which sends as fast as it can. The
// goodput is that client's, the times are of the messages.
//
// Every client has a socket of its own. Bulk is measured once the clients' buffers
// are full, which may take longer than the measurement.
//
// The server accepts in a loop and has a goroutine a session. For kcp-group it
// has one for all. kcp has the default Config. kcp-go has the settings that most of
// its users choose, and windows of 128.
//
// The metric cpu is the user and system time of the server's process alone.

// Kinds of cases.
const (
	serverPace    = "pace"
	serverEcho    = "echo"
	serverBulk    = "bulk"
	serverChat    = "chatty"
	serverStarved = "starved" // only in names of cases: the traffic is serverPace's
)

const (
	metricRate    = "rate"
	metricResent  = "resent"
	metricSlowest = "slowest"
)

// kcpGroup is our server with all sessions in a kcp.Group.
const kcpGroup = "kcp-group"

const (
	starvedClients = 1000
	serverWindow   = 128     // segments, where the default is not taken
	serverBuffer   = 4 << 20 // bytes, as kcp asks for by default
	messageSize    = 64
	answerLimit    = 2 * time.Minute // a process may be very busy
	fillLimit      = 15 * time.Second
)

func init() {
	register(&suite{
		name:     "server",
		about:    "a server and its clients in two processes, over loopback; cpu is the server's alone",
		duration: 2 * time.Second, // the start of a load is most of a shorter one
		cases: []string{
			"pace-100", "pace-1000", "pace-4000", "echo-10", "echo-100", "echo-1000",
			"bulk-1", "bulk-10", "bulk-100", "bulk-1000", "chatty-100", "starved-6", "starved-24",
		},
		impls: []string{ours, kcpGroup, kcpGo, quicGo, kernelTCP},
		metrics: []metric{
			{metricCPU, "µs a message; bulk and chatty: s/GB"}, {metricRate, "per second"}, {metricGoodput, "MB/s"},
			{metricP50, "µs"}, {metricP99, "µs"}, {metricResent, "share"}, {metricSlowest, "share of the mean"},
		},
		measure: measureServer,
		goals: []goal{
			{c: "pace-100", impl: ours, metric: metricCPU, max: 1.2, of: kernelTCP},
			{c: "pace-1000", impl: ours, metric: metricCPU, max: 1.3, of: kernelTCP},
			{c: "pace-1000", impl: ours, metric: metricP99, max: 1.3, of: kernelTCP},
			{c: "pace-4000", impl: ours, metric: metricRate, min: 0.98 * 80_000},
			{c: "pace-4000", impl: ours, metric: metricP50, max: 10_000},
			{c: "echo-10", impl: ours, metric: metricRate, min: 1, of: kernelTCP},
			{c: "echo-1000", impl: ours, metric: metricRate, min: 0.85, of: kernelTCP},
			{c: "bulk-10", impl: ours, metric: metricGoodput, min: 0.5, of: kernelTCP},
			{c: "bulk-1000", impl: ours, metric: metricGoodput, min: 0.6, ofCase: "bulk-10"},
			{c: "bulk-1000", impl: ours, metric: metricResent, max: 0.01},
			{c: "chatty-100", impl: ours, metric: metricP50, max: 200},
			{c: "chatty-100", impl: ours, metric: metricGoodput, min: 0.8, of: kernelTCP},
			{c: "starved-6", impl: ours, metric: metricP50, max: 4, of: kernelTCP},
			{c: "starved-24", impl: ours, metric: metricRate, min: 0.8, of: kernelTCP},
			{c: "starved-24", impl: ours, metric: metricP50, max: 80_000},
		},
	})
}

// serverJob is one measurement, as its processes are told of it.
type serverJob struct {
	Impl    string
	Kind    string
	Clients int
	Busy    int // processes beside it that compute
}

// parseServerCase returns the measurement that a case's name stands for.
func parseServerCase(c, impl string) (job serverJob, err error) {
	kind, number, _ := strings.Cut(c, "-")
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || !slices.Contains([]string{serverPace, serverEcho, serverBulk, serverChat, serverStarved}, kind) {
		return job, fmt.Errorf("no case %q", c)
	}
	if serverEnds[impl].listen == nil {
		return job, fmt.Errorf("no implementation %q", impl)
	}
	if kind == serverStarved {
		return serverJob{impl, serverPace, starvedClients, n}, nil
	}
	return serverJob{impl, kind, n, 0}, nil
}

// uploads reports whether the i-th session sends as fast as it can. The last of
// serverChat does.
func (j *serverJob) uploads(i int) bool {
	return j.Kind == serverBulk || j.Kind == serverChat && i == j.Clients
}

// sessions returns how many sessions the clients open.
func (j *serverJob) sessions() int {
	if j.Kind == serverChat {
		return j.Clients + 1
	}
	return j.Clients
}

// settings returns the settings of implementations other than kcp.
func (j *serverJob) settings() settings {
	return settings{mode: plain, window: serverWindow, buffer: serverBuffer}
}

// measureServer runs the server and the clients of one measurement.
func measureServer(c, impl string, d time.Duration) (figures, error) {
	job, err := parseServerCase(c, impl)
	if err != nil {
		return nil, err
	}
	server, err := startChild(serverRole)
	if err != nil {
		return nil, err
	}
	defer server.kill()
	clients, err := startChild(clientsRole)
	if err != nil {
		return nil, err
	}
	defer clients.kill()
	var at Address
	if err := server.call("Listen", Target{Job: job}, &at); err != nil {
		return nil, err
	}
	if err := clients.call("Connect", Target{job, at}, nil); err != nil {
		return nil, err
	}
	for range job.Busy {
		p, err := startChild(busyRole)
		if err != nil {
			return nil, err
		}
		defer p.kill()
	}
	if err := clients.call("Start", 0, nil); err != nil {
		return nil, err
	}
	time.Sleep(min(d/2, time.Second))
	if job.Kind == serverBulk || job.Kind == serverChat {
		if err := fillBuffers(server, clients, d); err != nil {
			return nil, err
		}
	}
	return job.measure(server, clients, d)
}

// fillBuffers waits until the clients have filled their buffers: what is written and
// has not arrived must grow no more. It waits no longer than fillLimit.
func fillBuffers(server, clients *child, d time.Duration) error {
	last := int64(0)
	for end := time.Now().Add(fillLimit); time.Now().Before(end); time.Sleep(min(d/2, 100*time.Millisecond)) {
		var use Usage
		var written int64
		if err := server.call("Use", 0, &use); err != nil {
			return err
		}
		if err := clients.call("Written", 0, &written); err != nil {
			return err
		}
		now := written - int64(use.moved())
		if now-last <= last/50 {
			return nil
		}
		last = now
	}
	return nil
}

// measure measures for d. The server's time is within the clients', which may be too
// busy to answer at once.
func (j *serverJob) measure(server, clients *child, d time.Duration) (figures, error) {
	var before, use Usage
	if err := clients.call("Begin", 0, nil); err != nil {
		return nil, err
	}
	if err := server.call("Use", 0, &before); err != nil {
		return nil, err
	}
	time.Sleep(d)
	if err := server.call("Use", 0, &use); err != nil {
		return nil, err
	}
	for end := time.Now().Add(answerLimit); use.moved() == before.moved(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return nil, fmt.Errorf("nothing has arrived in %v", d+answerLimit)
		}
		if err := server.call("Use", 0, &use); err != nil {
			return nil, err
		}
	}
	var done Done
	if err := clients.call("Report", 0, &done); err != nil {
		return nil, err
	}
	f := figures{}
	moved := float64(use.moved() - before.moved())
	if serverEnds[j.Impl].sent != nil {
		f[metricResent] = float64(done.Resent) / float64(max(1, done.Sent))
	}
	if j.Kind != serverBulk {
		f[metricRate], f[metricP50], f[metricP99] = done.Rate, done.P50, done.P99
	}
	if j.Kind == serverPace || j.Kind == serverEcho {
		f[metricCPU] = float64(use.CPU-before.CPU) / 1e3 / (moved / messageSize)
		return f, nil
	}
	f[metricCPU] = (use.CPU - before.CPU).Seconds() / (moved / 1e9)
	f[metricGoodput] = moved / 1e6 / (use.At - before.At).Seconds()
	if j.Kind == serverBulk {
		for i := range use.Received {
			use.Received[i] -= before.Received[i]
		}
		f[metricSlowest] = float64(slices.Min(use.Received)) / (moved / float64(len(use.Received)))
	}
	return f, nil
}
