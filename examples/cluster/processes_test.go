package cluster

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv/await"
	"github.com/stretchr/testify/require"
)

// childVariable is set in processes that are nodes of TestProcesses.
const childVariable = "KCP_CLUSTER_NODE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childVariable); dir != "" {
		if err := child(dir, os.Args[1], os.Args[2], os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// command is a line of a child's input: to send message number ID to all, or to cut it
// off, or to end that.
type command struct {
	ID, Size int
	Send     bool
	Cut      bool
}

// report is a line of a child's output.
type report struct {
	Addr   string   // it listens
	Event  string   // of a member
	Member string   // of which
	From   string   // a message has arrived
	Sum    string   // its SHA-256
	Sent   int      // a message was sent, with these results
	Failed []string // members that may not have it
	Err    string
}

// child runs a node, with memberlist's settings for a LAN, until its input ends.
func child(dir, name, bind string, seeds []string) error {
	pc, err := listenUDP(bind)
	if err != nil {
		return err
	}
	c := &Config{Seeds: seeds}
	c.PacketConn, c.Cluster = pc, testCluster
	if c.Certificate, err = Load(dir, name); err != nil {
		return err
	}
	if c.CA, err = LoadPool(dir, "authority"); err != nil {
		return err
	}
	n, err := Start(c)
	if err != nil {
		return err
	}
	var mu sync.Mutex // a report at a time
	out := json.NewEncoder(os.Stdout)
	tell := func(r report) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(r) // the parent has gone, if it fails
	}
	tell(report{Addr: n.Addr().String()})
	go func() {
		for e := range n.Events() {
			tell(report{Event: string(e.Kind), Member: e.Member.Name})
		}
	}()
	go func() {
		for {
			m, err := n.Receive(context.Background())
			if err != nil {
				return
			}
			tell(report{From: m.From, Sum: sum(m.Data)})
		}
	}()
	in := json.NewDecoder(os.Stdin)
	for {
		var c command
		if in.Decode(&c) != nil {
			return n.Close()
		}
		if !c.Send {
			pc.cut.Store(c.Cut)
			continue
		}
		go func() { tell(sendAll(n, c)) }()
	}
}

// sendAll sends a message to all members.
func sendAll(n *Node, c command) report {
	r := report{Sent: c.ID}
	err := n.Broadcast(context.Background(), content(n.Name(), c.ID, c.Size))
	var failed *BroadcastError
	if errors.As(err, &failed) {
		for name := range failed.Failed {
			r.Failed = append(r.Failed, name)
		}
	}
	if err != nil {
		r.Err = err.Error()
	}
	return r
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// process is a node in a process of its own.
type process struct {
	name string
	addr string
	cmd  *exec.Cmd
	in   *json.Encoder
	done sync.WaitGroup // the goroutine that reads its output

	mu      sync.Mutex // guards the fields below
	members map[string]bool
	gone    map[string]time.Time // when an event said so, latest
	back    map[string]time.Time // when a member has joined, latest
	got     map[string]int       // messages by sender and sum
	sent    map[int]report
}

// spawn starts a node in a process of its own.
func spawn(t *testing.T, dir, name, bind string, seeds ...string) *process {
	t.Helper()
	p := &process{
		name: name, members: make(map[string]bool), gone: make(map[string]time.Time),
		back: make(map[string]time.Time), got: make(map[string]int), sent: make(map[int]report),
	}
	p.cmd = exec.Command(os.Args[0], append([]string{name, bind}, seeds...)...)
	p.cmd.Env = append(os.Environ(), childVariable+"="+dir)
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		_ = in.Close() // it ends, if it has not been killed
		p.done.Wait()
		_ = p.cmd.Wait()
	})
	p.in = json.NewEncoder(in)
	reports := json.NewDecoder(bufio.NewReader(out))
	var first report
	require.NoError(t, reports.Decode(&first))
	p.addr = first.Addr
	p.done.Go(func() {
		for {
			var r report
			if reports.Decode(&r) != nil {
				return
			}
			p.take(r)
		}
	})
	return p
}

// take notes what a child reports.
func (p *process) take(r report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case r.Event == string(Joined):
		p.members[r.Member], p.back[r.Member] = true, time.Now()
	case r.Event == string(Died), r.Event == string(Left):
		p.gone[r.Member] = time.Now()
		delete(p.members, r.Member)
	case r.From != "":
		p.got[r.From+" "+r.Sum]++
	case r.Sent != 0:
		p.sent[r.Sent] = r
	}
}

// at returns the result of f, which may look at p.
func at[T any](p *process, f func() T) T {
	p.mu.Lock()
	defer p.mu.Unlock()
	return f()
}

func (p *process) memberCount() int { return at(p, func() int { return len(p.members) }) }

// testProcesses are five nodes, and what they have sent.
type testProcesses struct {
	t    *testing.T
	live []*process
	id   int // of the last message
}

// complete waits until each live node has all others as members.
func (c *testProcesses) complete() {
	c.t.Helper()
	for _, p := range c.live {
		await.True(c.t, func() bool { return p.memberCount() == len(c.live)-1 })
	}
}

// exchange makes each live node send messages to all, and checks that each arrives at
// each other live node once.
func (c *testProcesses) exchange(count int) {
	c.t.Helper()
	begun := time.Now()
	sizes := []int{10, 3000, 200_000}
	first := c.id + 1
	c.id += count
	for _, p := range c.live {
		for id := first; id <= c.id; id++ {
			require.NoError(c.t, p.in.Encode(command{Send: true, ID: id, Size: sizes[id%len(sizes)]}))
		}
	}
	for _, p := range c.live {
		for id := first; id <= c.id; id++ {
			await.True(c.t, func() bool { return at(p, func() bool { _, ok := p.sent[id]; return ok }) })
			r := at(p, func() report { return p.sent[id] })
			require.Empty(c.t, r.Err, "message %d of %s", id, p.name)
			key := p.name + " " + sum(content(p.name, id, sizes[id%len(sizes)]))
			for _, q := range c.live {
				if q != p {
					await.True(c.t, func() bool { return at(q, func() bool { return q.got[key] == 1 }) })
				}
			}
		}
	}
	c.t.Logf("%d messages to all, from each of %d nodes: %v", count, len(c.live), time.Since(begun))
}

// noneTwice checks that no message has arrived twice.
func (c *testProcesses) noneTwice() {
	c.t.Helper()
	for _, p := range c.live {
		for key, n := range at(p, func() map[string]int { return p.got }) {
			require.Equal(c.t, 1, n, "%s at %s", key, p.name)
		}
	}
}

// Five nodes in processes: one is killed, one is cut off for 20 s, and all the time
// messages to all reach those that are there.
func TestProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	dir := t.TempDir()
	ca := testAuthority(t)
	require.NoError(t, Save(dir, "authority", ca.Certificate))
	c := &testProcesses{t: t}
	var seeds []string
	begun := time.Now()
	for i := range 5 {
		name := fmt.Sprintf("node%d", i)
		cert, err := ca.Issue(name)
		require.NoError(t, err)
		require.NoError(t, Save(dir, name, cert))
		p := spawn(t, dir, name, "127.0.0.1:0", seeds...)
		if i == 0 {
			seeds = []string{p.addr}
		}
		c.live = append(c.live, p)
	}
	c.complete()
	t.Logf("five processes know each other after %v", time.Since(begun))
	c.exchange(6)

	killed := c.kill()
	c.exchange(6)
	c.partition()
	c.exchange(6)

	begun = time.Now()
	c.live = append(c.live, spawn(t, dir, killed.name, killed.addr, c.live[0].addr))
	c.complete()
	t.Logf("%s is back on its port %v after its start", killed.name, time.Since(begun))
	c.exchange(6)
	c.noneTwice()
}

// kill kills a node, and waits until all others have noticed.
func (c *testProcesses) kill() *process {
	c.t.Helper()
	victim := c.live[len(c.live)-1]
	c.live = c.live[:len(c.live)-1]
	begun := time.Now()
	require.NoError(c.t, victim.cmd.Process.Kill())
	c.complete()
	for _, p := range c.live {
		c.t.Logf("%s has noticed the death of %s after %v", p.name, victim.name,
			at(p, func() time.Time { return p.gone[victim.name] }).Sub(begun))
	}
	return victim
}

// partition cuts a node off for 20 s, or until the others have noticed, and waits until
// all know each other again.
func (c *testProcesses) partition() {
	c.t.Helper()
	const outage = 20 * time.Second
	cut := c.live[1]
	rest := slices.Delete(slices.Clone(c.live), 1, 2)
	begun := time.Now()
	require.NoError(c.t, cut.in.Encode(command{Cut: true}))
	c.id++
	id := c.id
	require.NoError(c.t, rest[0].in.Encode(command{Send: true, ID: id, Size: 100}))
	key := rest[0].name + " " + sum(content(rest[0].name, id, 100))
	for _, p := range rest[1:] {
		await.True(c.t, func() bool { return at(p, func() bool { return p.got[key] == 1 }) })
	}
	for _, p := range rest {
		await.True(c.t, func() bool { return at(p, func() bool { return !p.members[cut.name] }) })
	}
	await.True(c.t, func() bool { return at(rest[0], func() bool { _, ok := rest[0].sent[id]; return ok }) })
	require.Equal(c.t, []string{cut.name}, at(rest[0], func() []string { return rest[0].sent[id].Failed }))
	c.t.Logf("those outside have noticed after %v", time.Since(begun))
	time.Sleep(outage - time.Since(begun)) // it lasts so long, or until they have noticed
	c.t.Logf("the one inside believes in %d of %d others at its end", cut.memberCount(), len(rest))
	require.NoError(c.t, cut.in.Encode(command{Cut: false}))
	healed := time.Now()
	c.complete()
	c.t.Logf("all know each other again %v after the end of the partition of %v", time.Since(healed), healed.Sub(begun))
}
