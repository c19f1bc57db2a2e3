package tunnel

import (
	"bytes"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOpening(t *testing.T) {
	o := opening{kind: kindTCP, listener: 7, target: "example.com:443"}
	b := o.append(nil)
	got, err := readOpening(bytes.NewReader(append(b, "rest"...)))
	require.NoError(t, err)
	require.Equal(t, o, got)
	for n := range len(b) {
		_, err := readOpening(bytes.NewReader(b[:n]))
		require.ErrorIs(t, err, map[bool]error{true: io.EOF, false: io.ErrUnexpectedEOF}[n == 0 || n == 2 || n == openingSize], n)
	}
	other := append([]byte{2}, b[1:]...)
	_, err = readOpening(bytes.NewReader(other))
	require.ErrorIs(t, err, refusal(codeVersion))
	long := opening{kind: kindTCP, target: strings.Repeat("a", maxTarget+1)}
	_, err = readOpening(bytes.NewReader(long.append(nil)))
	require.ErrorIs(t, err, refusal(codeMalformed))
}

func TestHello(t *testing.T) {
	var b bytes.Buffer
	h := hello{User: "me", Password: "secret", Wants: []string{"socks"}}
	require.NoError(t, writeJSON(&b, h))
	var got hello
	require.NoError(t, readJSON(&b, &got))
	require.Equal(t, h, got)
	require.ErrorIs(t, readJSON(strings.NewReader("\xff\xff\xff\xff"), &got), refusal(codeMalformed))
	require.ErrorIs(t, readJSON(strings.NewReader("\x00\x00\x00\x01{"), &got), refusal(codeMalformed))
	require.ErrorIs(t, readJSON(strings.NewReader("\x00\x00\x00\x02{"), &got), io.ErrUnexpectedEOF)
	require.Error(t, writeJSON(&b, hello{User: strings.Repeat("x", maxHello)}))
}

// What a server says is printed on one line, and not all of it.
func TestTextsOfServersAreCut(t *testing.T) {
	long := strings.Repeat("x\x1b\n\u202e", 10_000)
	for _, err := range []*HelloError{{string(helloForbidden), long}, {string(helloVersion), long}, {string(helloAttempts), long}, {string(helloNoRules), long}, {long, ""}} {
		text := err.Error()
		require.Less(t, len(text), 5*maxPrinted)
		require.False(t, strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }), text)
	}
	remote := "R:" + strings.Repeat("a", 253) + ":65535/udp"
	require.ErrorContains(t, &HelloError{string(helloForbidden), remote}, "does not allow "+remote)
}
