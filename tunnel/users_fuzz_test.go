package tunnel

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever stands in a file of users: it is taken or refused, and what is taken lets in
// those whose passwords or hashes are in it, and nobody else.
func FuzzUsers(f *testing.F) {
	for _, seed := range []string{
		usersText, everything, `{}`, ``, `[]`, `{"me:secret": ["("]}`, `{"a": [""], "a:b": []}`, `{"a:": []}`, `{":": []}`, `{"a:b": [null]}`, `{"a:b": null}`,
		`{"me:$2a$04$abcdefghijklmnopqrstuuKkW0kKgGLXkmxBbCzkK8uJ8Q4ZQ3w5W": [""]}`, `{"me:$6$salt$hash": [""]}`, `{"me:$2y$99$x": []}`, "{\"\\u0000:\\ud800\": [\"\\\\x00\"]}",
		"\ufeff{\"a:b\": [\"\"]}", `{"a:b": ["*"], "A:b": ["^x$"]} `, `{"a:b": []}{"c:d": []}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := ParseUsers([]byte(text))
		if err != nil {
			require.Nil(t, u)
			require.NotEmpty(t, err.Error())
			return
		}
		var keys map[string][]string
		require.NoError(t, json.Unmarshal([]byte(text), &keys))
		require.Equal(t, len(keys), u.Len())
		for key, rules := range keys {
			name, password, byPassword := strings.Cut(key, ":")
			require.NotEmpty(t, name)
			hashed := u.byName[name].hash != ""
			require.Equal(t, byPassword && !hashed, u.withPassword(name, digestOf(password)) != nil, "%q", key)
			require.Equal(t, !byPassword, u.withCertificate(name) != nil, "%q", key)
			require.Equal(t, hashed, u.withHash(name, password) != nil, "%q", key)
			require.Nil(t, u.withPassword(name, digestOf(password+"x")))
			require.Nil(t, u.withPassword(name, digestOf("")))
			require.Nil(t, u.withHash(name, ""))
			require.Len(t, u.byName[name].rules, len(rules))
			for k := kindHello; k <= kindReverseUDP+1; k++ {
				allowed := u.byName[name].allows(opening{kind: k, target: "127.0.0.1:80"})
				require.False(t, allowed && len(rules) == 0, "nothing is allowed without a rule")
			}
		}
		require.Nil(t, u.withPassword("", digestOf("")))
		require.Nil(t, u.withCertificate(""))
		hash, known := u.hashOf("\x00nobody\x00")
		require.False(t, known)
		require.Equal(t, u.highestCost != 0, hash != "")
	})
}
