package netsim

import "time"

// Profile is a pair of links with the source of their figures.
type Profile struct {
	Name     string     // one word in lower case
	Source   string     // where the figures come from
	Up, Down LinkConfig // to the server and back
}

// Profiles returns ready-made links.
//
// Those named for places are the calibrated emulators of F. Y. Yan et al.,
// "Pantheon: the training ground for Internet congestion-control research",
// USENIX ATC 2018, fitted to measurements of real paths. There, the rate comes
// from a Poisson process of packets of 1500 bytes; here it is constant. They limit
// the queue of the direction up only, in which the bulk of the data goes.
//
// The satellite has the propagation delay of a geostationary one for stations at
// the edge of its view (RFC 2488, section 2); its rate is left to the user. The
// one named kcp-test is the network of the test program that comes with the C
// reference of KCP.
func Profiles() []Profile {
	const pantheon = "Pantheon (USENIX ATC 2018), "
	measured := func(delay time.Duration, megabits float64, packets int, loss float64) (up, down LinkConfig) {
		down = LinkConfig{Delay: delay, Rate: int64(megabits * 1e6 / 8), Overhead: OverheadIPv4}
		up = down
		up.QueuePackets, up.Loss = packets, loss
		return up, down
	}
	profile := func(name, source string, up, down LinkConfig) Profile { return Profile{name, source, up, down} }
	wifiUp, wifiDown := measured(28*time.Millisecond, 0.57, 14, 0.0477)
	cellularUp, cellularDown := measured(130*time.Millisecond, 3.04, 426, 0)
	wiredUp, wiredDown := measured(51*time.Millisecond, 77.72, 94, 0.0006)
	space := LinkConfig{Delay: 279 * time.Millisecond}
	test := LinkConfig{Delay: 30 * time.Millisecond, Jitter: 32 * time.Millisecond, Loss: 0.05}
	return []Profile{
		profile("wifi-nepal-india", pantheon+"Nepal to AWS India, Wi-Fi", wifiUp, wifiDown),
		profile("cellular-brazil-colombia", pantheon+"AWS Brazil to Colombia, cellular", cellularUp, cellularDown),
		profile("wired-korea-china", pantheon+"AWS Korea to China, wired", wiredUp, wiredDown),
		profile("satellite", "RFC 2488, section 2", space, space),
		profile("kcp-test", "test.cpp of the C reference", test, test),
	}
}
