package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/arqnet/kcp/netsim"
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
	flows    bool          // show streams, and move nothing
	duration time.Duration // of that
	settings settings
	lines    jsonLines
	debug    *debugServer // nil without -debug

	// tamper, if not nil, may change received data. It is for tests.
	tamper func(direction string, data []byte)
}

func newDemo(std streams) *demo {
	return &demo{
		std: std, lines: jsonLines{out: std.out},
		size: 8_000_000,
		link: netsim.LinkConfig{
			Loss: 0.1, Delay: 30 * time.Millisecond, Jitter: 10 * time.Millisecond, Duplicate: 0.02,
		},
		seed:     rand.Uint64N(1e9),
		timeout:  5 * time.Minute,
		duration: defaultFlowsTime,
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
				{"file", "PATH", "move this file instead", parsed(&d.file, func(s string) (string, error) { return s, nil })},
				{"timeout", "DURATION", "fail if it takes longer; default 5m", parsed(&d.timeout, positiveDuration)},
				d.lines.option("stdout"),
			}},
			{"Streams", []option{
				{"streams", "", "move no file: run a state feed, a chat, calls and a\ndownload on streams, and all on one session beside", parsed(&d.flows, strconv.ParseBool)},
				{"time", "DURATION", "how long; default 10s", parsed(&d.duration, positiveDuration)},
			}},
			{"The network, the same in both directions", []option{
				{"loss", "SHARE", "share of packets lost: 10%, 10 or 0.1; default 10%", parsed(&d.link.Loss, parsePercent)},
				{"delay", "DURATION", "one-way delay; default 30ms", parsed(&d.link.Delay, parseDuration)},
				{"jitter", "DURATION", "random extra delay, up to this; default 10ms", parsed(&d.link.Jitter, parseDuration)},
				{"duplicate", "SHARE", "packets delivered twice; default 2%", parsed(&d.link.Duplicate, parsePercent)},
				{"reorder", "SHARE", "packets that may overtake others, within the jitter;\ndefault 0%", parsed(&d.link.Reorder, parsePercent)},
				{"seed", "N", "seed of the data and of the network's randomness;\ndefault: random", parsed(&d.seed, parseSeed)},
			}},
			{"TLS", []option{demoTLS(&d.settings)}},
			d.settings.group(),
		},
		examples: `  kcp demo
  kcp demo -loss 30% -delay 150ms
  kcp demo -file video.mp4 -loss 1%
  kcp demo -loss 0 -size 100MB
  kcp demo -profile lowlatency
  kcp demo -tls
  kcp demo -streams -loss 2% -delay 40ms -jitter 0s
  kcp demo -cc reference -loss 1% -size 1MB`,
	}
}

// runDemo is kcp demo.
func runDemo(ctx context.Context, std streams, args []string) error {
	d := newDemo(std)
	return d.lines.errors(d.main(ctx, args))
}

// main reads the command line and runs the demo.
func (d *demo) main(ctx context.Context, args []string) error {
	if _, err := d.options().parse(d.std, args, 0); err != nil {
		return err
	}
	d.std.err = d.lines.messages(d.std.err, "kcp demo")
	cfg, err := d.settings.config()
	if err != nil {
		return err
	}
	switch {
	case d.link.Loss == 1:
		return usageErrorf("-loss 100%% lets nothing through")
	case d.size == 0:
		return usageErrorf("-size 0 leaves nothing to move")
	case d.flows && d.file != "":
		return usageErrorf("-streams does not move a file")
	case d.flows:
		return d.withDebug(func() error { return d.demoFlows(ctx, cfg) })
	}
	up, down := &direction{name: "dial -> listen"}, &direction{name: "listen -> dial"}
	if err := d.open(up, down); err != nil {
		return err
	}
	defer up.source.Close()
	defer down.source.Close()
	return d.withDebug(func() error {
		d.announce("Moving "+d.what()+" both ways at once, over KCP on this machine.", d.network())
		ctx, cancel := context.WithTimeoutCause(ctx, d.timeout, errTimeout)
		defer cancel()
		if err := d.transfer(ctx, cfg, up, down); err != nil {
			return d.explain(err, up, down)
		}
		return d.conclude(up, down)
	})
}

// withDebug runs f with what -debug and -trace ask for.
func (d *demo) withDebug(f func() error) error {
	debug, err := d.settings.serveDebug(d.std, "kcp demo")
	if err != nil {
		return err
	}
	defer debug.close()
	defer d.settings.closeTraces(d.std, "kcp demo")
	d.debug = debug
	return f()
}

// errTimeout is why the context of a demo ends.
var errTimeout = errors.New("timeout")

// explain describes the ends that are not errors of their own.
func (d *demo) explain(err error, directions ...*direction) error {
	var what error
	switch {
	case errors.Is(err, errTimeout):
		what = fmt.Errorf("not done within %v (-timeout)", d.timeout)
	case errors.Is(err, context.Canceled):
		what = errInterrupted
	default:
		return explain(err)
	}
	var progress []string
	for _, dir := range directions {
		progress = append(progress, fmt.Sprintf("%s at %s", dir.name, dir.percent()))
	}
	if len(progress) == 0 {
		return what
	}
	return fmt.Errorf("%w, with %s", what, strings.Join(progress, " and "))
}

// what describes the data to move.
func (d *demo) what() string {
	if d.file != "" {
		return fmt.Sprintf("%s (%s)", d.file, formatBytes(float64(d.size)))
	}
	return formatBytes(float64(d.size)) + " of random data"
}

// announce prints what the demo is about to do. With -json it prints nothing.
func (d *demo) announce(what, network string) {
	if d.lines.on {
		return
	}
	fmt.Fprintf(d.std.out, "%s\n", folded("", what))
	fmt.Fprintf(d.std.out, "%s%s", folded("  network   ", network), folded("  sessions  ", d.settings.String()))
	fmt.Fprintf(d.std.out, "  seed      %d\n\n", d.seed)
}

// foldAt is how many columns the text of a demo takes, except for hashes: narrow
// terminals have 60.
const foldAt = 59

// folded returns text behind head, in lines of at most foldAt columns if its
// words allow, which begin below each other.
func folded(head, text string) string {
	var b strings.Builder
	indent := strings.Repeat(" ", len(head))
	line := head
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
			line += word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > foldAt:
			fmt.Fprintln(&b, line)
			line = indent + word
		default:
			line += " " + word
		}
	}
	fmt.Fprintln(&b, line)
	return b.String()
}

// network describes the links.
func (d *demo) network() string {
	share := func(p float64) string { return fmt.Sprintf("%.4g%%", 100*p) }
	parts := []string{share(d.link.Loss) + " loss", fmt.Sprintf("%v delay", d.link.Delay)}
	if d.link.Jitter > 0 {
		parts = append(parts, fmt.Sprintf("up to %v jitter", d.link.Jitter))
	}
	if d.link.Duplicate > 0 {
		parts = append(parts, share(d.link.Duplicate)+" duplicated")
	}
	if d.link.Reorder > 0 {
		parts = append(parts, share(d.link.Reorder)+" reordered")
	}
	return strings.Join(parts, ", ") + " each way"
}
