package closing

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// A reason arrives as it was sent, as far as there is room, and is valid UTF-8.
func TestReasons(t *testing.T) {
	for _, test := range []struct {
		text string
		room int
		want string
	}{
		{"", 100, ""}, {"done", 100, "done"}, {"done", 8, ""}, {"done", 0, ""}, {"done", -5, ""}, {"done", 11, "don"},
		{"\u00e4\u00f6\u00fc", 100, "\u00e4\u00f6\u00fc"}, {"\u00e4\u00f6\u00fc", 8 + 3, "\u00e4"}, {"\u00e4\u00f6\u00fc", 8 + 1, ""},
		{"a\xff", 100, "a\uFFFD"}, {strings.Repeat("x", 300), 1000, strings.Repeat("x", 256)},
	} {
		b := EncodeReason(7<<40, test.text, test.room)
		require.LessOrEqual(t, len(b), max(test.room, ReasonCode))
		code, text, ok := DecodeReason(b)
		require.True(t, ok)
		require.Equal(t, uint64(7<<40), code)
		require.Equal(t, test.want, text, "%q in %d", test.text, test.room)
	}
}

// What the peer sends is refused unless it has the size of a reason, and made valid.
func TestReasonsThatAreMalformed(t *testing.T) {
	for size, want := range map[int]bool{0: false, 7: false, 8: true, 264: true, 265: false} {
		_, _, ok := DecodeReason(make([]byte, size))
		require.Equal(t, want, ok, "%d bytes", size)
	}
	_, text, _ := DecodeReason([]byte("12345678\xffx"))
	require.True(t, utf8.ValidString(text))
}
