package tunnel

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/crypto/bcrypt"
)

// Users are those who may connect to a server, and what each may reach. They do not
// change.
//
// A file of users is a JSON object, in the form of chisel. Its keys are
// "name:password", or only "name" for the owner of a client certificate with that
// common name. A hash by bcrypt may stand for a password, as
// HashPassword makes it and htpasswd -B does. Its values are lists of regular
// expressions, of which one has to match what is asked for:
//
//	host:port        a TCP connection: 127.0.0.1:80, [::1]:80, example.com:443
//	host:port/udp    UDP packets
//	R:host:port      that the server listens there: R:0.0.0.0:2222
//	R:host:port/udp  the same for UDP
//	socks            anything by SOCKS5; a target that is allowed by itself needs no more
//
// As in chisel, "" and "*" allow everything. Each alternative of another expression begins
// with ^ and ends with $, as in ^10\.0\..*$. Addresses have one spelling only:
// IPv6 in brackets and as short as can be, IPv4 within IPv6 as IPv4, names in lower
// case, no leading zeros. A rule that allows a name allows whatever the name
// resolves to at the server. A rule of digits and dots, such as ^10\.0\..*$, is about
// addresses of IPv4 alone: it does not match the name 10.0.evil.example. Link-local
// addresses have a zone, which is the name of an interface of the server:
// [fe80::1%eth0]:80. No other address has one.
type Users struct {
	byName map[string]*user
	key    []byte // of the hashes of passwords; drawn for this Users alone
	// highestCost is the highest cost of the hashes of bcrypt; 0: there are none.
	highestCost int
	warnings    []string
}

// user is one of Users.
type user struct {
	name     string
	password []byte // hash; nil: by certificate only
	hash     string // of bcrypt, in place of password, which is then none that is sent
	rules    []rule
}

// LoadUsers reads a file of users, of which there has to be one.
func LoadUsers(path string) (*Users, error) { return loadUsers(path, false) }

// LoadUnanchoredUsers is LoadUsers for files of chisel, whose expressions match anywhere
// in the text unless they begin with ^ and end with $.
func LoadUnanchoredUsers(path string) (*Users, error) { return loadUsers(path, true) }

func loadUsers(path string, open bool) (*Users, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	users, err := parseUsers(text, path+":%d: %w", open)
	if err == nil && users.Len() == 0 {
		err = fmt.Errorf("%s: the file has no users", path)
	}
	if err != nil {
		return nil, err
	}
	return users, nil
}

// ParseUsers parses the text of a file of users. Passwords do not appear in its errors,
// which are joined.
func ParseUsers(text []byte) (*Users, error) { return parseUsers(text, "line %d: %w", false) }

// parseUsers is ParseUsers with a format of errors, with their line. Rules may be open if
// open is set.
func parseUsers(text []byte, format string, open bool) (*Users, error) {
	u := &Users{byName: make(map[string]*user), key: make([]byte, sha256.Size)}
	rand.Read(u.key)
	at := func(offset int64, err error) error {
		return fmt.Errorf(format, 1+bytes.Count(text[:offset], []byte("\n")), err)
	}
	if err := json.Unmarshal(text, new(any)); len(text) > 0 && err != nil { // all of it
		var place *json.SyntaxError
		if !errors.As(err, &place) { // a number that is too large
			place = new(json.SyntaxError)
		}
		return nil, at(place.Offset, fmt.Errorf("invalid JSON: %w", err))
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, at(0, errors.New(`want an object such as {"name:password": ["^127\\.0\\.0\\.1:80$"]}`))
	}
	var mistakes []error
	for dec.More() {
		key, err := dec.Token()
		line := dec.InputOffset()
		if err != nil {
			return nil, at(line, err)
		}
		var rules []*string
		if err = dec.Decode(&rules); err != nil {
			err = fmt.Errorf("want a list of regular expressions: %w", err)
		} else {
			err = u.add(key.(string), rules, open)
		}
		if err != nil {
			name, _, _ := strings.Cut(key.(string), ":")
			mistakes = append(mistakes, at(line, fmt.Errorf("user %q: %w", name, err)))
		}
	}
	if len(mistakes) > 0 {
		return nil, errors.Join(mistakes...)
	}
	return u, nil
}

// Warnings returns what may not be meant in the rules.
func (u *Users) Warnings() []string { return u.warnings }

// add adds the user of a key.
func (u *Users) add(key string, rules []*string, open bool) error {
	name, password, byPassword := strings.Cut(key, ":")
	added := &user{name: name}
	hashed, err := isHash(password)
	switch {
	case name == "":
		return errors.New("no name")
	case u.byName[name] != nil:
		return errors.New("given twice")
	case byPassword && password == "":
		return errors.New("an empty password; without the colon it is a user with a certificate")
	case err != nil:
		return err
	case hashed:
		cost, _ := bcrypt.Cost([]byte(password)) // isHash has looked at it
		added.password, added.hash, u.highestCost = []byte(password), password, max(u.highestCost, cost)
	case byPassword:
		added.password = u.hash(digestOf(password))
	}
	if rules == nil {
		return errors.New("want a list of regular expressions, not null")
	}
	for _, rule := range rules {
		if rule == nil {
			return errors.New("null is not a regular expression")
		}
		text := *rule
		if text == "*" {
			text = ""
		}
		one, err := parseRule(text)
		switch {
		case err != nil:
			return fmt.Errorf("rule %w", err)
		case one.open != nil && !open:
			return fmt.Errorf("rule %w", one.open)
		case one.looseDot && !open:
			u.warnings = append(u.warnings, fmt.Sprintf(`user %q: rule %q: a dot matches any character: write \\. for a dot`, name, text))
		}
		added.rules = append(added.rules, one)
	}
	u.byName[name] = added
	return nil
}

// hash returns a hash of a password, of fixed length whatever the password's length.
func (u *Users) hash(password digest) []byte {
	h := hmac.New(sha256.New, u.key)
	h.Write(password[:])
	return h.Sum(nil)
}

// digest is what sessions keep of a password, to compare it with other Users.
type digest [sha256.Size]byte

func digestOf(password string) digest { return sha256.Sum256([]byte(password)) }

// decoy returns a hash of bcrypt that no password has.
func decoy(cost int) string {
	return fmt.Sprintf("$2a$%02d$", cost) + strings.Repeat(".", 53)
}

// decoysBeside returns what a wrong password is compared with beside a hash, so that all
// of it takes as long as one comparison of the highest cost: a cost of n takes 2^n.
// Otherwise the time would tell who is a user.
func (u *Users) decoysBeside(hash string) (all []string) {
	cost, err := bcrypt.Cost([]byte(hash))
	for ; err == nil && cost < u.highestCost; cost++ {
		all = append(all, decoy(cost))
	}
	return all
}

// Len returns the number of users.
func (u *Users) Len() int {
	if u == nil {
		return 0
	}
	return len(u.byName)
}

// withPassword returns the user of that name and password, or nil. It takes as long
// for a name that is not there.
func (u *Users) withPassword(name string, password digest) *user {
	found := u.byName[name]
	want := make([]byte, sha256.Size)
	if found != nil && found.password != nil {
		want = found.password
	}
	equal := subtle.ConstantTimeCompare(u.hash(password), want) == 1
	if !equal || found == nil || found.password == nil {
		return nil
	}
	return found
}

// withCertificate returns the user that the common name of a certificate names, or
// nil.
func (u *Users) withCertificate(name string) *user {
	if found := u.byName[name]; found != nil && found.password == nil {
		return found
	}
	return nil
}

// passwords reports whether any user has one.
func (u *Users) passwords() bool {
	for _, one := range u.byName {
		if one.password != nil {
			return true
		}
	}
	return false
}

// matches reports whether one of the user's rules matches.
func (u *user) matches(what string) bool {
	kind := kindOfHost(what)
	return slices.ContainsFunc(u.rules, func(r rule) bool { return r.matches(what, kind) })
}

// rule returns what rules are matched against for an opening whose target is in
// canonical form.
func (o opening) rule() string {
	switch o.kind {
	case kindUDP, kindSocksUDP:
		return o.target + "/udp"
	case kindListenTCP, kindListenSocks:
		return "R:" + o.target
	case kindListenUDP:
		return "R:" + o.target + "/udp"
	}
	return o.target
}

// allows reports whether the user may have what o asks for.
func (u *user) allows(o opening) bool {
	switch o.kind {
	case kindTCP, kindUDP, kindListenTCP, kindListenUDP, kindListenSocks:
		return u.matches(o.rule())
	case kindSocksTCP, kindSocksUDP:
		return u.matches("socks") || u.matches(o.rule())
	}
	return false
}
