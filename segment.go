package kcp

// Send queues a copy of p and returns how many bytes of it were taken. In message mode p
// is one message, which may be empty, of at most 127 segments; a longer one is refused
// whole with ErrMessageTooLarge. In stream mode, p first fills up the last waiting
// segment. If the rest needs more than 127 segments, none of it is taken: n < len(p) and
// err is nil, or ErrMessageTooLarge if there was nothing to fill up.
func (k *KCP) Send(p []byte) (n int, err error) { return k.m.Send(p) }

// WaitSend returns the number of segments that wait or are in flight.
func (k *KCP) WaitSend() int { return k.m.WaitSend() }

// SetMTU sets the largest packet in bytes: 50 to 65535, default 1400. Segments already
// queued keep their size.
func (k *KCP) SetMTU(mtu int) error { return k.m.SetMTU(mtu) }

// SetStream chooses between messages (false, the default) and a byte stream.
func (k *KCP) SetStream(on bool) { k.m.SetStream(on) }
