package fuzz_test

import "slices"

// The seeds of FuzzInput: circumstances in which KCP libraries have failed. Those of
// FuzzLink are in testdata.

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
