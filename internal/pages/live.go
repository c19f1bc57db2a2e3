// Package pages has pages for browsers with charts, and figures behind them as JSON: of
// endpoints and sessions while they run, and of a trace. They need nothing from elsewhere.
package pages

import (
	_ "embed"
	"encoding/json"
	"html/template"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/arqnet/kcp"
)

//go:embed live.html
var livePage string

//go:embed live.js
var liveScript string

// Set is the endpoints that are shown. The zero value is empty. Its methods are
// safe for concurrent use.
type Set struct {
	mu        sync.Mutex // guards the fields below
	endpoints []Named
	next      int                    // number of the next endpoint
	nameOf    func(*kcp.Conn) string // of sessions; nil: they have no names

	cache snapshots
}

// Named is an endpoint with its name.
type Named struct {
	Name     string
	Endpoint *kcp.Endpoint
	number   int
}

// Add adds an endpoint under a name, and returns a function that removes it. An
// endpoint that is there already gets no second entry, and the function does
// nothing.
func (s *Set) Add(name string, e *kcp.Endpoint) (remove func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(s.endpoints, func(n Named) bool { return n.Endpoint == e }) {
		return func() {}
	}
	number := s.next
	s.next++
	s.endpoints = append(s.endpoints, Named{name, e, number})
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.endpoints = slices.DeleteFunc(s.endpoints, func(n Named) bool { return n.number == number })
	}
}

// NameSessions has f name the sessions. An empty string means no name.
func (s *Set) NameSessions(f func(*kcp.Conn) string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nameOf = f
}

// namer returns what names the sessions.
func (s *Set) namer() func(*kcp.Conn) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nameOf == nil {
		return func(*kcp.Conn) string { return "" }
	}
	return s.nameOf
}

// All returns the endpoints in the order in which they were added.
func (s *Set) All() []Named {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.endpoints)
}

// Bounds of a request.
const (
	defaultRows = 50
	maxRows     = 500
	maxFilter   = 64 // bytes
)

// Handler serves the page, and under the name stats.json beside it the figures.
// So it may be mounted anywhere, at a path that ends in a slash.
//
// Requests are checked by Only.
func (s *Set) Handler(hosts ...string) http.Handler { return Only(http.HandlerFunc(s.serve), hosts...) }

// Only passes to h the requests that name an IP address, localhost or one of hosts as
// their host. Else the page of a stranger in the browser of somebody who reaches this
// server could read what h serves, once the stranger's name resolves to the server's
// address (DNS rebinding).
func Only(h http.Handler, hosts ...string) http.Handler {
	hosts = append([]string{"localhost"}, hosts...)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !names(r.Host, hosts) {
			http.Error(w, "this page is served only under IP addresses, localhost and the names given to its server", http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// names reports whether the host of a request is an IP address or one of hosts,
// with any port.
func names(host string, hosts []string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	} else if strings.HasPrefix(host, "[") {
		host = strings.TrimSuffix(host[1:], "]")
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	host = strings.TrimSuffix(host, ".")
	return host != "" && slices.ContainsFunc(hosts, func(h string) bool { return strings.EqualFold(h, host) })
}

// serve answers a request that names this server.
func (s *Set) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/stats.json"):
		s.serveStats(w, r)
	case strings.HasSuffix(path, "/") || path == "":
		s.servePage(w)
	default:
		http.NotFound(w, r)
	}
}

// servePage serves the page. The policy forbids it to load anything but the
// figures.
func (s *Set) servePage(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	_ = template.Must(template.New("live").Parse(livePage)).Execute(w, map[string]any{ // the client may be gone
		"License": template.HTML("<!--\n" + PlotLicense + "-->"),
		"Style":   template.CSS(PlotStyle),
		"Charts":  template.JS(PlotScript),
		"Script":  template.JS(liveScript),
	})
}

// request is what stats.json was asked for.
type request struct {
	sort     string
	rows     int
	offset   int
	filter   string // part of the peer's address, of the conversation id, or of the session's or endpoint's name
	selected string // id of a session
}

// parse reads a request; ok is false if something is not as it must be.
func parse(r *http.Request) (q request, ok bool) {
	v := r.URL.Query()
	q = request{sort: v.Get("sort"), rows: defaultRows, filter: strings.ToLower(v.Get("q")), selected: v.Get("session")}
	if q.sort == "" {
		q.sort = "rate"
	}
	if _, known := orders[q.sort]; !known || len(q.filter) > maxFilter || len(q.selected) > maxFilter {
		return q, false
	}
	for name, to := range map[string]*int{"n": &q.rows, "offset": &q.offset} {
		if text := v.Get(name); text != "" {
			n, err := strconv.ParseUint(text, 10, 31)
			if err != nil {
				return q, false
			}
			*to = int(n)
		}
	}
	q.rows = min(q.rows, maxRows)
	return q, true
}

// serveStats serves the figures as JSON: all of the endpoints, a part of the
// sessions, and all of one session. The parameters are sort (a key of orders,
// "rate" by default), n (up to 500 sessions, 50 by default), offset, q (a part
// of the peer's address, of the conversation id, or of the session's or endpoint's
// name), and session (the id of the one session).
func (s *Set) serveStats(w http.ResponseWriter, r *http.Request) {
	q, ok := parse(r)
	if !ok {
		http.Error(w, "a parameter is not valid", http.StatusBadRequest)
		return
	}
	answer := s.answer(q)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the client may be gone
}
