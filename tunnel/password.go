package tunnel

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/arqnet/kcp/internal/fair"

	"golang.org/x/crypto/bcrypt"
)

const (
	// DefaultHashCost is the cost of HashPassword if that is not given: about 60 ms of
	// a processor.
	DefaultHashCost = 10
	// MaxHashCost is the highest cost of a hash in a file of users: about a second.
	MaxHashCost = 14
	// maxHashed is how many bytes of a password bcrypt looks at.
	maxHashed = 72
)

// HashPassword returns a hash of a password for a file of users, in place of the
// password, by bcrypt. Each step of cost doubles the time that it takes to guess, and to
// verify; 0 means DefaultHashCost, and MaxHashCost is the highest.
func HashPassword(password string, cost int) (string, error) {
	if cost == 0 {
		cost = DefaultHashCost
	}
	switch {
	case password == "":
		return "", errors.New("the password is empty")
	case len(password) > maxHashed:
		return "", fmt.Errorf("the password has %d bytes: bcrypt takes %d at most", len(password), maxHashed)
	case cost < bcrypt.MinCost || cost > MaxHashCost:
		return "", fmt.Errorf("cost %d is not from %d to %d", cost, bcrypt.MinCost, MaxHashCost)
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), cost)
	return string(hash), err
}

// isHash reports whether the password of a file of users is a hash of bcrypt. Hashes of
// another kind, and damaged ones, are errors: taken for passwords, they would be what
// lets a client in.
func isHash(s string) (bool, error) {
	if !strings.HasPrefix(s, "$") {
		return false, nil
	}
	scheme, rest, ok := strings.Cut(s[1:], "$")
	switch {
	case !ok:
		return false, nil
	case slices.Contains([]string{"1", "5", "6", "7", "y", "gy", "argon2i", "argon2d", "argon2id", "scrypt", "2", "2x"}, scheme):
		return false, errors.New("the password is a hash, but not one by bcrypt")
	case !slices.Contains([]string{"2a", "2b", "2y"}, scheme):
		return false, nil
	}
	cost, err := bcrypt.Cost([]byte(s))
	_, digits, _ := strings.Cut(rest, "$")
	if err != nil || len(digits) != 53 || strings.ContainsFunc(digits, notOfBcrypt) {
		return false, errors.New("the password begins like a bcrypt hash, but is not one")
	}
	if cost > MaxHashCost {
		return false, fmt.Errorf("the hash has cost %d: want %d at most", cost, MaxHashCost)
	}
	return true, nil
}

// notOfBcrypt reports whether a hash of bcrypt cannot have the character.
func notOfBcrypt(r rune) bool {
	return r != '.' && r != '/' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
}

// hashOf returns the hash to verify a password of the user with. For a user who has
// none it returns one that no password has, so that it takes as long. Without any hash
// among the users it returns the empty string.
func (u *Users) hashOf(name string) (hash string, known bool) {
	if found := u.byName[name]; found != nil && found.hash != "" {
		return found.hash, true
	}
	if u.highestCost == 0 {
		return "", false
	}
	return decoy(u.highestCost), false
}

// withHash returns the user of that name and hash, or nil.
func (u *Users) withHash(name, hash string) *user {
	if found := u.byName[name]; found != nil && hash != "" && found.hash == hash {
		return found
	}
	return nil
}

// verifier verifies passwords of which the users have hashes. It remembers, for each
// hash, the password that it was found to be of, so that a client that comes again costs
// next to nothing.
type verifier struct {
	turns *fair.Queue
	key   []byte // of proved; drawn by newVerifier
	// compare is bcrypt.CompareHashAndPassword; tests count its calls.
	compare func(hash, password []byte) error

	mu     sync.Mutex
	proved map[string][]byte // MACs of passwords, by the hashes that they have
}

// newVerifier returns a verifier that leaves half of the processors to the rest.
func newVerifier() *verifier {
	v := &verifier{turns: fair.NewQueue(max(1, runtime.GOMAXPROCS(0)/2), 0), key: make([]byte, sha256.Size), compare: bcrypt.CompareHashAndPassword}
	rand.Read(v.key)
	return v
}

// prove returns the hash of the user, if the password has that, and otherwise the empty
// string. It waits until it may compute: strangers of one network do not delay users of
// others by more than one verification each. The lobby bounds how many wait.
func (v *verifier) prove(ctx context.Context, from fair.Block, users *Users, name, password string) (string, error) {
	hash, known := users.hashOf(name)
	if hash == "" || users.withPassword(name, digestOf(password)) != nil {
		return "", nil
	}
	mac := v.mac(password)
	if known && v.remembers(hash, mac) {
		return hash, nil
	}
	done, right := make(chan struct{}), false
	work := v.turns.Go(from, func() {
		defer close(done)
		right = v.verify(users, hash, known, password, mac)
	})
	select {
	case <-done:
	case <-ctx.Done():
		if !work.Cancel() {
			<-done
		}
		return "", ctx.Err()
	}
	if !right {
		return "", nil
	}
	return hash, nil
}

// verify reports whether a password has a hash, and remembers it if so. known says that
// the hash is a user's.
func (v *verifier) verify(users *Users, hash string, known bool, password string, mac []byte) bool {
	if known && v.remembers(hash, mac) { // another session was in front
		return true
	}
	head := password[:min(len(password), maxHashed)]
	if v.compare([]byte(hash), []byte(head)) != nil || !known || len(head) < len(password) {
		for _, more := range users.decoysBeside(hash) {
			_ = v.compare([]byte(more), []byte(head)) // no password has it
		}
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.proved == nil {
		v.proved = make(map[string][]byte)
	}
	v.proved[hash] = mac
	return true
}

// mac returns what is remembered of a password.
func (v *verifier) mac(password string) []byte {
	h := hmac.New(sha256.New, v.key)
	h.Write([]byte(password))
	return h.Sum(nil)
}

// remembers reports whether the password was found to have the hash.
func (v *verifier) remembers(hash string, mac []byte) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	proved := v.proved[hash]
	return proved != nil && hmac.Equal(proved, mac)
}

// keep forgets all hashes except the users'.
func (v *verifier) keep(users *Users) {
	v.mu.Lock()
	defer v.mu.Unlock()
	left := make(map[string][]byte)
	for _, u := range users.byName {
		if mac := v.proved[u.hash]; mac != nil {
			left[u.hash] = mac
		}
	}
	v.proved = left
}
