package tunnel

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"

	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/testenv"
)

// hashed returns a hash that is cheap to verify.
func hashed(t *testing.T, password string) string {
	t.Helper()
	hash, err := HashPassword(password, bcrypt.MinCost)
	require.NoError(t, err)
	return hash
}

func TestIsHash(t *testing.T) {
	for _, s := range []string{"secret", "", "$", "$ecret", "$money$", "$2", "$x$y$z", "a$2a$10$x"} {
		is, err := isHash(s)
		require.NoError(t, err, s)
		require.False(t, is, s)
	}
	good := hashed(t, "secret")
	for _, s := range []string{good, strings.Replace(good, "2a", "2b", 1), strings.Replace(good, "2a", "2y", 1)} { // 2y: of htpasswd -B
		is, err := isHash(s)
		require.NoError(t, err, s)
		require.True(t, is, s)
		require.NoError(t, bcrypt.CompareHashAndPassword([]byte(s), []byte("secret")))
	}
	for _, s := range []string{
		good[:59], good + "x", strings.Replace(good, "2a", "2x", 1), good[:20] + "!" + good[21:], "$2a$99" + good[6:], "$2a$15" + good[6:],
		"$2a$", "$2y$10$", "$1$abc$def", "$5$a$b", "$6$salt$hash", "$y$j9T$x$y", "$argon2id$v=19$m=65536,t=3,p=4$c2FsdA$aGFzaA",
	} {
		is, err := isHash(s)
		require.Error(t, err, s)
		require.False(t, is, s)
		_, err = ParseUsers([]byte(fmt.Sprintf(`{"me:%s": []}`, s)))
		require.ErrorContains(t, err, `user "me"`)
		require.NotContains(t, err.Error(), s)
	}
}

func TestHashPassword(t *testing.T) {
	hash, err := HashPassword("secret", 0)
	require.NoError(t, err)
	require.NoError(t, bcrypt.CompareHashAndPassword([]byte(hash), []byte("secret")))
	cost, err := bcrypt.Cost([]byte(hash))
	require.NoError(t, err)
	require.Equal(t, DefaultHashCost, cost)
	for password, cost := range map[string]int{"": 4, strings.Repeat("x", maxHashed+1): 4, "low": 3, "high": MaxHashCost + 1} {
		_, err := HashPassword(password, cost)
		require.Error(t, err)
	}
}

// Users with hashes are let in by their passwords alone: the hash is none, and nor are
// the first 72 bytes of a longer one.
func TestHashedPasswords(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("p", maxHashed)
	users := fmt.Sprintf(`{"me:%s": [""], "long:%s": [""], "plain:secret": [""], "named": [""]}`, hashed(t, "secret"), hashed(t, long))
	s := startServer(t, users, nil)
	exchange(t, dial(t, startClient(t, clientConfig(t, s, "0:"+testenv.Target(t, testenv.Echo))).address(t)), 1000)
	u := s.users.Load()
	for who, right := range map[[2]string]bool{
		{"me", "secret"}: true, {"plain", "secret"}: true, {"long", long}: true, {"me", "wrong"}: false, {"me", u.byName["me"].hash}: false,
		{"long", long + "p"}: false, {"named", "secret"}: false, {"you", "secret"}: false, {"plain", "x"}: false,
	} {
		shown := &clientIdentity{name: who[0], password: digestOf(who[1])}
		var err error
		shown.hash, err = s.verifier.prove(t.Context(), fair.Block{}, u, who[0], who[1])
		require.NoError(t, err)
		require.Equal(t, right, shown.among(u) != nil, "%q", who)
	}
	require.Nil(t, u.withCertificate("me"), "a hash is no certificate")
}

// A new file with the same hash leaves a session, one with another ends it.
func TestHashChanges(t *testing.T) {
	t.Parallel()
	hash := hashed(t, "secret")
	file := func(hash string) *Users {
		u := parsed(t, fmt.Sprintf(`{"me:%s": [""]}`, hash))
		return u
	}
	s := startServer(t, fmt.Sprintf(`{"me:%s": [""]}`, hash), nil)
	c := startClient(t, clientConfig(t, s, "0:"+testenv.Target(t, testenv.Echo)))
	conn := dial(t, c.address(t))
	require.NoError(t, echoes(conn))
	s.SetUsers(file(hash))
	require.NoError(t, echoes(conn))
	require.Len(t, s.verifier.proved, 1)
	s.SetUsers(file(hashed(t, "secret"))) // another salt
	var err error
	waitFor(t, func() bool {
		err = echoes(conn)
		return err != nil
	})
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	waitFor(t, func() bool { return s.Figures().of(t, "me").Logins == 2 }) // the client comes again
}

// A password is verified once for each hash, whatever number of sessions show it. A wrong
// one, and a user who is not there, cost the same.
func TestVerifierRemembers(t *testing.T) {
	u := parsed(t, fmt.Sprintf(`{"me:%s": [""], "plain:x": [""]}`, hashed(t, "secret")))
	v := newVerifier()
	var computed []string
	v.compare = func(hash, password []byte) error {
		computed = append(computed, string(hash[:7]))
		return bcrypt.CompareHashAndPassword(hash, password)
	}
	prove := func(name, password string) bool {
		hash, err := v.prove(t.Context(), fair.Block{}, u, name, password)
		require.NoError(t, err)
		return hash != ""
	}
	for range 5 {
		require.True(t, prove("me", "secret"))
	}
	require.Equal(t, []string{"$2a$04$"}, computed)
	require.False(t, prove("plain", "x"), "it has no hash")
	require.Len(t, computed, 1)
	require.False(t, prove("me", "wrong"))
	require.False(t, prove("you", "wrong"))
	require.False(t, prove("plain", "wrong"))
	require.Equal(t, []string{"$2a$04$", "$2a$04$", "$2a$04$", "$2a$04$"}, computed)
	require.True(t, prove("me", "secret"))
	require.Len(t, computed, 4)

	plain := parsed(t, everything)
	_, err := v.prove(t.Context(), fair.Block{}, plain, "me", "wrong")
	require.NoError(t, err)
	require.Len(t, computed, 4, "a file without hashes needs none")
}

// A wrong password takes as long as with the dearest of all hashes, whoever it is of: a
// user with that hash or a cheaper one, with a plain password or a certificate, or
// nobody.
func TestWrongPasswordsCostTheSame(t *testing.T) {
	hash := func(cost int) string {
		h, err := HashPassword("secret", cost)
		require.NoError(t, err)
		return h
	}
	u := parsed(t, fmt.Sprintf(`{"low:%s": [""], "middle:%s": [""], "high:%s": [""], "plain:x": [""], "named": [""]}`, hash(4), hash(6), hash(7)))
	v := newVerifier()
	work := 0
	v.compare = func(hash, password []byte) error {
		cost, err := bcrypt.Cost(hash)
		require.NoError(t, err)
		work += 1 << cost
		return bcrypt.CompareHashAndPassword(hash, password)
	}
	prove := func(name, password string) bool {
		work = 0
		hash, err := v.prove(t.Context(), fair.Block{}, u, name, password)
		require.NoError(t, err)
		return hash != ""
	}
	for range 2 { // the second time after those who are right were remembered
		for _, name := range []string{"low", "middle", "high", "plain", "named", "nobody", ""} {
			for _, wrong := range []string{"wrong", "", strings.Repeat("x", maxHashed+1)} {
				require.False(t, prove(name, wrong))
				require.Equal(t, 1<<7, work, "%s, %q", name, wrong)
			}
		}
		for _, name := range []string{"low", "middle", "high"} {
			require.True(t, prove(name, "secret"))
		}
	}
	require.Zero(t, work, "who was right is remembered")
	u.byName["low"].hash = decoy(5)
	require.False(t, prove("low", "secret"))
	require.Equal(t, 1<<7, work, "whatever hashes there are")
}
