package fuzz_test

import "slices"

// The seeds of the fuzz targets: scripts of circumstances in which KCP libraries
// have failed.

// endSetup is how a link script sets up one end: the values of set, 0 leaving
// the default, and how the end is driven.
type endSetup struct {
	mtu, windows, nodelay, interval, resend, control, extensions, minRTO byte
	drive                                                                drive
}

func (e endSetup) bytes() []byte {
	return []byte{e.mtu, e.windows, e.nodelay, e.interval, e.resend, e.control, e.extensions, e.minRTO, byte(e.drive)}
}

// Flags at the start of a link script.
const (
	streamBoth = 3
	unread     = 3 << 2
	corrupting = 15 << 4
)

// linkScript assembles a script for FuzzLink with two equal ends.
func linkScript(flags, clocks, sky byte, both endSetup, operations ...[]byte) []byte {
	return slices.Concat([]byte{flags, clocks, sky}, both.bytes(), both.bytes(), slices.Concat(operations...))
}

// op is an operation with the end or direction i, and its other arguments.
func op(code, i, x byte, y ...byte) []byte {
	return append([]byte{code | i<<4 | x<<5}, y...)
}

// wait lets times[x] pass.
func wait(x byte) []byte { return []byte{opRun | x<<4} }

// sleep lets naps[x] pass unattended.
func sleep(x byte) []byte { return []byte{opSleep | x<<4} }

// under changes the weather to skies[x].
func under(x byte) []byte { return []byte{opWeather | x<<4} }

// Settings of frequent use.
var (
	fastest = endSetup{nodelay: 3, interval: 1, resend: 1, control: 2, windows: 5, drive: byFlush}
	session = endSetup{nodelay: 2, interval: 1, resend: 2, control: 1, windows: 6, extensions: 0xff, drive: bySource}
	checked = endSetup{nodelay: 2, interval: 3, drive: byCheck}
	ticking = endSetup{interval: 1, control: 2, drive: byTick}
)

// linkSeeds are the seeds of FuzzLink.
func linkSeeds() [][]byte {
	return append(transferSeeds(), disturbanceSeeds()...)
}

// transferSeeds move data under all kinds of settings.
func transferSeeds() [][]byte {
	tiny := endSetup{mtu: 1, windows: 1, interval: 1, control: 2, drive: byFlush}
	wide := endSetup{windows: 7 | 7<<3, interval: 1, control: 2, drive: bySource}
	limited := endSetup{mtu: 1, windows: 5, interval: 1, control: 2, extensions: 4, drive: byCheck}
	pace := endSetup{control: 4, windows: 6, interval: 1, drive: byFlush}
	return [][]byte{
		// Empty messages between others, and nothing but empty ones.
		linkScript(0, 0, 1, endSetup{}, op(opSend, 0, 0), op(opSend, 0, 1), op(opBurst, 0, 1, 40), wait(9), op(opSend, 0, 3), op(opSend, 1, 0)),
		linkScript(unread, 0, 2, session, op(opBurst, 0, 1, 200), wait(11), op(opRecv, 1, 7), op(opShort, 1, 0), op(opRecv, 1, 7)),
		// The longest message, and one too long, through small windows, to a
		// reader who takes his time.
		linkScript(unread, 0, 2, tiny, op(opSend, 0, 6), op(opSend, 0, 7), op(opSend, 0, 6), wait(12), op(opRecv, 1, 0), wait(12), op(opRecv, 1, 0)),
		linkScript(unread, 0, 5, limited, op(opSend, 0, 6), wait(9), op(opSend, 0, 6), op(opSend, 0, 5), wait(11), op(opReading, 1, 1)),
		// Windows beyond what the wire can say.
		linkScript(unread, 0, 3, wide, op(opBurst, 0, 2, 255), op(opBurst, 0, 2, 255), wait(11), op(opReading, 1, 1)),
		// Many small segments over a long pipe.
		linkScript(0, 0, 4, fastest, op(opBurst, 0, 4, 255), wait(8), op(opBurst, 0, 4, 255), wait(10), op(opBurst, 1, 4, 255)),
		linkScript(0, 0, 4, endSetup{}, op(opBurst, 0, 7, 150), wait(13), op(opBurst, 0, 7, 30)),
		// Pacing.
		linkScript(0, 0, 2, pace, op(opBurst, 0, 7, 60), wait(9), op(opBurst, 1, 7, 60)),
		linkScript(0, 0, 2, endSetup{control: 6, drive: byCheck}, op(opBurst, 0, 6, 10), wait(13), op(opBurst, 1, 3, 20)),
		// Pacing must not starve while the peer keeps talking.
		linkScript(0, 0, 2, endSetup{mtu: 4, control: 4, windows: 6, interval: 1, drive: bySource}, slices.Repeat(slices.Concat(op(opBurst, 0, 5, 30), op(opBurst, 1, 0, 2), wait(2)), 60)),
		// Streams fill up segments, also when the MTU changes in between.
		linkScript(streamBoth, 0, 1, fastest, op(opBurst, 0, 3, 100), op(opSettings, 0, 0, 1), op(opSend, 0, 4), wait(5), op(opSettings, 0, 0, 5), op(opSend, 0, 7), op(opSend, 0, 5)),
		linkScript(streamBoth|unread, 0, 9, ticking, op(opSend, 1, 6), op(opSend, 1, 1), wait(11), op(opRecv, 0, 7), op(opShort, 0, 0)),
		// Memory is given back in the middle of a transfer.
		linkScript(0, 0, 5, session, op(opSend, 0, 5), op(opMisc, 0, 2), wait(6), op(opMisc, 1, 4), op(opSend, 1, 5), wait(6), op(opMisc, 0, 4), op(opMisc, 1, 2)),
		// Other controllers and drivers from one moment to the next.
		linkScript(0, 0, 1, session, op(opSend, 0, 4), wait(11), op(opSettings, 0, 5, 0), op(opSend, 0, 4), wait(9), op(opSettings, 0, 5, 4), op(opSend, 0, 4)),
		// A controller with slow start, while data waits and none is in flight.
		linkScript(0, 0, 1, session, op(opSend, 0, 4), wait(11), op(opSettings, 0, 5, 7), op(opSend, 0, 4), wait(9), op(opSettings, 0, 5, 15), op(opSend, 0, 7)),
		linkScript(0, 0, 5, checked, op(opSend, 0, 4), op(opDrive, 0, 3), wait(5), op(opSend, 0, 4), op(opDrive, 0, 1), wait(5), op(opSend, 0, 4), op(opDrive, 0, 2), op(opDrive, 1, 2)),
	}
}

// disturbanceSeeds lose, repeat and hold up what is on the way.
func disturbanceSeeds() [][]byte {
	return [][]byte{
		// Losses without fast resend, and with it.
		linkScript(0, 0, 6, ticking, op(opBurst, 0, 2, 100), wait(11), op(opBurst, 1, 2, 100), wait(12)),
		linkScript(0, 0, 6, fastest, op(opBurst, 0, 2, 100), wait(6), op(opDrop, 1, 0, 0), op(opDouble, 1, 0, 3), wait(9), op(opBurst, 0, 2, 50)),
		linkScript(0, 0, 1, fastest, op(opSend, 0, 4), op(opDrop, 1, 0, 0), wait(2), op(opDrop, 0, 0, 1), wait(9), op(opSend, 0, 4), op(opDelay, 1, 7, 0), wait(9)),
		linkScript(0, 0, 13, session, op(opBurst, 0, 3, 80), wait(9), op(opBurst, 1, 3, 80), wait(11)),
		// The peer is gone for a while, until the back-off is long.
		linkScript(0, 0, 1, endSetup{}, op(opSend, 0, 4), op(opSend, 1, 4), under(8), wait(15), wait(15), op(opBlackout, 0, 1), wait(15), op(opBlackout, 0, 1)),
		linkScript(0, 0, 1, session, op(opSend, 0, 4), under(8), wait(15), op(opBlackout, 0, 1), wait(15), op(opBlackout, 1, 0)),
		linkScript(0, 0, 7, endSetup{minRTO: 8, drive: byFlush}, op(opSend, 0, 4), wait(11)),
		// Both clocks cross 2^32, or 2^31, in mid-transfer.
		linkScript(0, 1|2<<3, 6, fastest, op(opBurst, 0, 3, 100), wait(9), op(opBurst, 1, 3, 100), wait(11)),
		linkScript(0, 3|4<<3, 13, checked, op(opBurst, 0, 3, 100), wait(13), op(opBurst, 1, 3, 100), wait(13)),
		linkScript(streamBoth, 5|6<<3, 6, session, op(opBurst, 0, 3, 100), wait(9), op(opBurst, 1, 3, 100), wait(15)),
		// The clock takes steps while data is on the way.
		linkScript(0, 0, 2, endSetup{}, op(opSend, 0, 5), wait(4), sleep(8), op(opSend, 0, 5), wait(4), sleep(10), wait(4), sleep(14), op(opSend, 1, 5), wait(9), sleep(15)),
		linkScript(0, 2, 6, session, op(opSend, 0, 5), wait(4), sleep(8), wait(4), sleep(14), op(opSend, 1, 5), wait(9), sleep(15)),
		linkScript(0, 1, 2, checked, op(opSend, 0, 5), sleep(9), wait(4), sleep(11), op(opSend, 1, 5), wait(9), sleep(10)),
		// Packets that error correction has recovered.
		linkScript(0, 0, 14, session, op(opBurst, 0, 5, 60), wait(11), op(opBurst, 1, 5, 60), wait(9)),
		// Segments time out between two intervals of Update.
		linkScript(0, 0, 7, checked, op(opBurst, 0, 2, 20), wait(13), op(opBurst, 1, 2, 20), wait(13)),
		linkScript(0, 0, 6, endSetup{nodelay: 2, interval: 6, drive: byCheck}, op(opBurst, 0, 2, 20), wait(13), op(opBurst, 1, 2, 20), wait(13)),
		// The window shuts, and what opens it is lost.
		linkScript(unread, 0, 2, fastest, op(opBurst, 0, 2, 250), wait(11), op(opBurst, 0, 2, 50), wait(11), op(opRecv, 1, 7), op(opBlackout, 0, 1), wait(14), op(opReading, 1, 1), op(opBlackout, 0, 1)),
		linkScript(unread, 0, 2, ticking, op(opBurst, 0, 2, 250), wait(11), op(opBurst, 0, 2, 50), wait(15), op(opRecv, 1, 7), op(opBlackout, 0, 1), wait(15)),
		// The receive window shrinks below what is on the way.
		linkScript(unread, 0, 3, session, op(opBurst, 0, 2, 255), op(opSettings, 1, 1, 6<<3), wait(7), op(opBurst, 0, 2, 255), wait(7), op(opSettings, 1, 1, 1<<3), wait(9)),
		// Packets of another conversation, short ones, forged ones.
		linkScript(0, 0, 1, fastest, op(opSend, 0, 4), op(opMisc, 0, 5), op(opMisc, 0, 6), op(opMisc, 0, 7, 0), wait(4), op(opMisc, 1, 6), op(opMisc, 1, 7, 3), op(opMisc, 0, 7, 2|1<<4), op(opSend, 1, 4)),
		// Bits change on the way.
		linkScript(corrupting, 0, 5, fastest, op(opBurst, 0, 2, 250), wait(9), op(opBurst, 1, 2, 250), wait(9), op(opSend, 0, 6), wait(11)),
		linkScript(corrupting|streamBoth, 1, 9, session, op(opBurst, 0, 2, 250), wait(9), op(opBurst, 1, 2, 250), wait(9), op(opSend, 0, 6), wait(11)),
	}
}

// Operations of an attack; the rest of the byte is an argument.
const (
	attackTime = iota
	attackSend
	attackPeerSend
	attackRead
	attackForge
)

// What makes a forged packet credible; see rig.forge.
const (
	withConv = 1 << iota
	withCmd
	withLen
	withUna
	withSn
)

// strike is an attack operation.
func strike(code, x byte) []byte { return []byte{code | x<<3} }

// forged is a packet that an attack sends, made credible by how and more.
func forged(how, more byte, segments ...[]byte) []byte {
	packet := slices.Concat(segments...)
	return append([]byte{attackForge | how<<3, more, byte(len(packet))}, packet...)
}

// odd is a segment with a size that need not be that of its payload.
func odd(cmd, frg byte, sn, una, size uint32, payload string) []byte {
	b := forge(cmd, frg, sn, una)
	le.PutUint32(b[20:], size)
	return append(b, payload...)
}

// foreign is a segment of another conversation.
func foreign(b []byte) []byte {
	b = slices.Clone(b)
	b[0]++
	return b
}

// running is data in flight in both directions.
func running(flags, more byte) []byte {
	return slices.Concat([]byte{flags, more}, strike(attackSend, 20), strike(attackPeerSend, 20),
		strike(attackTime, 9), strike(attackSend, 3), strike(attackTime, 9))
}

// inputSeeds are the seeds of FuzzInput.
func inputSeeds() [][]byte {
	settle := slices.Concat(strike(attackTime, 12), strike(attackRead, 0), strike(attackTime, 12))
	var all [][]byte
	add := func(flags, more byte, parts ...[]byte) {
		all = append(all, slices.Concat(running(flags, more), slices.Concat(parts...), settle))
	}
	for _, flags := range []byte{0x80, 0xc1, 0x8a, 0x5c} {
		// No payload, alone and in front of data.
		add(flags, 0, forged(withSn, 0, odd(cmdPush, 0, 0, 0, 0, "")), forged(withSn, 32, odd(cmdPush, 0, 1, 0, 0, ""), odd(cmdPush, 0, 2, 0, 3, "abc")))
		// A len beyond the packet, or beyond an int.
		for _, size := range []uint32{1, 0x7fffffff, 0x80000000, 0xffffffff} {
			add(flags, 0, forged(0, 0, odd(cmdPush, 0, 0, 0, size, "")), forged(withSn, 2, odd(cmdPush, 0, 0, 0, 0, ""), odd(cmdAck, 0, 0, 0, size, "")))
		}
		// Acknowledges what was never sent, near and far.
		for _, una := range []uint32{0, 1, 2, 1000, 0x7fffffff, 0x80000000, 0x80000001, 0xffffffff} {
			add(flags, 0, forged(0, 32, forge(cmdWins, 0, 0, una)), forged(0, 32, forge(cmdAck, 0, una-1, una)))
		}
		// The middle of a message, alone; far sequence numbers.
		add(flags, 0, forged(withSn, 32, odd(cmdPush, 255, 0, 0, 4, "part")))
		add(flags, 0, forged(0, 0, forge(cmdPush, 0, 0x7fffffff, 0)), forged(0, 32, forge(cmdPush, 0, 0xffffffff, 0)))
		// Another conversation; short datagrams; unknown commands.
		add(flags, 0, forged(0, 0, foreign(odd(cmdPush, 0, 0, 0, 1, "x"))), forged(0, 2, forge(cmdWask, 0, 0, 0), foreign(forge(cmdAck, 0, 0, 0))))
		add(flags, 0, forged(0, 0), forged(0, 0, forge(cmdPush, 0, 0, 0)[:23]), forged(0, 0, forge(80, 0, 0, 0)), forged(0, 0, forge(85, 0, 0, 0)))
		// Acknowledgements repeated, and recovered ones.
		add(flags, 0x08, forged(withUna|withSn, 8|2, forge(cmdAck, 0, 3, 3), forge(cmdAck, 0, 4, 3), forge(cmdAck, 0, 5, 3)), forged(withSn, 4, odd(cmdPush, 0, 0, 0, 1, "r")))
		// Pieces: of one segment in two cuts, that contradict each other, that
		// are whole by themselves, and bad ones.
		part := func(sn uint32, at, size byte, payload string) []byte {
			return odd(cmdPiece, 0, sn, 0, uint32(4+len(payload)), string([]byte{at, 0, size, 0})+payload)
		}
		add(flags, 0, forged(withSn, 32|2, part(0, 0, 9, "abc"), part(0, 3, 9, "def"), part(0, 2, 9, "cdef"), part(0, 6, 9, "ghi")))
		add(flags, 0, forged(withSn, 2, part(1, 0, 9, "abc")), forged(withSn, 32|2, part(1, 3, 8, "def"), part(1, 3, 9, "x")), forged(withSn, 32, part(0, 0, 2, "ok")))
		add(flags, 0, forged(withSn, 32, part(0, 1, 200, "x")), forged(withSn, 32, part(0, 9, 9, "x")), forged(withSn, 32|2, part(0, 0, 5, "ab"), odd(cmdPush, 0, 0, 0, 1, "x"), part(0, 2, 5, "cde")))
		add(flags, 4, forged(withSn, 4|32|2, part(200, 0, 5, "far"), part(0, 0, 5, "ab"), part(0, 2, 5, "cde"), part(0, 0, 5, "again")))
		// Probes, a window shut by a forger, and opened again.
		add(flags, 0, forged(0, 2|32, forge(cmdWask, 1, 0, 0), forge(cmdWask, 0, 0, 0), forge(cmdWins, 9, 0, 0)), forged(0, 0, odd(cmdWins, 0, 0, 0, 0, "")[:24]), strike(attackTime, 31))
	}
	all = append(all, fragmentSeed(64, 150), fragmentSeed(199, 200), fragmentSeed(127, 64))
	return append(all, criticalSeeds()...)
}

// criticalSeeds have una, sn and ts at each critical distance from what is
// plausible, in segments of each command, in each state of the sender.
func criticalSeeds() (all [][]byte) {
	shut := forge(cmdWins, 0, 0, 0)
	le.PutUint16(shut[6:], 0) // wnd
	states := [][]byte{
		nil, // nothing sent
		slices.Concat(strike(attackSend, 20), strike(attackTime, 0)),                                                 // in flight
		slices.Concat(strike(attackSend, 20), strike(attackTime, 31), strike(attackTime, 31)),                        // all acknowledged
		slices.Concat(strike(attackSend, 20), strike(attackTime, 31), strike(attackTime, 31), strike(attackRead, 1)), // and memory given back
		slices.Concat(forged(0, 0, shut), strike(attackSend, 30), strike(attackTime, 0)),                             // waiting for a window
	}
	for _, flags := range []byte{0x80, 0xc1, 0x8a, 0x5c} {
		for _, state := range states {
			for cmd := byte(cmdPush); cmd <= cmdStreamPiece; cmd++ {
				script := slices.Concat([]byte{flags, 0}, state)
				for i := range uint32(len(critical)) {
					const now = 1 // makes una what was sent, and no more
					for _, s := range [][]byte{forge(cmd, 0, 0, i<<8|now), forge(cmd, 0, i<<8, now)} {
						le.PutUint32(s[8:], i<<8) // ts
						if cmd == cmdPiece {
							s = append(s, 0, 0, 1, 0, 'p')
							le.PutUint32(s[20:], 5)
						}
						script = append(script, forged(withUna|withSn, 8|32, s)...)
					}
				}
				all = append(all, slices.Concat(script, strike(attackTime, 12), strike(attackRead, 0)))
			}
		}
	}
	return all
}

// fragmentSeed sends count fragments with frg counting down from the given
// value, or, where it is 64, not at all: a message that never ends, one
// that is longer than the window, and the first half of one.
func fragmentSeed(frg byte, count int) []byte {
	script := []byte{0x80, 0}
	for sn := range count {
		s := odd(cmdPush, frg, uint32(sn), 0, 1, "x")
		if frg != 64 {
			s[5] -= byte(sn)
		}
		script = append(script, forged(0, 2, s)...)
	}
	return slices.Concat(script, strike(attackTime, 9), strike(attackRead, 0), strike(attackTime, 9))
}
