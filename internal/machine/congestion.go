package machine

import "github.com/arqnet/kcp/congestion"

// What the controller of package congestion sees of the state machine.

// congestionState returns the controller's view of k, brought up to date.
func (k *KCP) congestionState() *congestion.State {
	if k.snd.ccState == nil {
		k.snd.ccState = new(congestion.State)
	}
	s := k.snd.ccState
	s.Now = uint32(k.clock.now)
	s.MSS = k.cfg.mss
	s.Micros = k.clock.micros
	s.InFlight = int(k.snd.nxt - k.snd.una)
	s.Outstanding = k.snd.inFlight
	s.FlightBytes = k.snd.flightBytes
	s.SendWindow = int(k.cfg.sndWnd)
	s.RemoteWindow = int(k.peer.wnd)
	s.FastResend = int(k.cfg.fastResend)
	s.SRTT = uint32(k.snd.rtt.srtt)
	s.RTO = k.snd.rtt.rto
	s.Delivered, s.DeliveredAt = k.snd.rate.Delivered, k.snd.rate.DeliveredAt
	s.Lost, s.LostSent = k.snd.rate.Lost, k.snd.rate.LostSent
	return s
}
