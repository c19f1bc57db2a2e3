package takeover

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/protect"
)

// member is a session of a gate.
type member struct {
	entry    admission.Entry
	extended bool
}

func (m *member) place() *admission.Entry { return &m.entry }
func (m *member) isExtended() bool        { return m.extended }

// gate returns one with random numbers of its own.
func gate(random byte) *admission.Gate[member] {
	g := new(admission.Gate[member])
	g.Init((*member).place, 0)
	g.Hooks.Extended = (*member).isExtended
	g.Cookies.Random = constant(random)
	return g
}

// constant is a source of one number.
type constant byte

func (c constant) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(c)
	}
	return len(b), nil
}

// Notes name all sessions, those that have ended with what TIME-WAIT needs, and ids that
// were used. A session that has ended is the same at the other end, but for its keys.
func TestNotesOfAGate(t *testing.T) {
	g := gate(1)
	for conv := range uint32(2) {
		m := &member{extended: conv == 1}
		m.entry.SetKey(admission.MakeKey(v4, nil, conv))
		g.Add(m)
	}
	ended := admission.Ended{Una: 5, Token: 6, Own: 7, Aborted: true, Dropped: true}
	key := admission.MakeKey(v6, nil, 9)
	g.TimeWaits.Add(key, ended, true, 0)
	g.Used.Add(11)
	for _, mute := range []bool{false, true} {
		notes := Notes(g, nil, mute, time.Second)
		require.ElementsMatch(t, []Note{
			{Kind: Owns, Addr: v4, Conv: 0},
			{Kind: Owns, Addr: v4, Conv: 1, Extended: true},
			{Kind: Ended, Addr: v6, Conv: 9, Extended: true, End: End{Una: 5, Token: 6, Own: 7, Aborted: true, Dropped: true, Mute: mute}},
			{Kind: Used, Conv: 11},
		}, notes)
		n := EndOf(key, ended, mute)
		atKey, again := n.Remember(nil)
		require.Equal(t, key, atKey)
		want := ended
		want.Mute = mute
		require.Equal(t, want, again)
	}
	require.Empty(t, Notes(gate(1), nil, false, 0))
}

// The successor's cookies are those of the predecessor; so are its stateless resets,
// unless it has a key of its own.
func TestSecretsOfAGate(t *testing.T) {
	old, next := gate(1), gate(2)
	old.ResetSecret, next.ResetSecret = []byte("old"), []byte("next")
	s := StateOf(old, 30*time.Second)
	Adopt(next, s, false, 10*time.Second)
	require.Equal(t, []byte("next"), next.ResetSecret)
	require.Equal(t, old.Cookies.Secret(), next.Cookies.Secret())
	require.Equal(t, old.Cookies.Clock(40*time.Second), next.Cookies.Clock(20*time.Second), "ten seconds later")
	Adopt(next, s, true, 10*time.Second)
	require.Equal(t, []byte("old"), next.ResetSecret)
}

// A packet is of the sort that its kind says, and tells what it opens.
func TestPacketOf(t *testing.T) {
	key := admission.MakeKey(v4, nil, 7)
	for kind, sort := range map[admission.Kind]Sort{
		admission.Plain: Plain, admission.FEC: Plain, admission.Datagram: Plain, admission.Parity: Parity,
		admission.Clear: Clear, admission.Handshake: Sealed, admission.Sealed: Sealed,
	} {
		p := PacketOf(key, kind, nil, true)
		require.Equal(t, sort, p.Sort, "%v", kind)
		require.True(t, p.Shared && p.Addr == v4 && p.Conv == 7)
	}
	push := make([]byte, 24)
	push[0], push[4] = 7, 81
	f, ok := PacketOf(key, admission.Plain, push, false).First()
	require.True(t, ok)
	require.Equal(t, First{Push: true}, f)
	hello := append([]byte(nil), push...)
	hello[4], hello[5], hello[8] = 83, 1, 1
	f, ok = PacketOf(key, admission.Plain, hello, false).First()
	require.True(t, ok)
	require.Equal(t, First{Hello: true}, f)
	_, ok = PacketOf(admission.MakeKey(v4, nil, 8), admission.Plain, push, false).First()
	require.False(t, ok, "of another conversation")
}

// The probe shows whether the ciphers of both ends agree.
func TestProbeShowsTheCipher(t *testing.T) {
	scheme := func(key byte) protect.Protection {
		c, err := crypt.AESGCM([]byte{15: key})
		require.NoError(t, err)
		return protect.NewScheme(c, false, nil).Outside
	}
	offer := &Offer{Cipher: true}
	offer.ProbeWith(scheme(1))
	require.Nil(t, offer.DiffersWith(&Offer{Cipher: true}, scheme(1)))
	again := &Offer{Cipher: true}
	again.ProbeWith(scheme(1))
	require.Equal(t, "Cipher", again.DiffersWith(&Offer{Cipher: true}, scheme(2)).Field)
}
