package kcp

import "github.com/arqnet/kcp/congestion"

// SetCongestionControl installs and initializes c; nil: congestion.NewReference. A change
// between that and congestion.NewNone keeps the window, as in the reference.
func (k *KCP) SetCongestionControl(c congestion.Control) { k.m.SetCongestionControl(c) }
