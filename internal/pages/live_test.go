package pages

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// get returns what the set answers to a request, decoded if it is JSON.
func get(t *testing.T, s *Set, path string) (*httptest.ResponseRecorder, answer) {
	t.Helper()
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest("GET", "http://127.0.0.1:6060"+path, nil))
	var a answer
	if w.Header().Get("Content-Type") == "application/json" {
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &a))
	}
	return w, a
}

// The figures are those of the sessions, rates included, and go when the
// session ends.
func TestFigures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := netsim.NewNetwork(1, netsim.LinkConfig{Delay: 10 * time.Millisecond})
		endpoint := func(addr string) *kcp.Endpoint {
			pc, err := network.Listen(addr)
			require.NoError(t, err)
			e, err := kcp.NewEndpoint(pc, nil)
			require.NoError(t, err)
			t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
			return e
		}
		server, client := endpoint("10.0.0.1:4000"), endpoint("10.0.0.2:5000")
		l, err := server.Listen()
		require.NoError(t, err)
		var s Set
		s.Add("client", client)
		var conns []*kcp.Conn
		move := func(i, n int) {
			_, err := conns[i].Write(make([]byte, n))
			require.NoError(t, err)
			b, err := l.AcceptKCP(context.Background())
			require.NoError(t, err)
			go func() { _, _ = io.Copy(io.Discard, b) }()
			time.Sleep(500 * time.Millisecond)
		}
		for i := range 3 {
			c, err := client.Dial(context.Background(), server.LocalAddr(), nil)
			require.NoError(t, err)
			conns = append(conns, c)
			move(i, 10000)
		}
		_, a := get(t, &s, "/stats.json")
		require.Equal(t, 3, a.Sessions)
		require.Len(t, a.Endpoints, 1)
		require.Equal(t, uint64(30000), a.Endpoints[0].Totals.BytesSent)
		_, err = conns[1].Write(make([]byte, 20000))
		require.NoError(t, err)
		time.Sleep(time.Second)
		_, a = get(t, &s, "/any/where/stats.json?sort=rate&n=1")
		require.Len(t, a.Rows, 1)
		require.Equal(t, fmt.Sprintf("%08x", conns[1].Conv()), a.Rows[0].Conv)
		require.InDelta(t, 20000, a.Rows[0].SendRate, 1)
		require.InDelta(t, 20, a.Rows[0].RTT, 2)
		require.Equal(t, "application", a.Rows[0].LimitedBy)
		id := a.Rows[0].ID
		_, a = get(t, &s, "/stats.json?session="+id)
		require.Equal(t, uint64(30000), a.Selected.Stats.BytesSent)
		require.Len(t, a.Selected.Limits, len(a.Selected.Stats.Limited))
		require.Equal(t, "handshake", a.Selected.Limits[stats.LimitHandshake])
		require.Equal(t, 20*time.Millisecond, a.Selected.Stats.Limited[stats.LimitHandshake])

		// Within the time of one snapshot all share it.
		_, err = conns[0].Write(make([]byte, 5000))
		require.NoError(t, err)
		time.Sleep(snapshotEvery / 4)
		_, b := get(t, &s, "/stats.json")
		require.Equal(t, a.Time, b.Time)
		require.NoError(t, conns[1].Abort(0, ""))
		_, a = get(t, &s, "/stats.json?session="+id)
		require.Nil(t, a.Selected)
		time.Sleep(time.Second)
		_, a = get(t, &s, "/stats.json")
		require.Equal(t, 2, a.Sessions)

		// Nothing of the sessions is kept when nobody looks.
		kept := func() *snapshot {
			s.cache.mu.Lock()
			defer s.cache.mu.Unlock()
			return s.cache.latest
		}
		require.NotNil(t, kept())
		time.Sleep(2 * snapshotKept)
		synctest.Wait()
		require.Nil(t, kept())
	})
}

// A hundred thousand sessions make an answer of bounded size, in pages.
func TestManySessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sessions := 100_000
		if testing.Short() {
			sessions = 10_000
		}
		pc, err := netsim.NewNetwork(1, netsim.LinkConfig{}).Listen("10.0.0.2:5000")
		require.NoError(t, err)
		e, err := kcp.NewEndpoint(pc, &kcp.Config{DialTimeout: -1})
		require.NoError(t, err)
		c, err := e.Dial(context.Background(), &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4000}, nil)
		require.NoError(t, err)
		snap := &snapshot{at: time.Now().Add(time.Hour)}
		of := &Named{Name: "Many", Endpoint: e}
		for i := range sessions {
			snap.rows = append(snap.rows, row{RTT: float64(i * 7919 % sessions), conn: c, of: of, at: i})
		}
		s := Set{cache: snapshots{latest: snap}}
		w, a := get(t, &s, "/stats.json?sort=rtt&n=1000000")
		require.Len(t, a.Rows, maxRows)
		require.Less(t, w.Body.Len(), 400*maxRows)
		for i, r := range a.Rows {
			require.Equal(t, float64(sessions-1-i), r.RTT)
		}
		require.Equal(t, "10.0.0.1:4000", a.Rows[0].Remote)
		require.Equal(t, "Many", a.Rows[0].Endpoint)
		_, a = get(t, &s, fmt.Sprint("/stats.json?sort=rtt&n=2&offset=", sessions-1))
		require.Len(t, a.Rows, 1)
		require.Zero(t, a.Rows[0].RTT)
		_, a = get(t, &s, "/stats.json?offset=2147483647")
		require.Equal(t, sessions, a.Offset)
		require.Empty(t, a.Rows)
		_, a = get(t, &s, "/stats.json?n=1&q=MANY")
		require.Equal(t, sessions, a.Matching)
		_, a = get(t, &s, "/stats.json?n=0&q=10.0.0.7")
		require.Zero(t, a.Matching)
		_, _ = e.Close(), pc.Close()
	})
}

// The first rows are those of a full sort, equal ones in the order of their
// sessions.
func TestSelection(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		rows := make([]row, random.IntN(40))
		var want []*row
		s := selection{figure: orders["rtt"], most: random.IntN(20)}
		for i := range rows {
			rows[i] = row{RTT: float64(random.IntN(10)), at: i}
			want = append(want, &rows[i])
			s.add(&rows[i])
		}
		slices.SortStableFunc(want, func(x, y *row) int { return int(y.RTT - x.RTT) })
		require.Equal(t, want[:min(s.most, len(want))], s.sorted(), "seed %d", seed)
	}
}

// What is not asked for properly is refused, and nothing but the page and the
// figures is there.
func TestRefuses(t *testing.T) {
	var s Set
	for _, q := range []string{"sort=evil", "n=-1", "n=99999999999", "offset=x", "q=" + strings.Repeat("x", maxFilter+1)} {
		w, _ := get(t, &s, "/stats.json?"+q)
		require.Equal(t, 400, w.Code, q)
	}
	w, _ := get(t, &s, "/other")
	require.Equal(t, 404, w.Code)
	w = httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest("POST", "http://127.0.0.1:6060/", nil))
	require.Equal(t, 405, w.Code)
	_, a := get(t, &s, "/stats.json")
	require.NotNil(t, a.Endpoints)
	require.NotNil(t, a.Rows)
}

// The page needs nothing from elsewhere, and its policy forbids it.
func TestLivePage(t *testing.T) {
	var s Set
	w, _ := get(t, &s, "/debug/kcp/")
	require.Equal(t, 200, w.Code)
	require.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'")
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	body := w.Body.String()
	require.NotRegexp(t, `(src|href)=`, regexp.MustCompile(`(?s)<script>.*?</script>`).ReplaceAllString(body, ""))
	require.Contains(t, body, "MIT License")
	for key := range orders {
		require.Contains(t, body+`"rate"`, `"`+key+`"`, "a column sorts by it")
	}
	for _, m := range regexp.MustCompile(`data-sort="(\w+)"`).FindAllStringSubmatch(body, -1) {
		require.Contains(t, orders, m[1])
	}
}

func TestAddAndRemove(t *testing.T) {
	var s Set
	e := new(kcp.Endpoint)
	remove := s.Add("a", e)
	s.Add("again", e)()
	require.Len(t, s.All(), 1)
	remove()
	remove()
	require.Empty(t, s.All())
	s.Add("b", e)
	remove()
	require.Len(t, s.All(), 1)
}

// The page is for those who name the server by an address, or by a name that it
// knows. A name that somebody else has let resolve to its address is none.
func TestHost(t *testing.T) {
	var s Set
	for host, known := range map[string]bool{
		"127.0.0.1:6060": true, "127.0.0.1": true, "10.0.0.1:80": true,
		"[::1]:6060": true, "[::1]": true, "[fe80::1%eth0]:6060": true,
		"localhost:6060": true, "localhost": true, "LOCALHOST.": true,
		"ops.example.com": true, "OPS.example.com:6060": true, "ops.example.com.": true,
		"evil.example:6060": false, "127.0.0.1.evil.example": false, "localhost.evil.example": false,
		"evil.example": false, "ops.example.com.evil.example": false, "127.0.0.1@evil.example": false,
		"": false, ".": false, ":6060": false, "[]": false, "[": false, "2130706433": false,
	} {
		for _, path := range []string{"/", "/stats.json"} {
			r := httptest.NewRequest("GET", path, nil)
			r.Host = host
			w := httptest.NewRecorder()
			s.Handler("ops.example.com", "").ServeHTTP(w, r)
			if known {
				require.Equal(t, 200, w.Code, host)
				continue
			}
			require.Equal(t, 421, w.Code, host)
			require.NotContains(t, w.Body.String(), "endpoints")
		}
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.Host = "ops.example.com"
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	require.Equal(t, 421, w.Code)
}
