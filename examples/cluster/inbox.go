package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"slices"

	"github.com/arqnet/kcp"
)

// Bounds on what a Node remembers of others.
const (
	maxSenders   = 4096 // names
	maxInstances = 4    // processes of one name, the latest
	maxReceiving = 4    // streams of one name, also of sessions that have ended
)

// inbox knows which reliable messages of a node have arrived. One stream at a time may
// deliver: the one that has put something into turn.
type inbox struct {
	turn      chan struct{} // of one
	instances []instance    // the latest last; for who has the turn
	receiving int           // Node.mu guards it
}

// instance is a process of a node.
type instance struct {
	id   uint64
	last uint64 // number of the last message that was delivered
}

// deliver puts m into q, unless it was there before, and waits for room.
func (in *inbox) deliver(ctx context.Context, id, number uint64, q *queue, m Message) (duplicate bool, err error) {
	select {
	case in.turn <- struct{}{}:
		defer func() { <-in.turn }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	i := slices.IndexFunc(in.instances, func(x instance) bool { return x.id == id })
	if i < 0 {
		if len(in.instances) == maxInstances {
			in.instances = slices.Delete(in.instances, 0, 1)
		}
		in.instances = append(in.instances, instance{id: id})
		i = len(in.instances) - 1
	}
	if number <= in.instances[i].last {
		return true, nil
	}
	if err := q.put(ctx, m); err != nil {
		return false, err
	}
	in.instances[i].last = number
	return false, nil
}

// enter returns the inbox of a node for one more stream; nil if it has enough.
func (n *Node) enter(from string) *inbox {
	n.mu.Lock()
	defer n.mu.Unlock()
	in := n.inboxes[from]
	if in == nil {
		if len(n.inboxes) >= maxSenders && !n.forgetLocked() {
			return nil
		}
		in = &inbox{turn: make(chan struct{}, 1)}
		n.inboxes[from] = in
	}
	if in.receiving == maxReceiving {
		return nil
	}
	in.receiving++
	return in
}

// forgetLocked forgets a node that is not a member and is sending nothing, and reports
// whether there was one.
func (n *Node) forgetLocked() bool {
	for name, in := range n.inboxes {
		if _, member := n.members[name]; !member && in.receiving == 0 {
			delete(n.inboxes, name)
			return true
		}
	}
	return false
}

func (n *Node) leave(in *inbox) {
	n.mu.Lock()
	defer n.mu.Unlock()
	in.receiving--
}

// receiveMessages takes the messages of a stream, until it breaks.
func (n *Node) receiveMessages(from string, st *kcp.Stream) {
	in := n.enter(from)
	if in == nil {
		n.transport.counters.streamsRefused.Add(1)
		_ = st.Reset(codeBusy) // fails if the session has ended
		return
	}
	defer n.leave(in)
	defer st.Reset(codeBroken)
	var id [8]byte
	if _, err := io.ReadFull(st, id[:]); err != nil {
		return
	}
	for {
		number, b, err := n.readMessage(st)
		if err != nil {
			return
		}
		m := Message{From: from, Data: b, Reliable: true}
		again, err := in.deliver(n.ctx, binary.BigEndian.Uint64(id[:]), number, &n.arrived, m)
		if err != nil {
			return
		}
		if again {
			n.transport.counters.duplicates.Add(1)
		}
		if _, err := st.Write(binary.BigEndian.AppendUint64(nil, number)); err != nil {
			return
		}
	}
}

// readMessage reads one message. Memory grows with what arrives, not with what the
// sender says that it will.
func (n *Node) readMessage(st *kcp.Stream) (number uint64, b []byte, err error) {
	var head [messageHeader]byte
	if _, err := io.ReadFull(st, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[8:])
	if int64(size) > int64(n.config.MaxMessage) {
		n.transport.counters.streamsRefused.Add(1)
		return 0, nil, ErrMessageTooLarge
	}
	var buf bytes.Buffer
	if _, err := io.CopyN(&buf, st, int64(size)); err != nil {
		return 0, nil, err
	}
	return binary.BigEndian.Uint64(head[:]), buf.Bytes(), nil
}
