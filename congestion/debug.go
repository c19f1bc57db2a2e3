package congestion

import (
	"fmt"
	"os"
)

var debugOn = os.Getenv("CCDEBUG") != ""

func (c *bbrControl) debug(what string) {
	if debugOn {
		fmt.Printf("%9.3f %s state %d bw %.2f/%.2f Mbit/s recent %.2f minRTT %d cwnd %.0f rate %.2f full %v longer %d loaded %d agg %.0f floor %.3f lo %.0f hi %.0f\n", float64(c.now)/1e6, what, c.state, c.maxRate()*8/1e6, c.bwLo*8/1e6, c.change.recent()*8/1e6, c.minRTT, c.cwnd/c.mss, c.rate*8/1e6, c.full, c.change.longer, c.change.loaded, c.aggregated()/c.mss, c.lossFloor, c.inflightLo, c.inflightHi)
	}
}
