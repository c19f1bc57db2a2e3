package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/arqnet/kcp/tunnel/kcptun"
	"github.com/urfave/cli/v3"
)

// applyKcptunFile sets the flags of c that a file of kcptun names, which goes before the
// command line. It takes what kcptun takes: keys in any case, the last one of the same
// name, null for the default, and unknown keys. It returns the settings without effect.
func applyKcptunFile(c *cli.Command, path string) (idle []string, err error) {
	text, err := readFile(path)
	if err != nil {
		return nil, &usageError{c.FullName(), err}
	}
	settings, err := parseKcptunFile(text)
	if err != nil {
		return nil, wrong(c, "%s: %w", path, err)
	}
	for _, s := range settings {
		flag := kcptunFlag(c, s.key)
		if flag == nil {
			idle = append(idle, s.key)
			continue
		}
		value, err := s.text()
		if err != nil {
			return nil, wrong(c, "%s: %s: %w", path, s.key, err)
		}
		name := flag.Names()[0]
		if other := insteadOf(name, value); other != value {
			idle = append(idle, fmt.Sprintf("%s %s, which is %s", name, value, other))
			value = other
		}
		if err := c.Set(name, value); err != nil {
			return nil, wrong(c, "%s: %s: %q: %w", path, s.key, value, err)
		}
	}
	return idle, nil
}

// kcptunSetting is a key of a file of kcptun with its value.
type kcptunSetting struct {
	key   string
	value json.RawMessage
}

// parseKcptunFile returns the settings of a file in their order, except for those that
// are null.
func parseKcptunFile(text []byte) (all []kcptunSetting, err error) {
	dec := json.NewDecoder(bytes.NewReader(bytes.TrimPrefix(text, []byte("\ufeff"))))
	var whole json.RawMessage
	if err := dec.Decode(&whole); err != nil {
		return nil, fmt.Errorf("invalid JSON: %w", err)
	}
	dec = json.NewDecoder(bytes.NewReader(whole))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New(`want an object, such as {"key": "it's a secrect"}`)
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		if string(value) != "null" {
			all = append(all, kcptunSetting{key.(string), value})
		}
	}
	return all, nil
}

// text returns the value as it stands on a command line.
func (s *kcptunSetting) text() (string, error) {
	switch s.value[0] {
	case '{', '[':
		return "", errors.New("want one value")
	case '"':
		var text string
		err := json.Unmarshal(s.value, &text)
		return text, err
	}
	return string(s.value), nil
}

// kcptunFlag returns the flag that a key names, or nil. Short names are for the command
// line only.
func kcptunFlag(c *cli.Command, key string) cli.Flag {
	for _, f := range c.Flags {
		if name := f.Names()[0]; strings.EqualFold(name, key) && name != "c" && name != "help" {
			return f
		}
	}
	return nil
}

// insteadOf returns what kcptun takes for a value that it does not know.
func insteadOf(name, value string) string {
	switch {
	case name == "crypt" && !slices.Contains(kcptun.Ciphers(), value):
		return "aes"
	case name == "mode" && !slices.Contains([]string{"normal", "fast", "fast2", "fast3", "manual"}, value):
		return "manual"
	}
	return value
}

// withoutEffect returns the settings of the command line and of the file that have no
// effect, and would have one in kcptun.
func withoutEffect(c *cli.Command, idle []string) []string {
	for _, f := range notOurs() {
		if name := f.Names()[0]; c.IsSet(name) && !slices.Contains([]string{"", "0", "false"}, fmt.Sprint(c.Value(name))) {
			idle = append(idle, name)
		}
	}
	slices.Sort(idle)
	return slices.Compact(idle)
}
