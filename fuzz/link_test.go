package fuzz_test

import (
	"math/rand/v2"
	"testing"

	kcp "github.com/arqnet/kcp/internal/machine"
)

// Operations of a link script: the low four bits of a byte. The high four are
// the argument x, whose lowest bit mostly names an end or the direction to it.
// Some read one more byte, y.
const (
	opSend     = iota // one message of the size x>>1 selects
	opBurst           // y messages of a small size
	opRecv            // read up to 1 + x>>1 messages
	opReading         // the application reads all, or (x>>1&1 = 0) nothing
	opShort           // read into too small a buffer
	opRun             // let times[x] pass
	opRunMore         // the same, as it is what a link needs most
	opSleep           // times[x] pass unattended, as when a laptop is shut
	opDrop            // lose the y-th packet on the way
	opDouble          // deliver it twice
	opDelay           // hold it up by x>>1 times 50 ms
	opBlackout        // lose all that is on the way, in both directions if x>>1
	opWeather         // skies[x] from now on
	opSettings        // change the setting x>>1 to y
	opDrive           // drive the end as x>>1 says
	opMisc            // see misc
)

var (
	times = [16]uint64{0, 1, 2, 5, 10, 11, 30, 100, 101, 200, 333, 1000, 2000, 5000, 10000, 20000}
	naps  = [16]uint64{0, 1, 5, 10, 50, 100, 500, 1000, 5000, 9999, 10000, 10001, 60000, 600000, 3600000, 86400000}
	skies = [16]weather{
		{}, {delay: 1}, {delay: 10}, {delay: 50}, {delay: 300},
		{delay: 10, loss: 12}, {delay: 30, loss: 64}, {delay: 5, loss: 128}, {loss: 240},
		{delay: 10, jitter: 30}, {delay: 5, jitter: 200, double: 30}, {delay: 100, jitter: 100, loss: 25},
		{double: 128}, {delay: 20, jitter: 60, loss: 50, double: 50}, {delay: 30, recovered: 128}, {delay: 2000, loss: 10},
	}
	starts = [8]uint32{0, 1<<32 - 1, 1<<32 - 100, 1<<32 - 5000, 1<<32 - 60000, 1<<31 - 100, 1<<31 - 30000, 1000}
	mtus   = [8]int{1400, 50, 51, 76, 124, 576, 9000, 65535}
)

// Bounds of one script, so that it takes milliseconds.
const (
	maxScript  = 1024    // bytes
	maxTraffic = 1 << 18 // bytes queued by one end
	maxQueue   = 600     // segments queued by one end at a time
	maxTime    = 600000  // attended milliseconds
)

// newWorld reads the circumstances at the start of a script.
func newWorld(t testing.TB, s *script) *world {
	flags := s.byte()
	clocks := s.byte()
	sky := s.byte()
	w := &world{t: t, now: 1, weather: skies[sky%16], chance: rand.New(rand.NewPCG(uint64(flags), uint64(sky)))}
	w.ends[0] = newEnd(t, "a", starts[clocks%8], 1)
	w.ends[1] = newEnd(t, "b", starts[clocks>>3%8], 2)
	corrupt := flags>>4 == 15
	if corrupt {
		w.weather.flip = 16
	}
	for i, e := range w.ends {
		e.peer, e.corrupt = w.ends[other(i)], corrupt
		e.reading = flags>>(2+i)&1 == 0
		e.stream = flags>>i&1 == 1
		e.k.SetStream(e.stream)
		e.k.SetExtensions(kcp.Extensions{TakePieces: !corrupt, SendPieces: !corrupt && clocks>>6&1 > 0})
		w.budget[i] = maxTraffic
		for setting := range settings {
			if y := s.byte(); y != 0 {
				w.set(e, setting, y)
			}
		}
		e.setDrive(drive(s.byte())%drives, 0)
	}
	return w
}

// settings is how many settings there are; see set.
const settings = 8

// set changes one setting of e.
func (w *world) set(e *end, setting int, y byte) {
	k := e.k
	e.ready = 0 // what has been kept so far was kept by the old setting
	switch setting {
	case 0:
		e.mtu = mtus[y%8]
		e.maxMTU = max(e.maxMTU, e.mtu)
		w.must(k.SetMTU(e.mtu))
	case 1:
		snd := [8]int{32, 1, 2, 3, 8, 128, 300, 1024}[y%8]
		rcv := [8]int{128, 1, 129, 200, 256, 500, 1000, 70000}[y>>3%8]
		w.must(k.SetWindow(snd, rcv))
		e.sndWnd, e.rcvWnd = uint32(snd), max(e.rcvWnd, rcv)
		e.window = max(rcv, 128)
	case 2:
		k.SetNoDelay(kcp.NoDelay(y % 5))
	case 3:
		ms := [8]uint32{100, 10, 11, 20, 40, 33, 1000, 5000}[y%8]
		w.must(k.SetInterval(ms))
		e.interval = max(e.interval, ms)
	case 4:
		k.SetFastResend(uint32(y % 5))
		k.SetFastResendLimit([4]uint32{5, 0, 1, 2}[y>>3%4])
		e.fastResend = e.fastResend || y%5 > 0
	case 5:
		w.setControl(e, y)
	case 6:
		x := kcp.Extensions{StrictRTT: y&1 > 0, FreshFastAck: y&2 > 0, LimitToPeerWindow: y&4 > 0, FreshWindow: y&8 > 0}
		x.MaxRTO = [4]uint32{0, 200, 1000, 60000}[y>>4%4]
		x.MaxProbeWait = [2]uint32{0, 1000}[y>>6%2]
		x.ProbeWait = [4]uint32{0, 1, 200, 9000}[y>>6%4]
		x.TakePieces, x.SendPieces = !e.corrupt, !e.corrupt && y>>4&1 > 0
		e.limited, e.maxRTO = x.LimitToPeerWindow, e.maxRTO || x.MaxRTO > 0
		e.freshWindow = x.FreshWindow
		k.SetExtensions(x)
	case 7:
		w.must(k.SetMinRTO([8]uint32{100, 10, 20, 30, 50, 200, 1000, 5000}[y%8]))
		e.deadLink = [4]uint32{20, 1, 5, 1000}[y>>3%4]
		k.SetDeadLink(e.deadLink)
	}
}

func (w *world) must(err error) {
	if err != nil {
		w.t.Fatal(err)
	}
}

// setControl installs a congestion controller on e.
func (w *world) setControl(e *end, y byte) {
	c := newControl(y)
	e.pacing = c.PacingRate()
	if y%8 < 2 {
		e.pacing = slowestPace // they find a rate of their own
	}
	e.install(e.k, c)
	e.setDrive(e.drive, w.now)
}

// play runs a script.
func play(t testing.TB, data []byte) {
	s := &script{data: data[:min(len(data), maxScript)]}
	w := newWorld(t, s)
	for !s.done() {
		w.perform(s)
	}
	if w.ends[0].corrupt {
		w.run(1000)
		return
	}
	w.finish()
}

// perform does one operation.
func (w *world) perform(s *script) {
	b := s.byte()
	op, x := b&15, b>>4
	i := int(x & 1)
	switch op {
	case opSend:
		w.do(i, func(e *end) { w.send(i, size(e, x>>1)) })
	case opBurst:
		w.do(i, func(*end) {
			for range s.byte() {
				w.send(i, [8]int{1, 0, 3, 10, 26, 100, 500, 1376}[x>>1])
			}
		})
	case opRecv:
		w.do(i, func(e *end) {
			for n := x >> 1; e.recv() && n > 0; n-- {
			}
		})
	case opReading:
		w.ends[i].reading = x>>1&1 == 1
	case opShort:
		w.do(i, (*end).recvShort)
	case opRun, opRunMore:
		if w.now < maxTime {
			w.run(times[x])
		}
	case opSleep:
		nap := naps[x]
		if x == 15 && w.done() && !w.busy() {
			nap += 1 << 31 // nothing is on the way that the clock could lose
		}
		w.moveTo(w.now + nap)
	case opDrop, opDouble, opDelay:
		w.disturb(op, i, int(s.byte()), uint64(x>>1)*50)
	case opBlackout:
		w.links[i].packets = nil
		if x>>1 > 0 {
			w.links[other(i)].packets = nil
		}
	case opWeather:
		flip := w.weather.flip
		w.weather = skies[x]
		w.weather.flip = flip
	case opSettings:
		y := s.byte()
		w.do(i, func(e *end) { w.set(e, int(x>>1), y) })
	case opDrive:
		w.ends[i].setDrive(drive(x>>1)%drives, w.now)
	case opMisc:
		y := byte(0)
		if x>>1 == 7 {
			y = s.byte()
		}
		w.do(i, func(e *end) { w.misc(e, x>>1, y) })
	}
}

// size returns the size of a message of the given class.
func size(e *end, class byte) int {
	mss := e.mtu - headerSize
	return [8]int{0, 1, mss, mss + 1, 5*mss - 1, 30 * mss, 127 * mss, 127*mss + 1}[class]
}

// send queues a message at end i as far as the bounds of a script allow.
func (w *world) send(i, size int) {
	e := w.ends[i]
	if size > w.budget[i] || e.k.WaitSend() > maxQueue {
		return
	}
	w.budget[i] -= size
	e.send(size)
}

// disturb does something to the k-th packet on the way to end i.
func (w *world) disturb(op byte, i, k int, delay uint64) {
	d := &w.links[i]
	if len(d.packets) == 0 {
		return
	}
	k %= len(d.packets)
	p := d.packets[k]
	switch op {
	case opDrop:
		d.remove(k)
	case opDouble:
		d.insert(p)
	case opDelay:
		d.remove(k)
		d.insert(packet{p.data, p.at + delay})
	}
}

// misc is what an application may do besides; none of it does harm.
func (w *world) misc(e *end, choice, y byte) {
	k := e.k
	clock := e.clock(w.now)
	switch choice {
	case 0:
		k.Flush()
	case 1:
		if e.started {
			e.update(w.now)
		}
	case 2:
		k.Compact()
	case 3:
		k.Check(clock + 1<<30)
	case 4:
		k.Flush()
		k.Compact()
	case 5:
		e.input(make([]byte, headerSize-1), false)
	case 6: // another conversation with the highest sn, una and window
		p := make([]byte, headerSize)
		for i := range p {
			p[i] = 0xff
		}
		e.input(p, false)
	case 7: // acknowledges what was never sent, of this conversation
		beyond := [4]uint32{1, 128, 1<<31 - 1, 1 << 31}[y&3]
		e.input(forge(cmdPush+y>>2&3, 0, e.next+far(uint32(y>>4)), e.next+beyond), y&1 == 0)
	}
}

// forge makes a segment without payload of the conversation.
func forge(cmd, frg byte, sn, una uint32) []byte {
	p := make([]byte, headerSize)
	le.PutUint32(p, conversation)
	p[4], p[5] = cmd, frg
	le.PutUint16(p[6:], 128)
	le.PutUint32(p[12:], sn)
	le.PutUint32(p[16:], una)
	return p
}

// FuzzLink runs scripts of operations over two state machines and a hostile
// link between them. Whatever happens on the way, what was sent arrives once,
// in order and with its boundaries, memory stays bounded, no driver spins, and
// once the link is good again all is delivered and both ends fall silent.
func FuzzLink(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) { play(t, data) })
}

// TestLinkSeeds runs random scripts, so that a plain run of the tests tries
// more than the seeds of FuzzLink.
func TestLinkSeeds(t *testing.T) {
	for _, seed := range seeds(t, 300) {
		random := rand.New(rand.NewPCG(seed, 0))
		data := make([]byte, 20+random.IntN(300))
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		if !t.Run(seedName(seed), func(t *testing.T) { play(t, data) }) {
			t.Fatalf("repeat with KCP_SEED=%d", seed)
		}
	}
}
