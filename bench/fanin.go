package main

import (
	"errors"
	"slices"
	"strconv"
	"time"
)

// The fanin suite has many clients, each with a socket of its own, send to one
// listening socket as fast as they can. It shows what all together get, and how
// they share it: what the slowest got, as a share of the mean.

const metricSlowest = "slowest"

// faninWindow is small, as a server's with many clients must be: all windows
// together are what may be on its way to one socket.
const (
	faninWindow = 32
	faninBuffer = 64 << 20
)

func init() {
	register(&suite{
		name:    "fanin",
		about:   "clients with a socket each send to one listening socket, windows of 32",
		cases:   []string{"1", "100", "1000"},
		impls:   []string{ours, kcpGo},
		metrics: []metric{{metricGoodput, "MB/s"}, {metricSlowest, "share of the mean"}},
		charts: []chart{
			{name: "goodput", title: "Clients sending to one socket, all together", metric: metricGoodput},
			{name: "slowest", title: "What the slowest of the clients gets", metric: metricSlowest},
		},
		measure: measureFanin,
	})
}

// measureFanin lets all clients send for d.
func measureFanin(c, impl string, d time.Duration) (f figures, err error) {
	clients, err := strconv.Atoi(c)
	if err != nil {
		return nil, err
	}
	p, err := newPeer(impl, settings{mode: plain, window: faninWindow, buffer: faninBuffer})
	if err != nil {
		return nil, err
	}
	all := closers{p}
	defer func() { err = errors.Join(err, all.Close()) }()
	r := newRope()
	var flows []*flow
	for range clients {
		client, server, err := connect(p)
		if err != nil {
			return nil, err
		}
		all = append(all, server, client)
		flows = append(flows, newFlow(streamSource{client}, newStreamSink(server), r))
	}
	before, after, err := watch(flows, d)
	if err != nil {
		return nil, err
	}
	var moved []float64
	sum := 0.0
	for i := range flows {
		moved = append(moved, float64(after.moved[i]-before.moved[i]))
		sum += moved[i]
	}
	return figures{
		metricGoodput: sum / 1e6 / after.at.Sub(before.at).Seconds(),
		metricSlowest: slices.Min(moved) / (sum / float64(clients)),
	}, nil
}
