package tunnel

import "sync"

// sessionQueue is how many packets of all flows of a session may wait to be sent. More
// are dropped, as a full socket does.
const sessionQueue = 256

// packetQueue has the packets of the flows of a session that wait to be sent. One
// goroutine sends them: those that read sockets need small stacks then.
type packetQueue struct {
	account *account
	wake    chan struct{} // has an element if there may be packets

	mu      sync.Mutex
	packets []outgoingPacket
	over    bool
}

// outgoingPacket is a packet that waits to be sent to the other end.
type outgoingPacket struct {
	flow   *flow
	packet []byte
}

// push adds a packet, or drops it.
func (q *packetQueue) push(f *flow, packet []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.over || len(q.packets) >= sessionQueue || !q.account.keepPacket(len(packet)) {
		return
	}
	q.packets = append(q.packets, outgoingPacket{f, packet})
	if len(q.packets) == 1 {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
}

// take returns the packets, which are counted until they are dropped, and has old keep
// the next ones.
func (q *packetQueue) take(old []outgoingPacket) []outgoingPacket {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := q.packets
	q.packets = old[:0]
	return taken
}

// close drops what waits and what comes.
func (q *packetQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.over = true
	for _, p := range q.packets {
		q.account.dropPacket(len(p.packet))
	}
	q.packets = nil
}

// sendPackets sends the packets of all flows, until the session ends.
func (s *session) sendPackets() {
	defer s.outgoing.close()
	var frame []byte
	var packets []outgoingPacket
	for {
		select {
		case <-s.conn.Done():
			return
		case <-s.outgoing.wake:
		}
		packets = s.outgoing.take(packets)
		for i, p := range packets {
			frame = p.flow.transmit(frame, p.packet)
			s.account.dropPacket(len(p.packet))
			packets[i] = outgoingPacket{}
		}
	}
}
