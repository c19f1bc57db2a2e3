package fuzz_test

import "slices"

// Seeds of FuzzInput. Others are in testdata: circumstances in which KCP libraries have
// failed.

// Operations of an attack, of which the rest of the byte is an argument, and what makes a
// forged packet credible; see rig.forge.
const (
	attackTime, attackSend, attackRead, attackForge = 0, 1, 3, 4
	withUna, withSn                                 = 1 << 3, 1 << 4
)

// strike is an attack operation.
func strike(code, x byte) []byte { return []byte{code | x<<3} }

// forged is a packet that an attack sends, made credible by how and more.
func forged(how, more byte, segments ...[]byte) []byte {
	packet := slices.Concat(segments...)
	return append([]byte{attackForge | how<<3, more, byte(len(packet))}, packet...)
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
