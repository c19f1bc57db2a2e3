package main

import "io"

// Goals are thresholds that are not all reached. -check prints them as it prints
// others, but what is missed of them does not change the exit status: thresholds of
// the suites guard what has been reached.

// goals returns the goals of a suite.
func goals(name string) []threshold {
	switch name {
	case "bulk":
		return []threshold{
			{c: plain, impl: ours, metric: metricGoodput, min: 0.6, of: bareUDP},
			{c: plain, impl: ours, metric: metricCPU, max: 1.7, of: bareUDP},
			{c: aesGCM, impl: ours, metric: metricGoodput, min: 3, of: quicGo},
			{c: overTLS, impl: ours, metric: metricGoodput, min: 3, of: quicGo},
			{c: aesCFB, impl: ours, metric: metricGoodput, min: 1, of: kcpGoAPI},
		}
	case "echo":
		return []threshold{
			{c: "64B", impl: ours, metric: metricP50, max: 1.2, of: kernelTCP},
			{c: "64B", impl: ours, metric: metricP99, max: 1.5, of: kernelTCP},
		}
	case "server":
		return serverGoals()
	case "state":
		return []threshold{{c: "state-1000", impl: stateStreams, metric: metricCPU, max: 1.5, of: stateDatagrams}}
	case "latency":
		return []threshold{
			{c: "kcp-test-redundant", impl: ours, metric: metricP99, max: 150},
			{c: "kcp-test-redundant", impl: ours, metric: metricBytes, max: 1.25, ofCase: "kcp-test"},
		}
	case "streams":
		return []threshold{
			{c: "bursts", impl: ours, metric: "rpc-p99", max: 1, of: quicGo},
			{c: burstsSeeds, impl: ours, metric: "rpc-p99", max: 1, of: quicGo},
		}
	case "links":
		return linksGoals()
	case "paths":
		return pathsGoals()
	}
	return nil
}

// serverGoals are goals of the suite server.
func serverGoals() []threshold {
	return []threshold{
		{c: "pace-100", impl: ours, metric: metricCPU, max: 1.2, of: kernelTCP},
		{c: "pace-1000", impl: ours, metric: metricCPU, max: 1.3, of: kernelTCP},
		{c: "pace-1000", impl: ours, metric: metricP99, max: 1.3, of: kernelTCP},
		{c: "pace-4000", impl: ours, metric: metricRate, min: 0.98 * 80_000},
		{c: "pace-4000", impl: ours, metric: metricP50, max: 10_000},
		{c: "echo-10", impl: ours, metric: metricRate, min: 1, of: kernelTCP},
		{c: "echo-1000", impl: ours, metric: metricRate, min: 0.85, of: kernelTCP},
		{c: "bulk-10", impl: ours, metric: metricGoodput, min: 0.5, of: kernelTCP},
		{c: "bulk-1000", impl: ours, metric: metricGoodput, min: 1500},
		{c: "chatty-100", impl: ours, metric: metricP50, max: 200},
		{c: "chatty-100", impl: ours, metric: metricGoodput, min: 0.8, of: kernelTCP},
		{c: "starved-6", impl: ours, metric: metricP50, max: 4, of: kernelTCP},
		{c: "starved-24", impl: ours, metric: metricRate, min: 0.8, of: kernelTCP},
		{c: "starved-24", impl: ours, metric: metricP50, max: 80_000},
	}
}

// linkShare is the share of payload in a full packet: 1376 bytes of 1428.
const linkShare = 0.964

// linksGoals are goals of the suite links.
func linksGoals() (all []threshold) {
	for _, c := range []string{"100mbit-50ms-loss0", "100mbit-50ms-loss0.1", "100mbit-50ms-loss1", "100mbit-50ms-loss2", "100mbit-50ms-loss5"} {
		limit := linkShare * (1 - linkCases[c].loss)
		all = append(all, threshold{c: c, impl: ours, metric: metricGoodput, min: 0.985 * limit})
	}
	for _, c := range []string{"tbf-1mbit-30s", "tbf-20mbit-30s"} {
		all = append(all, threshold{c: c, impl: ours, metric: metricDropped, max: 0.3})
	}
	for _, c := range []string{"start-loss10", "start-loss20"} {
		all = append(all, threshold{c: c, impl: ours, metric: metricP50, max: 1.2, of: kcpGo})
	}
	return all
}

// pathsGoals are goals of the suite paths.
func pathsGoals() (all []threshold) {
	least := func(metric string, min float64, rows ...string) {
		for _, c := range rows {
			all = append(all, threshold{c: c, impl: ours, metric: metric, min: min})
		}
	}
	most := func(metric string, max float64, rows ...string) {
		for _, c := range rows {
			all = append(all, threshold{c: c, impl: ours, metric: metric, max: max})
		}
	}
	least(metricGoodput, 0.92, "bunches-50ms", "bunches-102ms", "bunches-205ms")
	most(metricResent, 0.005, "bunches-50ms", "bunches-102ms", "bunches-205ms")
	most(metricSent, 1.25, "narrower-100-4", "narrower-20-1")
	most(metricSent, 1.9, "narrower-none-4")
	most(metricSlow, 0.5, "narrower-100-4", "narrower-20-1", "narrower-none-4")
	least(metricGoodput, 0.95, "longer", "deep-0.2mbit", "deep-1mbit", "deep-5mbit")
	least(metricGoodput, 0.85, "varying", "long-200ms-loss1", "stream-200ms-loss1")
	most(metricResent, 0.02, "varying")
	least(metricGoodput, 0.9, "back-256kbit", "long-300ms", "long-600ms", "stream-300ms", "stream-600ms")
	least(metricGoodput, 0.6, "back-64kbit")
	least(metricRatio, 0.33, "before-cubic", "after-cubic", "with-cubic-2bdp")
	most(metricRatio, 3, "before-cubic", "after-cubic", "with-cubic-2bdp")
	most(metricRecovery, 2*50+200, "outage-50ms")
	most(metricRecovery, 2*200+200, "outage-200ms")
	return all
}

// checkGoals prints the goals of s as check does, and returns how many were missed.
func checkGoals(w io.Writer, s *suite, results map[string]series) int {
	return checkAll(w, s, goals(s.name), results)
}
