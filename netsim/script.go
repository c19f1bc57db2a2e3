package netsim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Step is a change of a link at a time. Change may be called more than once and
// so must do nothing but set fields.
type Step struct {
	At     time.Duration     // when; Play says since when
	Change func(*LinkConfig) // sets what becomes different
}

// Script is a course of changes of a link. A step is in force for the packets
// that are sent at its time or later, and only those. Steps need not be in
// order; steps of the same time are taken in the order of the script. A script says what
// to change, not what all settings are, so several can be joined with slices.Concat as
// long as they leave each other's fields alone. It is played by Link.Play, Network.Play
// or Relay.Play.
type Script []Step

// Outage returns the script of a total loss (LinkConfig.Down) that begins at a
// time and lasts for a while; a negative one is none. If two overlap, the end of
// the first ends both.
func Outage(at, length time.Duration) Script {
	return Script{
		{at, func(c *LinkConfig) { c.Down = true }},
		{later(at, max(length, 0)), func(c *LinkConfig) { c.Down = false }},
	}
}

// inOrder returns a sorted copy of a script, shifted by a time, or the error of
// the first step that makes a link that is not valid out of cfg.
func (s Script) inOrder(cfg LinkConfig, shift time.Duration) (Script, error) {
	s = slices.Clone(s)
	slices.SortStableFunc(s, byTime)
	for i := range s {
		if s[i].Change == nil {
			return nil, fmt.Errorf("netsim: the script has no change at %v", s[i].At)
		}
		s[i].Change(&cfg)
		if err := cfg.Validate(); err != nil {
			return nil, fmt.Errorf("the script at %v: %w", s[i].At, err)
		}
		s[i].At = later(s[i].At, shift)
	}
	return s, nil
}

func byTime(a, b Step) int { return cmp.Compare(a.At, b.At) }

// Play adds a script, on the time line of Send. What lies in the past is done
// before the next packet. The error is about the first step that sets
// something out of range, and then nothing is added.
func (l *Link) Play(script Script) error { return l.play(script, 0) }

func (l *Link) play(script Script, shift time.Duration) error {
	script, err := script.inOrder(l.cfg, shift)
	if err != nil {
		return err
	}
	l.script = append(l.script, script...)
	slices.SortStableFunc(l.script, byTime)
	return nil
}

// runScript makes the changes that are due.
func (l *Link) runScript(now time.Duration) {
	for len(l.script) > 0 && l.script[0].At <= now {
		cfg := l.cfg
		l.script[0].Change(&cfg)
		l.script = l.script[1:]
		l.SetConfig(cfg)
	}
}

// timedStep is what a script of a Network does at a time.
type timedStep struct {
	at time.Duration
	do func()
}

// At has f called when the network is t old (see Elapsed), or at once if it is
// older. Packets that are sent or arrive at that very time find it done. Calls of
// f do not overlap; calls of the same time are made in the order in which they
// were asked for.
//
// f may call the setters, Cut, Heal, Inject, Stats, At, and PacketConn.Rebind;
// but it must neither block nor write to a socket of the network, nor do what
// writes to one, such as closing a session. A goroutine may do that for it.
func (n *Network) At(t time.Duration, f func()) {
	age := n.Elapsed()
	n.mu.Lock()
	n.steps = append(n.steps, timedStep{t, f})
	slices.SortStableFunc(n.steps, func(a, b timedStep) int { return cmp.Compare(a.at, b.at) })
	n.nextStep.Store(min(n.nextStep.Load(), int64(t)))
	n.mu.Unlock()
	time.AfterFunc(max(t, 0)-age, n.catchUp)
}

// Play adds a script for the direction from one place to another, which are as
// for SetLink; its times count as Elapsed does. Each step changes the settings
// that Link would return then, as SetLink does: with "" as both places, no pair that has
// settings of its own is changed, and after a script for a pair SetLink for all no longer
// concerns that one. Cut has an effect on all pairs of its places. The error is of a
// place that cannot be parsed, or of the first step that sets something out of range;
// then nothing is added.
func (n *Network) Play(from, to string, script Script) error {
	a, errFrom := parsePlace(from)
	b, errTo := parsePlace(to)
	if err := errors.Join(errFrom, errTo); err != nil {
		return err
	}
	script, err := script.inOrder(n.Link(from, to), 0)
	if err != nil {
		return err
	}
	for _, step := range script {
		n.At(step.At, func() { n.change(flow{a, b}, step.Change) })
	}
	return nil
}

// change makes a rule of what is in force for a direction and a change of that.
func (n *Network) change(rule flow, change func(*LinkConfig)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, cfg := n.match(rule)
	change(&cfg)
	cfg.mustBeValid()
	n.setRule(rule, cfg)
}

// catchUp takes the steps that are due. Whoever calls it waits until they are
// done, also by another goroutine.
func (n *Network) catchUp() {
	if int64(n.Elapsed()) < n.nextStep.Load() {
		return
	}
	n.stepMu.Lock()
	defer n.stepMu.Unlock()
	for step, ok := n.dueStep(); ok; step, ok = n.dueStep() {
		step.do()
	}
}

// dueStep takes the next step that is due. It moves nextStep only after the last
// of them has been done.
func (n *Network) dueStep() (step timedStep, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.steps) == 0 {
		n.nextStep.Store(math.MaxInt64)
		return step, false
	}
	if step = n.steps[0]; step.at > n.Elapsed() {
		n.nextStep.Store(int64(step.at))
		return step, false
	}
	n.steps = slices.Delete(n.steps, 0, 1)
	return step, true
}
