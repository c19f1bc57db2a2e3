package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/arqnet/kcp/netsim"
)

// relay forwards packets through simulated links.
type relay struct {
	std      streams
	listen   string
	to       string
	ends     [2]relayEnd // up and down
	chosen   []int       // indexes of the ends that the flags to come apply to
	script   netsim.Script
	rebind   time.Duration
	duration time.Duration
	every    time.Duration
	seed     uint64
}

// relayEnd holds the settings of one direction.
type relayEnd struct {
	link  netsim.LinkConfig
	burst float64 // mean length of bursts, in packets; 0: independent loss
}

func newRelay(std streams) *relay {
	r := &relay{std: std, listen: "127.0.0.1:0", chosen: []int{0, 1}, seed: rand.Uint64N(1e9)}
	for i := range r.ends {
		r.ends[i].link.Overhead = netsim.OverheadIPv4
	}
	return r
}

// options returns the command line of kcp relay.
func (r *relay) options() *optionSet {
	return &optionSet{
		synopsis: "kcp relay -to HOST:PORT [flags]",
		intro: `Forwards UDP packets to HOST:PORT and the replies back, through a simulated
network with the loss, delay and rate that the flags set, until it is
interrupted. Then it prints what became of the packets.`,
		groups: []optionGroup{
			{"The relay", []option{
				{"to", "HOST:PORT", "where to forward packets to", text(&r.to)},
				{"listen", "ADDR", "where to receive packets; default 127.0.0.1:0, which\nis any free port", text(&r.listen)},
				{"time", "DURATION", "stop after this time; default: never", parsed(&r.duration, positiveDuration)},
				{"every", "DURATION", "print the counts this often; default: only at the end", parsed(&r.every, positiveDuration)},
				{"seed", "N", "seed of the network's randomness; default: random", parsed(&r.seed, parseSeed)},
			}},
			{"The network, in both directions unless -direction says otherwise", r.linkOptions()},
			{"Events", []option{
				{"outage", "AT+LENGTH", "lose all packets for LENGTH, beginning after AT, such\nas 10s+3s; can be repeated", r.addOutage},
				{"rebind", "DURATION", "change the source addresses that the target sees this\noften, like a NAT that loses its bindings", parsed(&r.rebind, positiveDuration)},
			}},
		},
		examples: `  kcp relay -listen :4000 -to example.com:9000 -loss 5% -delay 30ms
  kcp relay -to 127.0.0.1:9000 -loss 2% -burst 8 -rate 10mbit -queue 64kB
  kcp relay -to 127.0.0.1:9000 -delay 20ms -direction up -rate 1mbit -queue 64kB
  kcp relay -to 127.0.0.1:9000 -profile satellite -outage 10s+3s`,
	}
}

// linkOptions returns the flags that describe links.
func (r *relay) linkOptions() []option {
	networks := networks()
	return []option{
		{"profile", "NAME", "start from a predefined network:\n" + strings.Join(networks.names(), ",\n"), r.setProfile},
		{"direction", "WHICH", "direction that the flags after it apply to: up (to the\ntarget), down or both",
			parsed(&r.chosen, directions.parse)},
		{"loss", "SHARE", "share of packets lost: 10%, 10 or 0.1", forLinks(r, parsePercent, func(e *relayEnd, v float64) { e.link.Loss = v })},
		{"burst", "PACKETS", "lose packets in bursts of this mean length", forLinks(r, parseBurst, func(e *relayEnd, v float64) { e.burst = v })},
		{"delay", "DURATION", "one-way delay", forLinks(r, parseDuration, func(e *relayEnd, v time.Duration) { e.link.Delay = v })},
		{"jitter", "DURATION", "random extra delay, up to this", forLinks(r, parseDuration, func(e *relayEnd, v time.Duration) { e.link.Jitter = v })},
		{"shape", "NAME", "distribution of the jitter: uniform, normal or pareto,\nwhich exceeds its bound now and then",
			forLinks(r, shapes.parse, func(e *relayEnd, v netsim.JitterShape) { e.link.JitterShape = v })},
		{"duplicate", "SHARE", "packets delivered twice", forLinks(r, parsePercent, func(e *relayEnd, v float64) { e.link.Duplicate = v })},
		{"reorder", "SHARE", "packets that may overtake others, within the jitter", forLinks(r, parsePercent, func(e *relayEnd, v float64) { e.link.Reorder = v })},
		{"corrupt", "SHARE", "packets with a bit flipped", forLinks(r, parsePercent, func(e *relayEnd, v float64) { e.link.Corrupt = v })},
		{"rate", "RATE", "bandwidth: 10mbit, 500kbit or 1MB per second,\nincluding headers", forLinks(r, parseRate, func(e *relayEnd, v int64) { e.link.Rate = v })},
		{"queue", "SIZE", "size of the buffer in front of the rate limit;\ndefault: unlimited", forLinks(r, parseSize, func(e *relayEnd, v int64) { e.link.Queue = int(v) })},
		{"mtu", "BYTES", "drop larger packets silently", forLinks(r, within(0, math.MaxInt32), func(e *relayEnd, v int) { e.link.MTU = v })},
	}
}

// forLinks returns a setter for the directions that are chosen when the flag is
// parsed.
func forLinks[T any](r *relay, parse func(string) (T, error), set func(*relayEnd, T)) func(string) error {
	return func(s string) error {
		v, err := parse(s)
		if err != nil {
			return err
		}
		for _, i := range r.chosen {
			set(&r.ends[i], v)
		}
		return nil
	}
}

// The values of -direction and -shape.
var (
	directions = choices[[]int]{{"up", []int{0}}, {"down", []int{1}}, {"both", []int{0, 1}}}
	shapes     = choices[netsim.JitterShape]{
		{"uniform", netsim.JitterUniform}, {"normal", netsim.JitterNormal}, {"pareto", netsim.JitterPareto},
	}
)

// networks returns the values of -profile.
func networks() (all choices[netsim.Profile]) {
	for _, p := range netsim.Profiles() {
		all = append(all, choice[netsim.Profile]{p.Name, p})
	}
	return all
}

func (r *relay) setProfile(s string) error {
	p, err := networks().parse(s)
	if err != nil {
		return err
	}
	for _, i := range r.chosen {
		r.ends[i] = relayEnd{link: [...]netsim.LinkConfig{p.Up, p.Down}[i]}
		r.ends[i].link.Overhead = netsim.OverheadIPv4
	}
	return nil
}

func (r *relay) addOutage(s string) error {
	at, length, ok := strings.Cut(s, "+")
	begin, err := parseDuration(at)
	lasts, err2 := parseDuration(length)
	if !ok || err != nil || err2 != nil {
		return errors.New("want a start and a length, such as 10s+3s")
	}
	r.script = append(r.script, netsim.Outage(begin, lasts)...)
	return nil
}

// parseBurst parses the mean length of a burst.
func parseBurst(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= 1 && v <= 1e6) {
		return 0, errors.New("want a number of packets, 1 or more")
	}
	return v, nil
}

// parseRate parses a rate, and returns it in bytes per second. 10mbit and
// 1.25MB are the same, and a trailing /s is allowed, as in 10mbit/s.
func parseRate(s string) (int64, error) {
	number := strings.TrimSuffix(strings.ToLower(s), "/s")
	number, inBits := strings.CutSuffix(number, "bit")
	rate, err := parseSize(number)
	if inBits {
		rate /= 8
	}
	if err != nil || rate == 0 || strings.HasSuffix(number, "b") && inBits {
		return 0, errors.New("want a rate such as 10mbit, 500kbit or 1MB")
	}
	return rate, nil
}

// config returns the settings of a direction.
func (e *relayEnd) config(name string) (netsim.LinkConfig, error) {
	cfg := e.link
	if e.burst > 0 {
		cfg.Burst, cfg.Loss = netsim.BurstLoss(cfg.Loss, e.burst), 0
	}
	if err := cfg.Validate(); err != nil {
		return cfg, usageErrorf("%s: %v", name, err)
	}
	return cfg, nil
}

// runRelay is kcp relay.
func runRelay(ctx context.Context, std streams, args []string) error {
	r := newRelay(std)
	if _, err := r.options().parse(std, args, 0); err != nil {
		return err
	}
	if r.to == "" {
		return usageErrorf("-to is missing: it says where to forward packets")
	}
	up, err := r.ends[0].config("up")
	if err != nil {
		return err
	}
	down, err := r.ends[1].config("down")
	if err != nil {
		return err
	}
	for _, addr := range []string{r.to, r.listen} {
		if err := checkAddress(addr); err != nil && addr != "" {
			return err
		}
	}
	link, err := netsim.ListenRelay(r.listen, r.to, up, down, r.seed)
	if err != nil {
		return err
	}
	defer link.Close()
	if err := link.Play(r.script, r.script); err != nil {
		return err
	}
	fmt.Fprintf(std.out, "Relaying %v to %s, seed %d.\n", link.Addr(), r.to, r.seed)
	if err := r.wait(ctx, link); err != nil {
		return err
	}
	return r.tell(link)
}

// wait runs the relay until its time is over or ctx is done.
func (r *relay) wait(ctx context.Context, link *netsim.Relay) error {
	if r.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.duration)
		defer cancel()
	}
	rebind, stop := ticks(r.rebind)
	defer stop()
	tell, stop := ticks(r.every)
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-rebind:
			if err := link.Rebind(); err != nil {
				return err
			}
		case <-tell:
			if err := r.tell(link); err != nil {
				return err
			}
		}
	}
}

// ticks returns the channel of a ticker, which never ticks if every is 0, and a
// function that stops it.
func ticks(every time.Duration) (<-chan time.Time, func()) {
	if every == 0 {
		return nil, func() {}
	}
	t := time.NewTicker(every)
	return t.C, t.Stop
}

// tell prints what became of the packets. It fails if stdout does.
func (r *relay) tell(link *netsim.Relay) error {
	up, down := link.Stats()
	upDelays, downDelays := link.QueueDelays()
	table := tabwriter.NewWriter(r.std.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\n\tpackets\tbytes\tdelivered\tlost\tqueue full\ttoo big\trefused\ttwice\treordered\tcorrupted\tqueued p50\tp95\tmax\t")
	for _, d := range []struct {
		name   string
		stats  netsim.LinkStats
		delays netsim.Delays
	}{{"up", up, upDelays}, {"down", down, downDelays}} {
		s := &d.stats
		fmt.Fprintf(table, "%s\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t\n", d.name,
			s.Sent.Packets, formatBytes(float64(s.Sent.Bytes)), s.Delivered.Packets, s.Lost.Packets,
			s.Overflow.Packets, s.TooBig.Packets, s.Unreachable.Packets,
			s.Duplicated.Packets, s.Reordered.Packets, s.Corrupted.Packets,
			formatTime(d.delays.Quantile(0.5)), formatTime(d.delays.Quantile(0.95)), formatTime(d.delays.Max()))
	}
	return table.Flush()
}
