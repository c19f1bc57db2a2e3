package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/arqnet/kcp"
)

const (
	defaultPingInterval = time.Second
	// leastPingWait is how long a ping waits for its answer at least. Conn.Ping
	// repeats its packet meanwhile.
	leastPingWait = 2 * time.Second
	// repeatedAfter is the delay from which on an answer is not that to the first
	// packet of a ping: the shortest time after which Conn.Ping repeats it.
	repeatedAfter = 50 * time.Millisecond
)

// pinger sends pings, and prints what becomes of them.
type pinger struct {
	out      io.Writer
	json     bool
	peer     string
	ping     func(context.Context) (time.Duration, error) // as Conn.Ping
	renew    func(context.Context) error                  // called before each ping; nil: nothing is to be done
	count    int                                          // 0: until interrupted
	interval time.Duration

	result jsonPings
}

// pingOptions returns the command line of kcp ping.
func pingOptions(n *netcat, p *pinger) *optionSet {
	return &optionSet{
		synopsis: "kcp ping ADDR [flags]",
		intro: `Opens a KCP session with the UDP address ADDR, such as 192.0.2.1:9000, and
measures the round trip to its endpoint, again and again. The program there only
has to accept the session: 'kcp listen' without -k ends with it. Peers such as
kcp-go and kcptun do not answer pings. A server of kcptunnel does, with
-fingerprint and without a user, in sessions of some seconds each.

A ping that is lost on the way is repeated after a retransmission time-out, and
shown with the time until its answer; the summary counts these. One without an
answer in 2s, or in -interval if that is longer, counts as lost. The exit code
is 0 if a ping was answered and the session did not break off. Without -count an
interrupt (Ctrl-C) is the regular end; with it the exit code is 130.`,
		groups: []optionGroup{
			{"Flags", []option{
				{"count", "N", "end after this many pings; default: when interrupted", parsed(&p.count, within(1, 1e9))},
				{"interval", "DURATION", "time from one ping to the next; default 1s", parsed(&p.interval, positiveDuration)},
				n.waitOption(),
				n.verboseOption(),
				jsonOption(&p.json, "stdout"),
			}},
			{"TLS", n.tls.dialOptions()},
			n.settings.only("peer-timeout", "keepalive", "linger", "trace", "debug", "cipher", "key", "key-file", "fec"),
		},
		examples: `  kcp ping 192.0.2.1:9000
  kcp ping 192.0.2.1:9000 -count 10 -interval 200ms
  kcp ping example.com:9000 -tls
  kcp ping example.com:4000 -fingerprint SHA256:...    a server of kcptunnel`,
	}
}

// runPing is kcp ping.
func runPing(ctx context.Context, std streams, args []string) error {
	n := newNetcat(std, "ping")
	n.receive = true // a ping does not read stdin
	p := &pinger{out: std.out, interval: defaultPingInterval}
	if err := n.parse(pingOptions(n, p), args); err != nil {
		return err
	}
	defer n.end()
	conn, err := n.openAny(ctx)
	if err != nil {
		return err
	}
	session := &renewal{n: n, conn: conn, opened: time.Now()}
	defer func() { _ = session.conn.Close() }()
	n.debug.show(n.command, conn.Endpoint())
	p.peer, p.ping = conn.RemoteAddr().String(), session.ping
	if session.withTunnel() {
		p.renew = session.renew
	}
	return p.run(ctx)
}

const (
	// tunnelProtocol is the application protocol (ALPN) of kcptunnel.
	tunnelProtocol = "kcptunnel/1"
	// tunnelSession is how long a session with a server of kcptunnel is used: it ends one
	// that shows no user after 10 s.
	tunnelSession = 7 * time.Second
)

// openAny opens a session for pings, which are the same with every application protocol:
// without one, or with kcptunnel's, whichever the peer has. With -fingerprint
// kcptunnel's is tried first.
func (n *netcat) openAny(ctx context.Context) (*kcp.Conn, error) {
	if n.tls.protocol != "" || !n.tls.on {
		return n.open(ctx)
	}
	protocols := []string{"", tunnelProtocol}
	if n.tls.fingerprint != "" {
		protocols = []string{tunnelProtocol, ""}
	}
	var first error
	for _, p := range protocols {
		n.tls.protocol = p
		conn, err := n.open(ctx)
		if err == nil || !noProtocol(err) {
			return conn, err
		}
		first = cmp.Or(first, err)
	}
	return nil, first
}

// renewal opens further sessions for pings.
type renewal struct {
	n      *netcat
	conn   *kcp.Conn // that is used now
	opened time.Time
}

// ping is Conn.Ping of the session that is used now.
func (r *renewal) ping(ctx context.Context) (time.Duration, error) { return r.conn.Ping(ctx) }

// withTunnel reports whether the peer is a server of kcptunnel.
func (r *renewal) withTunnel() bool {
	state := r.conn.Peer().TLS
	return state != nil && state.NegotiatedProtocol == tunnelProtocol
}

// renew puts another session in place of one that the server is about to end.
func (r *renewal) renew(ctx context.Context) error {
	if time.Since(r.opened) < tunnelSession {
		return nil
	}
	d := kcp.Dialer{Config: r.n.cfg}
	conn, err := d.DialContext(ctx, "udp", r.n.address)
	if err != nil {
		return err
	}
	old := r.conn
	r.conn, r.opened = conn.(*kcp.Conn), time.Now()
	go func() { _ = old.Close() }() // which may wait
	return nil
}

// run sends the pings, and prints the summary.
func (p *pinger) run(ctx context.Context) error {
	start := time.Now()
	err := p.loop(ctx, start)
	p.result.Seconds = time.Since(start).Seconds()
	var local *localError
	if errors.As(err, &local) {
		return err
	}
	if errors.Is(err, kcp.ErrLegacyPeer) {
		return fmt.Errorf("%s does not answer pings: it is a peer such as kcp-go or the C reference", p.peer)
	}
	if printed := p.printSummary(); printed != nil {
		return printed
	}
	switch {
	case errors.Is(err, errInterrupted) && p.count == 0 && p.result.Answered > 0:
		return nil
	case err != nil:
		return explain(err)
	case p.result.Answered == 0:
		return fmt.Errorf("no answer from %s", p.peer)
	}
	return nil
}

// loop sends the pings, from start on. It returns errInterrupted when ctx is done,
// and the error of the session if it ends. Neither counts as a ping.
func (p *pinger) loop(ctx context.Context, start time.Time) error {
	tick := time.NewTicker(p.interval)
	defer tick.Stop()
	for {
		begin, rtt, err := p.once(ctx)
		lost := errors.Is(err, context.DeadlineExceeded)
		switch {
		case ctx.Err() != nil && err != nil:
			return errInterrupted
		case err != nil && !lost:
			return err
		}
		if err := p.note(rtt, time.Since(begin), lost); err != nil {
			return err
		}
		if p.result.Sent == p.count {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errInterrupted
		}
	}
}

// once sends a ping, and waits for its answer. It returns when it has begun.
func (p *pinger) once(ctx context.Context) (begin time.Time, rtt time.Duration, err error) {
	wait := max(p.interval, leastPingWait)
	if p.renew != nil {
		wait = leastPingWait // the session does not last longer
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	begin = time.Now()
	if p.renew != nil {
		err = p.renew(ctx)
		var silent *kcp.NoAnswerError
		if ctx.Err() != nil || errors.As(err, &silent) {
			return begin, 0, context.DeadlineExceeded
		}
		if err != nil {
			return begin, 0, err
		}
		begin = time.Now()
	}
	rtt, err = p.ping(ctx)
	return begin, rtt, err
}

// note counts a ping, and prints it. took is the time that it has taken in all.
func (p *pinger) note(rtt, took time.Duration, lost bool) error {
	r := &p.result
	r.Sent++
	o := jsonPing{Type: "status", Seq: r.Sent, Answered: !lost, Took: took.Seconds()}
	text := fmt.Sprintf("seq=%d no answer in %s\n", o.Seq, formatTime(took))
	if lost {
		r.Lost++
	} else {
		o.RTT = rtt.Seconds()
		r.add(o.RTT)
		text = fmt.Sprintf("seq=%d time=%.3f ms", o.Seq, 1e3*o.RTT)
		if took-rtt >= repeatedAfter {
			r.Repeated++
			r.RepeatedMax = max(r.RepeatedMax, o.Took)
			text += " answered after " + formatTime(took)
		}
		text += "\n"
	}
	if p.json {
		return printJSON(p.out, o)
	}
	return p.print(text)
}

// print writes to stdout.
func (p *pinger) print(text string) error {
	if _, err := io.WriteString(p.out, text); err != nil {
		return &localError{"writing standard output", err}
	}
	return nil
}

// add counts a round trip, in seconds.
func (r *jsonPings) add(rtt float64) {
	if r.Answered++; r.Answered == 1 {
		r.RTTMin = rtt
	}
	r.RTTMin, r.RTTMax = min(r.RTTMin, rtt), max(r.RTTMax, rtt)
	r.sum += rtt
	r.squares += rtt * rtt
	n := float64(r.Answered)
	r.RTTAvg = r.sum / n
	r.RTTMdev = math.Sqrt(max(r.squares/n-r.RTTAvg*r.RTTAvg, 0))
}

// printSummary prints the result, as text as ping(8) does.
func (p *pinger) printSummary() error {
	r := &p.result
	if r.Type, r.Remote = "result", p.peer; p.json {
		return printJSON(p.out, r)
	}
	took := func(seconds float64) string { return formatTime(time.Duration(seconds * float64(time.Second))) }
	text := fmt.Sprintf("\n--- %s ---\n%d sent, %d answered, %s lost, in %s", p.peer,
		r.Sent, r.Answered, formatShare(float64(r.Lost), float64(r.Sent)), took(r.Seconds))
	if r.Repeated > 0 { // the first packet, or its answer, was lost
		text += fmt.Sprintf("; %d answered only when repeated, after up to %s", r.Repeated, took(r.RepeatedMax))
	}
	if r.Answered > 0 {
		text += fmt.Sprintf("\nrtt min/avg/max/mdev = %.3f/%.3f/%.3f/%.3f ms", 1e3*r.RTTMin, 1e3*r.RTTAvg, 1e3*r.RTTMax, 1e3*r.RTTMdev)
	}
	return p.print(text + "\n")
}
