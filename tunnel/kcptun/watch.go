package kcptun

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/arqnet/kcp/internal/fair"
	kcp "github.com/arqnet/kcp/kcpgo"
)

const (
	// answerWait is how long a server may leave a session without an answer until a
	// client says so.
	answerWait = 5 * time.Second
	// keyWait is how often a server looks for packets that its key does not open, and
	// keyPause how long it says nothing more about them.
	keyWait  = time.Second
	keyPause = time.Minute
)

// watchAnswer says if the server does not answer at all: it drops what it cannot read
// without a word.
func watchAnswer(log *slog.Logger, conn *kcp.UDPSession, ended <-chan struct{}) {
	limit := time.NewTimer(answerWait)
	defer limit.Stop()
	select {
	case <-ended:
	case <-limit.C:
		if conn.GetSRTT() == 0 {
			log.Warn("the server does not answer: it is down or out of reach, or key, crypt, datashard or parityshard differ",
				"address", conn.LocalAddr().String())
		}
	}
}

// watchKeys says if packets arrive that the key does not open, until ctx is done.
func watchKeys(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(keyWait)
	defer tick.Stop()
	last, begun := kcp.DefaultSnmp.Copy().InCsumErrors, time.Now()
	var said fair.Limit
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			all := kcp.DefaultSnmp.Copy().InCsumErrors
			if all == last {
				continue
			}
			if _, ok := said.Allow(now.Sub(begun), keyPause, 1); !ok {
				continue
			}
			log.Warn("packets arrive that the key does not open: key or crypt of a client differ, or they are not from a client", "packets", all-last)
			last = all
		}
	}
}

// explained returns why a session has ended, with what the settings may have to do with
// it.
func explained(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "snappy"), strings.Contains(text, "invalid protocol"):
		return text + ": nocomp or smuxver of the other end differ"
	}
	return text
}
