package admission

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

// A session is remembered for 60 s, at its address and at any.
func TestTimeWaits(t *testing.T) {
	var all TimeWaits[string]
	a, b := Key{Addr: address(1), Conv: 7}, Key{Addr: address(2), Conv: 7}
	all.Add(a, "first", true, time.Second)
	all.Add(b, "second", false, 2*time.Second)
	state, ok := all.AtAnyAddress(7, 3*time.Second)
	require.True(t, ok)
	require.Equal(t, "first", state, "the second does not count as the latest")
	state, ok = all.At(b, 61*time.Second)
	require.True(t, ok)
	require.Equal(t, "second", state)
	require.False(t, all.Holds(a, 61*time.Second))
	require.False(t, all.Holds(Key{Addr: address(1), Conv: 8}, 3*time.Second))
	require.False(t, all.Expire(61*time.Second))
	require.Equal(t, 1, all.Len())
	_, ok = all.AtAnyAddress(7, 61*time.Second)
	require.False(t, ok)
	require.True(t, all.Expire(62*time.Second))
	all.Clear()
	require.Zero(t, all)
}

// 8192 sessions are remembered. That others were forgotten is known for a while.
func TestTimeWaitsAreBounded(t *testing.T) {
	var all TimeWaits[int]
	for i := range 8192 {
		all.Add(Key{Conv: uint32(i)}, i, true, time.Duration(i)*time.Millisecond)
	}
	now := 10 * time.Second
	require.False(t, all.Forgot(30*time.Second, now))
	require.True(t, all.Holds(Key{Conv: 0}, now))
	all.Add(Key{Conv: 9000}, 0, true, now)
	require.Equal(t, 8192, all.Len())
	require.False(t, all.Holds(Key{Conv: 0}, now))
	require.True(t, all.Holds(Key{Conv: 1}, now))
	require.True(t, all.Forgot(30*time.Second, now))
	require.False(t, all.Forgot(30*time.Second, 30*time.Second))
	require.True(t, all.Forgot(31*time.Second, 30*time.Second))
}

// The last 32768 ids are remembered, each once.
func TestHistory(t *testing.T) {
	var h History
	for i := range uint32(32768) {
		h.Add(i)
		h.Add(i)
	}
	require.True(t, h.Has(0))
	h.Add(1 << 20)
	require.False(t, h.Has(0))
	require.True(t, h.Has(1))
	require.True(t, h.Has(1<<20))
}

// A cookie is good for what it was made of, for 10 to 20 s, and no challenge is
// one.
func TestCookies(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	c, other := Cookies{Random: random}, Cookies{Random: random}
	key := Key{Addr: address(1), Conv: 7}
	now := 95 * time.Second
	cookie := c.Mint(key, 9, now)
	require.True(t, c.Valid(cookie, key, 9, now+10*time.Second))
	require.False(t, c.Valid(cookie, key, 9, now+20*time.Second))
	require.False(t, c.Valid(cookie, key, 10, now))
	require.False(t, other.Valid(cookie, key, 9, now))
	for _, wrong := range []Key{{Addr: address(2), Conv: 7}, {Addr: address(5), Conv: 7}, {Addr: address(1), Conv: 8}, {Addr: address(1), Conv: 7, Peer: "x"}} {
		require.False(t, c.Valid(cookie, wrong, 9, now))
	}
	challenge := c.Challenge(key, netip.Addr{}, 9, now)
	require.Equal(t, challenge, c.Challenge(key, netip.Addr{}, 9, now+4*time.Second))
	require.NotEqual(t, challenge, c.Challenge(key, netip.Addr{}, 9, now+10*time.Second))
	require.False(t, c.Valid(challenge, key, 9, now))
	own := c.Challenge(key, netip.MustParseAddr("10.0.0.1"), 9, now)
	require.NotEqual(t, challenge, own, "a path has two ends")
	require.NotEqual(t, c.Challenge(key, netip.MustParseAddr("10.0.0.2"), 9, now), own)
	require.Equal(t, c.Challenge(key, netip.MustParseAddr("10.0.0.1"), 9, now), own)
}

// A bucket gives a tenth of a second's tokens at once, and then as many as come.
func TestBucket(t *testing.T) {
	var b Bucket
	taken := func(now time.Duration, tries int) (n int) {
		for range tries {
			if b.Take(now, 1000) {
				n++
			}
		}
		return n
	}
	require.Equal(t, 100, taken(0, 200))
	require.Equal(t, 5, taken(5*time.Millisecond, 200))
	require.Equal(t, 100, taken(time.Hour, 200))
}

// The clock of another process may be anything.
func TestCookieClockDoesNotComeAround(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour, math.MaxInt64, math.MinInt64} {
		var c Cookies
		c.Adopt(make([]byte, 32), ahead)
		before := c.Clock(0)
		for now := time.Duration(0); now < 1<<61; now += 1 << 58 {
			require.GreaterOrEqual(t, c.Clock(now), before, "%v ahead", ahead)
			before = c.Clock(now)
		}
	}
}

// A session that had drawn no token is not known by 0.
func TestNoTokenShowsNothing(t *testing.T) {
	for _, own := range []uint32{0, 7} {
		for _, code := range []wire.Code{wire.Confirm, wire.Fin, wire.Close} {
			e := Ended{Own: own}
			require.Equal(t, own != 0, e.shownBy(&Initial{Request: wire.Signal{Code: code, SN: own, TS: own}}))
		}
	}
}
