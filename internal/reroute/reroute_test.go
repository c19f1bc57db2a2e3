package reroute

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/stretchr/testify/require"
)

var (
	peer4, peer6 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	old4, new4   = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	old6, new6   = netip.MustParseAddr("2001:db8:1::1"), netip.MustParseAddr("2001:db8:2::1")
	link6, peerL = netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::9%eth0")
)

// step is a look, and what has to follow from it.
type step struct {
	after  time.Duration // since the look before; 0: every
	socket Socket
	route  Route
	want   Action
}

// One row is one story of a socket: the looks follow each other.
func TestDecide(t *testing.T) {
	t.Parallel()
	old := Socket{Connected: true, Source: old4}
	dead := Socket{Source: old4}
	same, other, none := Route{Source: old4}, Route{Source: new4}, Route{Err: syscall.ENETUNREACH}
	for _, tc := range []struct {
		name  string
		stays bool // the sessions do not survive another address
		peer  netip.Addr
		steps []step
	}{
		{"nothing has changed", false, peer4, []step{{0, old, same, Leave}, {0, old, same, Leave}}},
		{"another address", false, peer4, []step{{0, old, other, Connect}, {0, Socket{Connected: true, Source: new4}, other, Leave}}},
		{"no route, then the old address", false, peer4, []step{{0, old, none, Wait}, {0, old, none, Wait}, {0, old, same, Resume}, {0, old, same, Leave}}},
		{"no route, then another address", false, peer4, []step{{0, old, none, Wait}, {0, old, other, Connect}}},
		{"destroyed", false, peer4, []step{{0, dead, same, Connect}, {0, old, same, Leave}}},
		{"destroyed without a route", false, peer4, []step{{0, dead, none, Wait}, {0, dead, same, Connect}}},
		{"destroyed, where the address matters", true, peer4, []step{{0, dead, same, Connect}}},
		{"destroyed with another address", true, peer4, []step{{0, dead, other, Connect}}},
		{"the address matters", true, peer4, []step{{0, old, other, Ask}, {0, old, other, Leave}, {0, old, other, Connect}}},
		{"the address matters, and comes back", true, peer4, []step{
			{0, old, other, Ask}, {0, old, other, Leave}, {0, old, same, Leave}, {0, old, other, Ask}, {0, old, other, Leave}, {0, old, other, Connect}}},
		{"the address matters, and the session was alive between", true, peer4, []step{
			{0, old, other, Ask}, {0, old, other, Leave}, {time.Minute, old, other, Ask}, {0, old, other, Leave}, {0, old, other, Connect}}},
		{"cannot be asked", false, peer4, []step{{0, old, Route{Unknown: true}, Connect}}},
		{"cannot be asked, and the address matters", true, peer4, []step{
			{0, old, Route{Unknown: true}, Ask}, {0, old, Route{Unknown: true}, Leave}, {0, old, Route{Unknown: true}, Connect}}},
		{"destroyed, and cannot be asked", true, peer4, []step{{0, dead, Route{Unknown: true}, Connect}}},
		{"another interface of one name", false, peer4, []step{
			{0, Socket{true, old4, "?"}, Route{Source: old4, Device: "usb0"}, Connect}, {0, Socket{true, old4, "usb0"}, Route{Source: old4, Device: "usb0"}, Leave}}},
		{"IPv6", false, peer6, []step{{0, Socket{Connected: true, Source: old6}, Route{Source: new6}, Connect}}},
		{"duplicate address detection", false, peer6, []step{
			{0, Socket{Connected: true, Source: old6}, Route{Source: link6}, Wait}, {0, Socket{Connected: true, Source: old6}, Route{Source: old6}, Resume}}},
		{"link-local, as before", false, peer6, []step{{0, Socket{Connected: true, Source: link6}, Route{Source: link6}, Leave}}},
		{"link-local, as before, destroyed", false, peer6, []step{{0, Socket{Source: link6}, Route{Source: link6}, Connect}}},
		{"a neighbour", false, peerL, []step{{0, Socket{Connected: true, Source: old6}, Route{Source: link6}, Connect}}},
	} {
		w, now := Watch{}, time.Hour
		for i, s := range tc.steps {
			now += max(s.after, every)
			got := w.Decide(s.socket, s.route, tc.peer, !tc.stays, now)
			require.Equal(t, s.want, got, "%s: look %d", tc.name, i+1)
			if got == Connect {
				w.Connected(true)
			}
		}
	}
}

// A socket that could not be connected has lost its route: the session sends at once when
// there is one again.
func TestConnectFails(t *testing.T) {
	t.Parallel()
	var w Watch
	old, same := Socket{Connected: true, Source: old4}, Route{Source: old4}
	require.Equal(t, Connect, w.Decide(Socket{Source: old4}, same, peer4, true, 0))
	w.Connected(false)
	require.Equal(t, Connect, w.Decide(Socket{Source: old4}, same, peer4, true, every))
	w.Connected(true)
	require.Equal(t, Leave, w.Decide(old, same, peer4, true, 2*every))
	w.Connected(false)
	require.Equal(t, Resume, w.Decide(old, same, peer4, true, 3*every))
}

// While there is no route, looks become rare if no session asks for one, and begin anew
// after it was there.
func TestAgain(t *testing.T) {
	t.Parallel()
	var w Watch
	old, none, same := Socket{Connected: true, Source: old4}, Route{Err: syscall.ENETUNREACH}, Route{Source: old4}
	for range 2 {
		for i, want := range []time.Duration{every, idle, idle, idle} {
			require.Equal(t, Wait, w.Decide(old, none, peer4, true, 0))
			require.Equal(t, want, w.Again(), "look %d", i)
		}
		require.Equal(t, Resume, w.Decide(old, same, peer4, true, 0))
		require.Zero(t, w.Again())
	}
}

// When a session looks: some hundred milliseconds after the last sign of life, and then
// again and again, ever less often.
func TestWhen(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ quiet, rto, looked, want time.Duration }{
		{10 * time.Second, 30 * time.Millisecond, 0, 10*time.Second + patience},
		{10 * time.Second, 30 * time.Millisecond, 9 * time.Second, 10*time.Second + patience},
		{10 * time.Second, 700 * time.Millisecond, 0, 10*time.Second + 700*time.Millisecond},
		{10 * time.Second, 5 * time.Second, 0, 11 * time.Second},
		{10 * time.Second, 0, 10*time.Second + 200*time.Millisecond, 10*time.Second + 450*time.Millisecond},
		{10 * time.Second, 0, 12 * time.Second, 12*time.Second + every},
		{10 * time.Second, 0, 15 * time.Second, 15*time.Second + everyLater},
		{10 * time.Second, 0, 30 * time.Second, 30*time.Second + everyLater},
	} {
		require.Equal(t, tc.want, Next(tc.quiet, Patience(tc.rto), tc.looked), "%+v", tc)
	}
	looks := 0
	for at := Next(0, Patience(0), 0); at < 30*time.Second; at = Next(0, Patience(0), at) {
		looks++
	}
	require.Equal(t, 69, looks, "in a silence of PeerTimeout")

	require.Equal(t, 11*time.Second, After(10*time.Second, time.Second, 0))
	require.Equal(t, 11*time.Second, After(10*time.Second, 9500*time.Millisecond, 10*time.Second))
	require.Zero(t, After(10*time.Second, 9501*time.Millisecond, 0), "an answer")
	require.Zero(t, After(10*time.Second, time.Second, 11*time.Second), "once")
	require.Zero(t, After(0, 0, 0), "no data")
}

// What errors of a socket say something about its address.
func TestConcerns(t *testing.T) {
	t.Parallel()
	for _, e := range []error{syscall.EINVAL, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.EADDRNOTAVAIL,
		syscall.EDESTADDRREQ, syscall.ECONNABORTED, syscall.ENETDOWN, syscall.ENODEV} {
		require.True(t, Concerns(&net.OpError{Op: "write", Err: os.NewSyscallError("sendto", e)}), "%v", e)
	}
	for _, e := range []error{syscall.ECONNREFUSED, syscall.EMSGSIZE, syscall.ENOBUFS, syscall.EPERM, syscall.EACCES} {
		require.False(t, Concerns(fmt.Errorf("write: %w", e)), "%v", e)
	}
	require.False(t, Concerns(net.ErrClosed))
	require.False(t, Concerns(errors.New("other")))
}

// The figures of RULES.md are those of the code.
func TestRuleFigures(t *testing.T) {
	t.Parallel()
	const route, again = "| A dialled socket's route", "| It is connected again"
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{route, "300 ms", patience},
		{route, "1 s", longPatience},
		{route, "500 ms", listening},
		{route, "every 250 ms", every},
		{route, "5 s", while},
		{route, "every 500 ms", everyLater},
		{route, "each 500 ms", idle},
		{again, "3 checks", confirmations},
	})
}
