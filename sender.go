package kcp

// Send queues p, copying it, and returns how many bytes it took. In message
// mode p is one message, which may be empty and is split into at most 127
// fragments; beyond that it is refused whole with ErrMessageTooLarge. In
// stream mode p first fills up the last waiting segment, and what does not fit
// into 127 further ones is not taken: n < len(p), or ErrMessageTooLarge where
// nothing was taken.
func (k *KCP) Send(p []byte) (n int, err error) {
	if k.stream {
		n = k.extendTail(p)
		p = p[n:]
		if len(p) == 0 {
			return n, nil
		}
	}
	mss := k.segmentSize(len(p))
	count := max(1, (len(p)+mss-1)/mss)
	first := mss
	if k.validation != nil && k.sndUna == k.sndEnd && count < k.fragmentLimit() {
		first = min(mss, k.firstSize(len(p)))
		count = 1 + (max(len(p)-first, 0)+mss-1)/mss
	}
	if count > k.fragmentLimit() {
		if n > 0 {
			return n, nil
		}
		return 0, ErrMessageTooLarge
	}
	k.snd.reserve(k.sndUna, int(k.sndEnd-k.sndUna)+count)
	for i := range count {
		size := min(len(p), mss)
		if i == 0 {
			size = min(size, first)
		}
		room := size
		if k.stream && count > 1 {
			room = mss // more is likely to follow
		}
		s := k.buffers.getSegment()
		s.buf = k.buffers.get(k.headroom + room)
		s.data = s.buf[k.headroom:][:size]
		copy(s.data, p)
		if !k.stream {
			s.frg = uint8(count - i - 1)
		}
		k.snd.set(k.sndEnd, s)
		k.sndEnd++
		k.sndBytes += size
		p = p[size:]
		n += size
	}
	return n, nil
}

// extendTail fills up the last waiting segment and returns how much it took.
func (k *KCP) extendTail(p []byte) int {
	if k.sndEnd == k.sndNxt {
		return 0
	}
	s := k.snd.at(k.sndEnd - 1)
	old, limit := len(s.data), k.mss
	if k.sndEnd-1 == k.sndUna {
		limit = k.firstSize(old + len(p))
	}
	if old >= limit {
		return 0
	}
	n := min(len(p), limit-old)
	s.buf = k.buffers.grow(s.buf, k.headroom+old+n)
	s.data = s.buf[k.headroom:][:old+n]
	copy(s.data[old:], p[:n])
	s.frg = 0
	k.sndBytes += n
	return n
}

// fragmentLimit returns how many segments one Send may queue.
func (k *KCP) fragmentLimit() int {
	if k.ext.LimitToPeerWindow && !k.stream && k.rmtWndMax > 0 {
		return int(min(maxFragments, k.rmtWndMax))
	}
	return maxFragments
}

// WaitSend returns the number of segments that are waiting or in flight.
func (k *KCP) WaitSend() int { return k.inFlight + int(k.sndEnd-k.sndNxt) }

// ackBelow takes every segment below una as acknowledged.
func (k *KCP) ackBelow(una seq) {
	for k.sndUna.before(una) {
		if s := k.snd.at(k.sndUna); s != nil {
			if s.xmit > 1 {
				k.recordRetransmit(s)
			}
			k.dropAcked(s, false)
		}
		k.sndUna++
	}
	k.advanceUna()
}

// advanceUna moves snd_una to the first segment that is not acknowledged.
func (k *KCP) advanceUna() {
	for k.sndUna != k.sndNxt && k.snd.at(k.sndUna) == nil {
		k.sndUna++
	}
}

// dropAcked releases the acknowledged segment s. last says that its last
// transmission is known to have arrived.
func (k *KCP) dropAcked(s *sendSegment, last bool) {
	k.rate.acked(s, k.micros, last)
	k.blackHole.arrived(int(s.packet))
	k.cc.OnPacketAcked(k.lastState(), s.info())
	k.timeouts.remove(s)
	if s.list == &k.loss.due {
		k.notLost(s)
	}
	s.unlinkOrder()
	k.snd.set(s.sn, nil)
	k.inFlight--
	k.flightBytes -= int64(s.size())
	k.sndBytes -= len(s.data)
	k.buffers.putSegment(s)
}

func (s *sendSegment) info() SegmentInfo {
	return SegmentInfo{
		SN:            uint32(s.sn),
		Size:          s.size(),
		Sent:          uint32(s.ts),
		SentMicros:    s.tx.at,
		Transmissions: int(s.xmit),
	}
}

// notifyAcked tells the congestion controller what an input has acknowledged,
// before which snd_una was una.
func (k *KCP) notifyAcked(una seq) {
	if k.rate.sample.Acked == 0 {
		return
	}
	grain := int64(1000)
	if k.fineClock {
		grain = 1
	}
	k.rate.finish(grain)
	s := k.congestionState()
	s.UnaMoved, s.Sample = k.sndUna.after(una), k.rate.sample
	k.notifyRecovered(s)
	k.cc.OnAck(s)
}

// transmission names one sending of a segment.
type transmission struct {
	sn   seq
	xmit uint32
}

// oldest returns the first segment in flight; nil if there is none.
func (k *KCP) oldest() *sendSegment {
	if k.sndUna == k.sndNxt {
		return nil
	}
	return k.snd.at(k.sndUna)
}

// silentTransmissions returns how often the oldest segment in flight was sent
// since the last good packet from the peer.
func (k *KCP) silentTransmissions() int {
	s := k.oldest()
	if s == nil {
		return 0
	}
	if s.sn == k.lastAlive.sn {
		return int(s.xmit - k.lastAlive.xmit)
	}
	return int(s.xmit)
}

// discardSend drops everything that waits to be sent or acknowledged, for a
// peer that does not want it any more.
func (k *KCP) discardSend() {
	k.ackBelow(k.sndNxt)
	for sn := k.sndNxt; sn != k.sndEnd; sn++ {
		s := k.snd.at(sn)
		k.sndBytes -= len(s.data)
		k.buffers.putSegment(s)
		k.snd.set(sn, nil)
	}
	k.sndEnd = k.sndNxt
}
