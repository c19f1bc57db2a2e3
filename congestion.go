package kcp

import "github.com/arqnet/kcp/congestion"

// SetCongestionControl installs and initializes c; nil: congestion.NewReference. A change
// between congestion.NewReference and NewNone keeps the window, as one of nc does in the
// reference.
func (k *KCP) SetCongestionControl(c congestion.Control) { k.m.SetCongestionControl(c) }
