package protect

import "sync/atomic"

// ToldKeys are the keys of the stateless resets of a session's ends.
type ToldKeys struct {
	Ours   *ToldKey                // as told to the peer; nil: not told, or not for its present address
	Theirs atomic.Pointer[ToldKey] // of the peer; nil: not known
}

// ToldKey is a key of stateless resets.
type ToldKey struct {
	ResetKey
	Since uint32 // resets made up to then do not count; seconds on the clock of the end that makes them
}

// By reports whether a packet that did not open is a stateless reset of the peer.
// It needs no lock.
func (r *ToldKeys) By(packet []byte) bool {
	k := r.Theirs.Load()
	return k != nil && k.Opens(packet, k.Since)
}
