package observe

import (
	"strconv"
	"sync"
	"time"
	"weak"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/stats"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// lossWindow is the least time over which the losses of sessions are taken. A scrape
	// within it has the result of the one before.
	lossWindow = 25 * time.Second
	// lossSegments is how many segments a session must have sent meanwhile: of fewer, a
	// share says nothing.
	lossSegments = 20
)

// lossShares are the values of the label "above".
func lossShares() []float64 { return []float64{0.02, 0.05, 0.1, 0.2} }

// losses are the shares of segments that sessions had to send again. The zero value is
// ready.
type losses struct {
	mu   sync.Mutex
	each map[weak.Pointer[kcp.Endpoint]]*endpointLosses
}

// endpointLosses are the losses of the sessions of an endpoint.
type endpointLosses struct {
	at    time.Time // when the losses were counted
	count map[weak.Pointer[kcp.Conn]]sentCount
	found lossCount
}

// sentCount is what a session had sent.
type sentCount struct{ first, again uint64 }

// lossCount is how many sessions have sent enough, and how many of those lost more than
// each of lossShares.
type lossCount struct {
	sending int
	above   []int
	out, in []int // by what the ends have told each other, of all packets; of each scrape
}

// of returns how many sessions of an endpoint lose much.
func (l *losses) of(e *kcp.Endpoint) lossCount {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.each { // of endpoints that are gone
		if p.Value() == nil {
			delete(l.each, p)
		}
	}
	if l.each == nil {
		l.each = make(map[weak.Pointer[kcp.Endpoint]]*endpointLosses)
	}
	key := weak.Make(e)
	of := l.each[key]
	if of == nil {
		of = new(endpointLosses)
		l.each[key] = of
	}
	now := time.Now()
	due := of.count == nil || now.Sub(of.at) >= lossWindow
	if due {
		of.at = now
	}
	of.take(e, due)
	return of.found
}

// take counts the sessions that lose much. If the time is over, it counts what had to be sent
// again meanwhile, and keeps what they have sent for next time.
func (of *endpointLosses) take(e *kcp.Endpoint, due bool) {
	n, looked, before := len(lossShares()), 0, of.count
	of.found.out, of.found.in = make([]int, n), make([]int, n)
	if due {
		of.count = make(map[weak.Pointer[kcp.Conn]]sentCount)
		of.found.sending, of.found.above = 0, make([]int, n)
	}
	for c := range e.Sessions() {
		if looked == maxRTTs {
			break
		}
		looked++
		st := c.Stats()
		countLoss(of.found.out, st.Sent.Loss)
		countLoss(of.found.in, st.Received.Loss)
		if !due {
			continue
		}
		key, now := weak.Make(c), sentCount{st.SegmentsSent, st.Retransmits() - min(st.SpuriousRetransmits, st.Retransmits())}
		of.count[key] = now
		if before != nil {
			of.found.add(before[key], now)
		}
	}
}

// countLoss counts a session that has lost so much in the last interval.
func countLoss(above []int, l stats.Loss) {
	for i, share := range lossShares() {
		if l.RecentCounted >= lossSegments && l.RecentShare() > share {
			above[i]++
		}
	}
}

// add counts a session.
func (n *lossCount) add(before, now sentCount) {
	first, again := now.first-before.first, uint64(0)
	if now.again > before.again { // it falls when retransmissions turn out to be spurious
		again = now.again - before.again
	}
	if first+again < lossSegments {
		return
	}
	n.sending++
	for i, share := range lossShares() {
		if float64(again) > share*float64(first+again) {
			n.above[i]++
		}
	}
}

func sendingDesc() *prometheus.Desc {
	return prometheus.NewDesc("kcp_sessions_sending", "Sessions among the first 10000 open ones that sent 20 segments or more since the scrape at least 25 seconds before.", []string{"endpoint"}, nil)
}

func lossyDesc() *prometheus.Desc {
	return prometheus.NewDesc("kcp_sessions_lossy", "Sessions of kcp_sessions_sending that had to send more than this share of their segments again.", []string{"endpoint", "above"}, nil)
}

func losingDesc() *prometheus.Desc {
	return prometheus.NewDesc("kcp_sessions_losing", "Sessions among the first 10000 open ones that lost more than this share of all packets, datagrams and ACKs included, in one direction, in the last interval of 20 packets or more.", []string{"endpoint", "direction", "above"}, nil)
}

// collect writes the count of an endpoint.
func (n lossCount) collect(endpoint string, to chan<- prometheus.Metric) {
	to <- prometheus.MustNewConstMetric(sendingDesc(), prometheus.GaugeValue, float64(n.sending), endpoint)
	for i, share := range lossShares() {
		to <- prometheus.MustNewConstMetric(lossyDesc(), prometheus.GaugeValue, float64(n.above[i]), endpoint, strconv.FormatFloat(share, 'f', -1, 64))
	}
	for i, share := range lossShares() {
		above := strconv.FormatFloat(share, 'f', -1, 64)
		to <- prometheus.MustNewConstMetric(losingDesc(), prometheus.GaugeValue, float64(n.out[i]), endpoint, "sent", above)
		to <- prometheus.MustNewConstMetric(losingDesc(), prometheus.GaugeValue, float64(n.in[i]), endpoint, "received", above)
	}
}
