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
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
)

// demo moves a file both ways at once between two sessions on loopback, through
// a relay that loses and delays packets.
type demo struct {
	std      streams
	file     string
	size     int64
	link     netsim.LinkConfig // of each direction
	seed     uint64
	timeout  time.Duration
	settings settings
	json     bool
	debug    *debugServer // nil without -debug

	// tamper, if not nil, may change received data. It is for tests.
	tamper func(direction string, data []byte)
}

func newDemo(std streams) *demo {
	return &demo{
		std:  std,
		size: 8_000_000,
		link: netsim.LinkConfig{
			Loss: 0.1, Delay: 30 * time.Millisecond, Jitter: 10 * time.Millisecond, Duplicate: 0.02,
		},
		seed:     rand.Uint64N(1e9),
		timeout:  5 * time.Minute,
		settings: settings{profile: defaultProfile, envelope: envelope{secret: true}},
	}
}

// options returns the command line of kcp demo.
func (d *demo) options() *optionSet {
	return &optionSet{
		synopsis: "kcp demo [flags]",
		intro: `Moves a file both ways at once between two KCP sessions on this machine, through
a relay that loses, delays and duplicates packets, and compares what arrived
with what was sent.`,
		groups: []optionGroup{
			{"What to move", []option{
				{"size", "SIZE", "amount of random data per direction: 8MB, 512kB,\n64MiB; default 8MB", parsed(&d.size, parseSize)},
				{"file", "PATH", "move this file instead", text(&d.file)},
				{"timeout", "DURATION", "fail if it takes longer; default 5m", parsed(&d.timeout, positiveDuration)},
				jsonOption(&d.json, "stdout"),
			}},
			{"The network, the same in both directions", []option{
				{"loss", "SHARE", "share of packets lost: 10%, 10 or 0.1; default 10%", parsed(&d.link.Loss, parsePercent)},
				{"delay", "DURATION", "one-way delay; default 30ms", parsed(&d.link.Delay, parseDuration)},
				{"jitter", "DURATION", "random extra delay, up to this; default 10ms", parsed(&d.link.Jitter, parseDuration)},
				{"duplicate", "SHARE", "packets delivered twice; default 2%", parsed(&d.link.Duplicate, parsePercent)},
				{"reorder", "SHARE", "packets that may overtake others, within the jitter;\ndefault 0%", parsed(&d.link.Reorder, parsePercent)},
				{"seed", "N", "seed of the data and of the network's randomness;\ndefault: random", parsed(&d.seed, parseSeed)},
			}},
			{"TLS", []option{d.settings.option(demoTLS())}},
			d.settings.group(),
		},
		examples: `  kcp demo
  kcp demo -loss 30% -delay 150ms
  kcp demo -file video.mp4 -loss 1%
  kcp demo -loss 0 -size 100MB
  kcp demo -profile lowlatency
  kcp demo -tls
  kcp demo -cc reference -loss 1% -size 1MB`,
	}
}

// runDemo is kcp demo.
func runDemo(ctx context.Context, std streams, args []string) error {
	return newDemo(std).main(ctx, args)
}

// main reads the command line and runs the demo.
func (d *demo) main(ctx context.Context, args []string) error {
	if _, err := d.options().parse(d.std, args, 0); err != nil {
		return err
	}
	cfg, err := d.settings.config()
	switch {
	case err != nil:
		return err
	case d.link.Loss == 1:
		return usageErrorf("-loss 100%% lets nothing through")
	case d.size == 0:
		return usageErrorf("-size 0 leaves nothing to move")
	}
	up, down := &direction{name: "dial -> listen"}, &direction{name: "listen -> dial"}
	for i, dir := range []*direction{up, down} {
		if err := d.open(i, dir); err != nil {
			return err
		}
		defer dir.source.Close()
	}
	if d.debug, err = d.settings.serveDebug(d.std, "kcp demo"); err != nil {
		return err
	}
	defer d.debug.close()
	defer d.settings.closeTraces(d.std, "kcp demo")
	if !d.json {
		d.announce()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.timeout, errTimeout)
	defer cancel()
	if err := d.transfer(ctx, cfg, up, down); err != nil {
		return d.explain(err, up, down)
	}
	return d.conclude(up, down)
}

// errTimeout is why the context of a demo ends.
var errTimeout = errors.New("timeout")

// explain describes the ends that are not errors of their own.
func (d *demo) explain(err error, up, down *direction) error {
	switch {
	case errors.Is(err, errTimeout):
		err = fmt.Errorf("not done within %v (-timeout)", d.timeout)
	case errors.Is(err, context.Canceled):
		err = errInterrupted
	default:
		return explain(err)
	}
	return fmt.Errorf("%w, with %s at %s and %s at %s", err, up.name, up.percent(), down.name, down.percent())
}

// announce prints what the demo is about to do.
func (d *demo) announce() {
	what := formatBytes(float64(d.size))
	if d.file != "" {
		what = fmt.Sprintf("%s (%s)", d.file, what)
	}
	fmt.Fprintf(d.std.out, "Moving %s both ways at once, over KCP on this machine.\n\n", what)
	fmt.Fprintf(d.std.out, "  network   %.4g%% loss, %v delay, up to %v jitter each way\n", 100*d.link.Loss, d.link.Delay, d.link.Jitter)
	fmt.Fprintf(d.std.out, "  sessions  %v\n  seed      %d\n\n", &d.settings, d.seed)
}

// direction is one of the two transfers of a demo.
type direction struct {
	name     string
	source   io.ReadCloser
	size     int64
	from, to *kcp.Conn

	arrived     atomic.Int64 // bytes received
	pace        pace
	took        time.Duration // until the last byte was received
	sentSum     []byte
	receivedSum []byte

	// Set at the end.
	sender, receiver stats.Conn
	relayed          netsim.LinkStats
}

// percent returns the share of bytes received.
func (dir *direction) percent() string {
	return fmt.Sprintf("%d%%", 100*dir.arrived.Load()/max(dir.size, 1))
}

// intact reports whether the received data equals the sent data.
func (dir *direction) intact() bool {
	return len(dir.sentSum) > 0 && bytes.Equal(dir.sentSum, dir.receivedSum)
}

// progress describes the state of a direction.
func (dir *direction) progress(elapsed time.Duration) string {
	rate := dir.pace.since(elapsed, dir.arrived.Load())
	return fmt.Sprintf("%s %4s %8s/s", dir.name, dir.percent(), formatBytes(rate))
}

// open sets the source of a direction.
func (d *demo) open(index int, dir *direction) error {
	if d.file == "" {
		dir.source, dir.size = io.NopCloser(randomData(d.seed, index)), d.size
		return nil
	}
	f, err := os.Open(d.file)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file", d.file)
	case info.Size() == 0:
		err = fmt.Errorf("%s is empty", d.file)
	default:
		d.size = info.Size()
		dir.source, dir.size = f, d.size
		return nil
	}
	_ = f.Close()
	return err
}

// randomData returns an endless stream that differs for each seed and index.
func randomData(seed uint64, index int) io.Reader {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	key[8] = byte(index)
	return rand.NewChaCha8(key)
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
	up.from, up.to, down.from, down.to = dialed, accepted, accepted, dialed
	if err := d.move(ctx, up, down); err != nil {
		return err
	}
	closing := make(chan error) // each waits for the other's answer
	go func() { closing <- dialed.Close() }()
	err = errors.Join(accepted.Close(), <-closing)
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
		_ = dialed.Abort(0, "")
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return nil, nil, err
}

// move moves both directions, until all has arrived or one has failed.
func (d *demo) move(ctx context.Context, up, down *direction) error {
	work, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var running sync.WaitGroup
	start := time.Now()
	for _, dir := range []*direction{up, down} {
		for _, step := range []func() error{dir.send, func() error { return dir.receive(start, d.tamper) }} {
			running.Go(func() {
				if err := step(); err != nil {
					fail(err)
				}
			})
		}
	}
	stopWatching := context.AfterFunc(work, func() {
		_ = up.from.Abort(0, "") // fails only if the session has ended
		_ = down.from.Abort(0, "")
	})
	var m *meter
	if !d.json {
		m = startMeter(d.std.out, canRedraw(d.std.out), func(elapsed time.Duration) string {
			return fmt.Sprintf("  %5.1fs  %s  |  %s", elapsed.Seconds(), up.progress(elapsed), down.progress(elapsed))
		})
	}
	running.Wait()
	stopWatching()
	m.stop()
	if work.Err() != nil {
		return context.Cause(work)
	}
	return nil
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

// errDamaged is the error of a demo that has delivered other data.
var errDamaged = errors.New("FAILED: what arrived differs from what was sent")

// conclude prints the results. It fails if the received data differs from the
// sent data.
func (d *demo) conclude(directions ...*direction) error {
	o := jsonDemo{Type: "result", Seed: d.seed, Intact: true}
	for _, dir := range directions {
		o.Intact = o.Intact && dir.intact()
		o.Seconds = max(o.Seconds, dir.took.Seconds())
		o.Directions = append(o.Directions, jsonDirection{
			Name: dir.name, Size: dir.size, Seconds: dir.took.Seconds(), jsonSegments: segmentsOf(&dir.sender),
			Relayed: dir.relayed.Sent.Packets, Lost: dir.relayed.Lost.Packets + dir.relayed.Overflow.Packets,
			Recovered: dir.receiver.FEC.Recovered,
			SentSum:   fmt.Sprintf("%x", dir.sentSum), ReceivedSum: fmt.Sprintf("%x", dir.receivedSum),
		})
	}
	var err error
	if d.json {
		err = printJSON(d.std.out, o)
	} else {
		_, err = io.WriteString(d.std.out, o.text(directions))
	}
	if err == nil && !o.Intact {
		return errDamaged
	}
	return err
}

// text returns a result for people.
func (o *jsonDemo) text(directions []*direction) string {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\n  direction\ttime\tgoodput\tresent\tpackets lost\trecovered by FEC")
	for i, dir := range directions {
		one := &o.Directions[i]
		fmt.Fprintf(table, "  %s\t%s\t%s/s\t%s\t%d of %d\t%d\n", dir.name, formatTime(dir.took),
			formatBytes(float64(dir.size)/dir.took.Seconds()), resentShare(&dir.sender), one.Lost, one.Relayed, one.Recovered)
	}
	_ = table.Flush()
	for i := range o.Directions {
		one := &o.Directions[i]
		fmt.Fprintf(&b, "\n  sha256 of %s\n    sent      %s\n    received  %s\n", one.Name, one.SentSum, one.ReceivedSum)
	}
	if o.Intact {
		b.WriteString("\nok: both hashes match\n")
	}
	return b.String()
}
