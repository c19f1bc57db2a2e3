// Package observe shows what endpoints of package kcp and their sessions do: to
// Prometheus, and on a page for people. It is a module of its own, so that
// package kcp does not depend on Prometheus.
//
//	var endpoints observe.Endpoints
//	endpoints.Add("game", listener.Endpoint())
//	prometheus.MustRegister(&endpoints)
//	http.Handle("/debug/kcp/", endpoints.Handler())
//
// The page shows addresses of peers, and it has no password. Serve it where only
// operators get at it, as net/http/pprof.
package observe

import (
	"net/http"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/pages"
)

// Endpoints is a set of endpoints to observe. It is a prometheus.Collector. The
// zero value is empty and ready. All methods are safe for concurrent use.
type Endpoints struct {
	set    pages.Set
	losses losses
}

// Add adds an endpoint under a name, which should differ from the names of the
// others: it is the label "endpoint" of its metrics. The function that it
// returns removes the endpoint, which is not done by closing it. To add one that
// is in the set already does nothing, and nor does that function then.
func (s *Endpoints) Add(name string, e *kcp.Endpoint) (remove func()) { return s.set.Add(name, e) }

// NameSessions has f say whose a session is, such as the name of a user who has logged
// in, for the page. An empty string means no name. f is called while somebody looks, at
// any time, and for all sessions if they are filtered: it should be fast.
func (s *Endpoints) NameSessions(f func(c *kcp.Conn) string) { s.set.NameSessions(f) }

// Handler returns the page, with a table of endpoints and sessions, and charts
// of the rate, round-trip time, losses, window and queue of one of them. Mount
// it at a path that ends in a slash. It loads nothing from elsewhere.
//
// Requests are refused (421) unless their host is an IP address, localhost or one
// of hosts, without port: somebody else may have a name that resolves to this
// server (DNS rebinding).
//
// The figures behind it are JSON under the name stats.json beside the page, with
// the parameters sort (rate, rtt, sent, received, retransmits, inflight, queue,
// held or drops; the largest first), n (sessions, up to 500; 50 by default),
// offset, q (part of an address, conversation id or name) and session (the id of one
// session to show in full).
//
// All requests share a snapshot of the sessions, which is taken at most every
// 0.4 s, and rarer if there are so many sessions that a tenth of a processor
// would not do. A session costs about 300 bytes while somebody looks.
func (s *Endpoints) Handler(hosts ...string) http.Handler { return s.set.Handler(hosts...) }
