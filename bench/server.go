package main

import (
	"fmt"
	"runtime"
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
// as they can, to a server that reads and discards. open-N opens N sessions from
// as few sockets as are needed, leaves them alone for the time of a measurement,
// then wants an echo from each, and closes them.
//
// starved-N is pace-1000 while N processes beside it compute without a pause. They
// start when all clients are connected.
//
// chatty-N is pace-N beside one more client, which sends as fast as it can. The
// goodput is that client's, the times are of the messages.
//
// Every client has a socket of its own, except for open-N. Bulk is measured once
// the clients' buffers are full, which may take longer than the measurement.
//
// bulk cases with -gcm encrypt with AES-GCM. Those with -lowlatency use
// kcp.LowLatency at both ends. Those with -shards have as many sockets at the
// server as it has processors, in place of one. Names that end in /cores=N give the
// server N processors.
//
// The server accepts in a loop and has a goroutine a session. For kcp-group it
// has one for all, and for kcp-handler none but the one that reads the
// socket. kcp has the default Config. kcp-go has the settings that most of its
// users choose, and windows of 128. Bare UDP is one loop that answers each
// datagram.
//
// The metric cpu is the user and system time of the server's process alone:
// for each message, for each GB, or in open-N as the processors in use while
// all sessions are idle. The metric clients cpu is of the other process.

// Kinds of cases.
const (
	serverPace = "pace"
	serverEcho = "echo"
	serverBulk = "bulk"
	serverChat = "chatty"
	serverOpen = "open"

	// serverStarved is only in names of cases: the traffic is serverPace's.
	serverStarved  = "starved"
	starvedClients = 1000
)

const (
	metricResent     = "resent"
	metricMemory     = "memory"
	metricOpen       = "open"
	metricAlive      = "alive"
	metricClientsCPU = "clients cpu"
	metricCipher     = "cipher"
)

// kcpFromKCPGo is our server with clients of kcp-go.
const kcpFromKCPGo = "kcp<kcp-go"

// Our server with all sessions in a kcp.Group: one goroutine serves it, or the one
// that reads the socket.
const (
	kcpGroup   = "kcp-group"
	kcpHandler = "kcp-handler"
)

// openLong is the case of open that takes long.
const openLong = "open-100000"

// serverMessages are the metrics of cases with echoes.
var serverMessages = []metric{
	{metricCPU, "µs a message"}, {metricClientsCPU, "µs a message"}, {metricRate, "per second"},
	{metricP50, "µs"}, {metricP99, "µs"}, {metricResent, "share"},
}

// serverMetrics are the metrics of each kind of case, with their units.
var serverMetrics = map[string][]metric{
	serverPace:    serverMessages,
	serverEcho:    serverMessages,
	serverStarved: serverMessages,
	serverBulk: {
		{metricCPU, "s/GB"}, {metricClientsCPU, "s/GB"}, {metricCipher, "s/GB"},
		{metricGoodput, "MB/s"}, {metricResent, "share"}, {metricSlowest, "share of the mean"},
	},
	serverChat: {
		{metricCPU, "s/GB"}, {metricClientsCPU, "s/GB"}, {metricGoodput, "MB/s"},
		{metricRate, "per second"}, {metricP50, "µs"}, {metricP99, "µs"}, {metricResent, "share"},
	},
	serverOpen: {{metricCPU, "cores"}, {metricOpen, "s"}, {metricMemory, "bytes a session"}, {metricAlive, "share"}},
}

func init() {
	register(&suite{
		name:  "server",
		about: "a server and its clients in two processes, over loopback; cpu is the server's alone",

		// The start of a load is most of a shorter one.
		duration: 2 * time.Second,

		cases: []string{
			"pace-100", "pace-1000", "pace-4000",
			"echo-10", "echo-100", "echo-1000",
			"bulk-1", "bulk-10", "bulk-100", "bulk-1000", "bulk-1000-lowlatency",
			"bulk-1-gcm", "bulk-100-gcm",
			"chatty-100",
			"starved-6", "starved-24",
		},
		optional:  []string{openLong, "pace-1000-shards", "echo-100-shards", "bulk-100-shards"},
		overCores: []string{"pace-1000", "echo-100", "echo-100-shards", "bulk-100", "bulk-100-shards"},
		impls:     []string{ours, kcpGroup, kcpHandler, kcpFromKCPGo, kcpGo, quicGo, kernelTCP, bareUDP},
		metrics: []metric{
			{metricCPU, "s/GB"}, {metricClientsCPU, "s/GB"}, {metricCipher, "s/GB"},
			{metricRate, "per second"}, {metricGoodput, "MB/s"}, {metricP50, "µs"}, {metricP99, "µs"},
			{metricResent, "share"}, {metricSlowest, "share of the mean"},
			{metricMemory, "bytes a session"}, {metricOpen, "s"}, {metricAlive, "share"},
		},
		charts: []chart{
			{name: "pace", title: "20 messages a second each, the server's processor time", metric: metricCPU,
				cases: []string{"pace-100", "pace-1000", "pace-4000"}},
			{name: "echo", title: "Messages echoed, all clients together", metric: metricRate,
				cases: []string{"echo-10", "echo-100", "echo-1000"}},
			{name: "bulk", title: "Clients sending to one server, all together", metric: metricGoodput,
				cases: []string{"bulk-1", "bulk-10", "bulk-100", "bulk-1000"}},
		},
		lacks:      serverLacks,
		omits:      serverOmits,
		units:      serverUnits,
		measure:    measureServer,
		thresholds: serverThresholds(),
	})
}

// serverThresholds are the figures to keep; serverGoals are to be reached.
func serverThresholds() []threshold {
	t := []threshold{
		{c: "pace-1000", impl: ours, metric: metricP99, max: 2, of: kernelTCP},
		{c: "bulk-10", impl: ours, metric: metricGoodput, min: 0.8, ofCase: "bulk-1"},
		{c: "bulk-100", impl: ours, metric: metricGoodput, min: 0.8, ofCase: "bulk-1"},
		{c: "chatty-100", impl: ours, metric: metricGoodput, min: 0.8, ofCase: "bulk-1"},
		{c: openLong, impl: ours, metric: metricOpen, max: 10},
		{c: openLong, impl: ours, metric: metricMemory, max: 6 << 10},
		{c: openLong, impl: ours, metric: metricAlive, min: 1},
	}
	for _, c := range []string{"pace-100", "pace-1000"} {
		t = append(t, threshold{c: c, impl: ours, metric: metricCPU, max: 1, of: kernelTCP},
			threshold{c: c, impl: ours, metric: metricCPU, max: 0.5, of: kcpGo})
	}
	for _, c := range []string{"echo-10", "echo-100", "echo-1000"} {
		t = append(t, threshold{c: c, impl: ours, metric: metricRate, min: 1, of: kernelTCP})
	}
	for i, c := range []string{"starved-6", "starved-24"} {
		t = append(t, threshold{c: c, impl: ours, metric: metricRate, min: []float64{0.98, 0.8}[i], of: kernelTCP},
			threshold{c: c, impl: ours, metric: metricRate, min: 1, of: kcpGo},
			threshold{c: c, impl: ours, metric: metricRate, min: 1, of: quicGo})
	}
	t = append(t, threshold{c: "starved-6", impl: ours, metric: metricP50, max: 5, of: kernelTCP},
		threshold{c: "starved-6", impl: ours, metric: metricResent, max: 0.01},
		threshold{c: "starved-24", impl: ours, metric: metricResent, max: 0.03})
	for _, incast := range [][2]string{{"bulk-1000", ours}, {"bulk-1000-lowlatency", ours}, {"bulk-1000", kcpFromKCPGo}} {
		c, impl := incast[0], incast[1]
		t = append(t, threshold{c: c, impl: impl, metric: metricGoodput, min: 0.6, of: ours, ofCase: "bulk-10"},
			threshold{c: c, impl: impl, metric: metricResent, max: 0.01},
			threshold{c: c, impl: impl, metric: metricSlowest, min: 0.5})
	}
	return t
}

// serverJob is one measurement, as its processes are told of it.
type serverJob struct {
	Impl       string
	Kind       string
	Clients    int
	GCM        bool   `json:",omitempty"`
	LowLatency bool   `json:",omitempty"`
	Shards     bool   `json:",omitempty"` // as many sockets as processors, at the server
	Cores      int    `json:",omitempty"` // of the server; 0 means all
	Rate       int    `json:",omitempty"` // of serverState, a second
	Busy       int    `json:",omitempty"` // processes beside it that compute
	Profile    string `json:",omitempty"` // a file for a profile of the server
}

// parseServerCase returns the measurement that a case's name stands for.
func parseServerCase(c string) (job serverJob, err error) {
	unknown := fmt.Errorf("no case %q", c)
	name, cores, limited := strings.Cut(c, coresMark)
	if limited {
		if job.Cores, err = strconv.Atoi(cores); err != nil || job.Cores < 1 {
			return job, unknown
		}
	}
	parts := strings.Split(name, "-")
	if len(parts) < 2 || serverMetrics[parts[0]] == nil {
		return job, unknown
	}
	job.Kind = parts[0]
	if job.Clients, err = strconv.Atoi(parts[1]); err != nil || job.Clients < 1 {
		return job, unknown
	}
	if job.Kind == serverStarved {
		job.Kind, job.Clients, job.Busy = serverPace, starvedClients, job.Clients
	}
	for _, variant := range parts[2:] {
		switch {
		case variant == "gcm" && job.Kind == serverBulk:
			job.GCM = true
		case variant == "lowlatency":
			job.LowLatency = true
		case variant == "shards":
			job.Shards = true
		default:
			return job, unknown
		}
	}
	return job, nil
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
	s := settings{mode: plain, window: serverWindow, buffer: serverBuffer}
	if j.GCM {
		s.mode = aesGCM
	}
	return s
}

const (
	serverWindow = 128     // segments, where the default is not taken
	serverBuffer = 4 << 20 // bytes, as kcp asks for by default
	messageSize  = 64
)

// serverLacks is lacks of the suite.
func serverLacks(c, impl string) bool {
	job, err := parseServerCase(c)
	if err != nil {
		return false
	}
	switch impl {
	case ours, kcpGroup:
		return false
	}
	if job.Shards {
		return true
	}
	switch impl {
	case kcpHandler:
		return job.Kind != serverPace && job.Kind != serverEcho
	case kcpFromKCPGo:
		return job.Kind != serverBulk || job.GCM || job.LowLatency || job.Clients < 10 || job.Cores > 0
	case kcpGo:
		// It needs a socket for each session that is dialled.
		return job.LowLatency || job.Kind == serverOpen
	case bareUDP:
		return job.Kind != serverPace && job.Kind != serverEcho
	}
	return job.LowLatency || job.GCM || job.Kind == serverOpen
}

// serverOmits is omits of the suite.
func serverOmits(c, impl, name string) bool {
	job, err := parseServerCase(c)
	if err != nil {
		return false
	}
	switch name {
	case metricResent:
		if p, ok := serverImpls[impl]; !ok || p.sent == nil {
			return true
		}
	case metricCipher:
		if !job.GCM {
			return true
		}
	}
	return !slices.ContainsFunc(serverMetrics[job.Kind], func(m metric) bool { return m.name == name })
}

// serverUnits is units of the suite.
func serverUnits(c, name string) string {
	job, err := parseServerCase(c)
	if err != nil {
		return ""
	}
	for _, m := range serverMetrics[job.Kind] {
		if m.name == name {
			return m.unit
		}
	}
	return ""
}

// measureServer runs the server and the clients of one measurement.
func measureServer(c, impl string, d time.Duration) (f figures, err error) {
	job, err := parseServerCase(c)
	if err != nil {
		return nil, err
	}
	if _, ok := serverImpls[impl]; !ok {
		return nil, fmt.Errorf("no implementation %q", impl)
	}
	job.Impl, job.Profile = impl, serverProfile
	server, err := startChild(serverRole, job.Cores)
	if err != nil {
		return nil, err
	}
	defer server.kill()
	clients, err := startChild(clientsRole, 0)
	if err != nil {
		return nil, err
	}
	defer clients.kill()
	r := &serverRun{job: job, server: server, clients: clients}
	if job.Kind == serverOpen {
		return r.measureOpen(d)
	}
	return r.measureTraffic(d)
}

// serverProfile is the file for a profile of the server's process, if not "".
var serverProfile string

// serverRun is a measurement in progress.
type serverRun struct {
	job             serverJob
	server, clients *child
}

const (
	setupLimit  = time.Minute // until all clients are connected
	answerLimit = time.Minute // a process may be very busy
	closeLimit  = time.Minute
	fillLimit   = 15 * time.Second
)

// listen starts the server and returns what the clients need to know of it.
func (r *serverRun) listen() (order, error) {
	a, err := r.server.ask(order{Do: doPrepare, Job: &r.job}, answerLimit)
	return order{Do: doPrepare, Job: &r.job, Addr: a.Addr, Certificate: a.Certificate, Limit: setupLimit}, err
}

// connect starts the server, connects all clients and waits until the server has
// accepted them.
func (r *serverRun) connect() error {
	prepare, err := r.listen()
	if err != nil {
		return err
	}
	return r.dial(prepare)
}

// dial connects all clients.
func (r *serverRun) dial(prepare order) error {
	if _, err := r.clients.ask(prepare, prepare.Limit+answerLimit); err != nil {
		return err
	}
	return r.await(answerLimit, "accepted", func(a answer) int { return a.Sessions }, r.job.sessions())
}

// await waits until a number that the server reports is want.
func (r *serverRun) await(limit time.Duration, what string, number func(answer) int, want int) error {
	if r.job.Impl == bareUDP {
		return nil // it knows no sessions
	}
	for end := time.Now().Add(limit); ; time.Sleep(2 * time.Millisecond) {
		a, err := r.server.ask(order{Do: doCount}, answerLimit)
		if err != nil {
			return err
		}
		if number(a) == want {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the server has %s %d sessions of %d in %v", what, number(a), want, limit)
		}
	}
}

// fill waits until the clients have filled their buffers: what is written and
// has not arrived must grow no more. It waits no longer than fillLimit.
func (r *serverRun) fill(d time.Duration) error {
	if r.job.Kind != serverBulk && r.job.Kind != serverChat {
		return nil
	}
	last := int64(0)
	for end := time.Now().Add(fillLimit); time.Now().Before(end); time.Sleep(min(d/2, 100*time.Millisecond)) {
		server, err := r.server.ask(order{Do: doMark}, answerLimit)
		if err != nil {
			return err
		}
		clients, err := r.clients.ask(order{Do: doCount}, answerLimit)
		if err != nil {
			return err
		}
		now := int64(clients.Written) - int64(server.moved())
		if now-last <= last/50 {
			return nil
		}
		last = now
	}
	return nil
}

// measureTraffic measures messages or bulk for d, after some time in which
// windows open and buffers are made.
func (r *serverRun) measureTraffic(d time.Duration) (figures, error) {
	if err := r.connect(); err != nil {
		return nil, err
	}
	idle, err := startBusy(r.job.Busy)
	if err != nil {
		return nil, err
	}
	defer idle()
	if _, err := r.clients.ask(order{Do: doStart}, answerLimit); err != nil {
		return nil, err
	}
	time.Sleep(min(d/2, time.Second))
	if err := r.fill(d); err != nil {
		return nil, err
	}
	// The clients may be too busy to answer at once. The server's time is within
	// theirs.
	if _, err := r.clients.ask(order{Do: doBegin}, answerLimit); err != nil {
		return nil, err
	}
	before, err := r.server.ask(order{Do: doBegin}, answerLimit)
	if err != nil {
		return nil, err
	}
	time.Sleep(d)
	for end := time.Now().Add(answerLimit); ; time.Sleep(10 * time.Millisecond) {
		server, err := r.server.ask(order{Do: doMark}, answerLimit)
		if err != nil {
			return nil, err
		}
		server.subtract(before)
		if server.moved() > 0 {
			clients, err := r.clients.ask(order{Do: doMark}, answerLimit)
			if err != nil {
				return nil, err
			}
			return r.figures(server, clients, d)
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("nothing has arrived in %v", d+answerLimit)
		}
	}
}

// figures returns the figures of the differences between two marks.
func (r *serverRun) figures(server, clients answer, d time.Duration) (figures, error) {
	f := figures{}
	if serverImpls[r.job.Impl].sent != nil {
		f[metricResent] = float64(clients.Resent) / float64(max(1, clients.Sent))
	}
	moved := float64(server.moved())
	if r.job.Kind != serverBulk {
		f[metricRate] = float64(clients.Echoes) / clients.At.Seconds()
		f[metricP50], f[metricP99] = clients.P50, clients.P99
	}
	if r.job.Kind == serverPace || r.job.Kind == serverEcho {
		f[metricCPU] = float64(server.CPU) / 1e3 / (moved / messageSize)
		f[metricClientsCPU] = float64(clients.CPU) / 1e3 / float64(clients.Echoes)
		return f, nil
	}
	f[metricCPU] = server.CPU.Seconds() / (moved / 1e9)
	// The clients' time is a little longer than the server's.
	f[metricClientsCPU] = clients.CPU.Seconds() / clients.At.Seconds() * server.At.Seconds() / (moved / 1e9)
	f[metricGoodput] = moved / 1e6 / server.At.Seconds()
	if r.job.Kind == serverBulk {
		f[metricSlowest] = float64(slices.Min(server.Received)) / (moved / float64(len(server.Received)))
	}
	if r.job.GCM {
		cost, err := cipherCost(r.job.Impl, d/4)
		if err != nil {
			return nil, err
		}
		f[metricCipher] = cost
	}
	return f, nil
}

// cipherCost returns what it takes to seal and open a GB in full packets, in
// seconds.
func cipherCost(impl string, d time.Duration) (float64, error) {
	packet := make([]byte, packetSize+64)
	fill(packet)
	step, err := cipherOf(impl, "aes-gcm", packet)
	if err != nil {
		return 0, err
	}
	runtime.GC()
	f, err := repeat(func() (int, error) { return 1, step() }, d)
	return f[metricPacket] / packetSize, err
}

// measureOpen opens many sessions and leaves them alone for d.
func (r *serverRun) measureOpen(d time.Duration) (figures, error) {
	prepare, err := r.listen()
	if err != nil {
		return nil, err
	}
	empty, err := r.server.ask(order{Do: doMemory}, answerLimit)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := r.dial(prepare); err != nil {
		return nil, err
	}
	opened := time.Since(start)
	time.Sleep(min(idleSettle, 10*d))
	full, err := r.server.ask(order{Do: doMemory}, answerLimit)
	if err != nil {
		return nil, err
	}
	before, err := r.server.ask(order{Do: doBegin}, answerLimit)
	if err != nil {
		return nil, err
	}
	time.Sleep(d)
	idle, err := r.server.ask(order{Do: doMark}, answerLimit)
	if err != nil {
		return nil, err
	}
	idle.subtract(before)
	tried, err := r.clients.ask(order{Do: doTry, Limit: setupLimit}, setupLimit+answerLimit)
	if err != nil {
		return nil, err
	}
	if _, err := r.clients.ask(order{Do: doClose}, closeLimit); err != nil {
		return nil, err
	}
	if err := r.await(closeLimit, "ended", func(a answer) int { return a.Ended }, r.job.Clients); err != nil {
		return nil, err
	}
	sessions := float64(r.job.Clients)
	return figures{
		metricOpen:   opened.Seconds(),
		metricMemory: max(0, float64(full.Memory)-float64(empty.Memory)) / sessions,
		metricCPU:    idle.CPU.Seconds() / idle.At.Seconds(),
		metricAlive:  float64(tried.Alive) / sessions,
	}, nil
}
