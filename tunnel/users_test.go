package tunnel

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const usersText = `{
	"me:se:cret": ["^127\\.0\\.0\\.1:80$", "^R:0\\.0\\.0\\.0:2222$", "^1\\.1\\.1\\.1:53/udp$"],
	"all:x": [""],
	"star:y": ["*"],
	"socks:z": ["^socks$"],
	"named": ["^example\\.com:443$"]
}`

func TestUsers(t *testing.T) {
	u := parsed(t, usersText)
	require.Equal(t, 5, u.Len())
	me := u.withPassword("me", digestOf("se:cret"))
	require.NotNil(t, me)
	for _, wrong := range [][2]string{{"me", ""}, {"me", "se:cre"}, {"me", "x"}, {"you", "x"}, {"named", ""}, {"", ""}, {"me:se", "cret"}} {
		assert.Nil(t, u.withPassword(wrong[0], digestOf(wrong[1])), wrong)
	}
	assert.NotNil(t, u.withCertificate("named"))
	assert.Nil(t, u.withCertificate("me"))
	assert.Nil(t, u.withCertificate(""))

	tcp := func(s string) opening { return opening{kind: kindTCP, target: s} }
	assert.True(t, me.allows(tcp("127.0.0.1:80")))
	assert.True(t, me.allows(opening{kind: kindListenTCP, target: "0.0.0.0:2222"}))
	assert.True(t, me.allows(opening{kind: kindUDP, target: "1.1.1.1:53"}))
	assert.True(t, me.allows(opening{kind: kindSocksTCP, target: "127.0.0.1:80"}), "reachable by itself")
	for _, o := range []opening{
		tcp("127.0.0.1:8080"), tcp("localhost:80"), tcp("1.1.1.1:53"), tcp("[::1]:80"), tcp("x127.0.0.1:80"), tcp("127.0.0.1:80\n"),
		{kind: kindUDP, target: "127.0.0.1:80"}, {kind: kindListenTCP, target: "127.0.0.1:80"}, {kind: kindListenTCP, target: "0.0.0.0:22"},
		{kind: kindListenUDP, target: "0.0.0.0:2222"}, {kind: kindSocksTCP, target: "127.0.0.1:81"}, {kind: kindHello}, {kind: kindReverseTCP, target: "127.0.0.1:80"},
		{}, {kind: 99, target: "127.0.0.1:80"},
	} {
		assert.False(t, me.allows(o), "%v", o)
	}
	assert.True(t, u.withPassword("all", digestOf("x")).allows(tcp("any:1")))
	assert.True(t, u.withPassword("star", digestOf("y")).allows(opening{kind: kindListenTCP, target: "0.0.0.0:1"}))
	socks := u.withPassword("socks", digestOf("z"))
	assert.True(t, socks.allows(opening{kind: kindSocksTCP, target: "any:1"}))
	assert.True(t, socks.allows(opening{kind: kindSocksUDP, target: "any:1"}))
	assert.False(t, socks.allows(tcp("any:1")))
}

// Errors name the user, and never a password.
func TestUsersRefused(t *testing.T) {
	for text, want := range map[string]string{
		``:                           "want an object",
		`[]`:                         "want an object",
		`{"me:secret": "x"}`:         `user "me"`,
		`{"me:secret": ["("]}`:       `user "me"`,
		`{"me:": []}`:                "empty password",
		`{":secret": []}`:            "no name",
		`{"me:secret":[],"me":[]}`:   "twice",
		`{"me:secret":[]} {}`:        "invalid JSON",
		`{"me:secret":[""]}}`:        "invalid JSON",
		`{"me:secret":[""]}]`:        "invalid JSON",
		`{"me:secret":[null]}`:       "null is not a regular expression",
		`{"me:secret":null}`:         "not null",
		`{"me:secret":[]`:            "",
		`{"me:secret":[],`:           "",
		`{"me:secret":["a"], 1: []}`: "",
	} {
		_, err := ParseUsers([]byte(text))
		require.Error(t, err, text)
		assert.Contains(t, err.Error(), want)
		assert.NotContains(t, err.Error(), "secret")
	}
	_, err := LoadUsers(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestKeyIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "server.pem")
	first, err := LoadKey(path)
	require.NoError(t, err)
	second, err := LoadKey(path)
	require.NoError(t, err)
	a, err := certificateFingerprint(&first)
	require.NoError(t, err)
	b, err := certificateFingerprint(&second)
	require.NoError(t, err)
	require.Equal(t, a, b)
	keyA, err := resetKey(&first)
	require.NoError(t, err)
	keyB, err := resetKey(&second)
	require.NoError(t, err)
	require.Equal(t, keyA, keyB)
	require.NotEmpty(t, keyA)
}
