package streams

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each kind of stream segment survives its encoding, at the extremes of every
// field, and nothing that is shorter decodes.
func TestHeaders(t *testing.T) {
	for _, h := range []Header{
		{ID: 1, Kind: Data, End: true, MID: math.MaxUint32},
		{ID: math.MaxUint32, Kind: Data, Part: true, MID: 1, FSN: math.MaxUint32},
		{ID: 2, Kind: Data, Part: true, End: true, Opens: true, Params: Params{true, -128, 65535, math.MaxUint32}},
		{ID: 3, Kind: Abandon, MID: 7, Size: NoSegment},
		{ID: 3, Kind: Abandon, Opens: true, Params: Params{Priority: 127}, MID: 7, Size: 3},
		{ID: 3, Kind: Abandon, End: true, MID: math.MaxUint32, Size: 3},
		{ID: 4, Kind: Fin, MID: 1 << 31},
		{ID: 5, Kind: Reset, Code: math.MaxUint64},
		{ID: 6, Kind: Stop, Code: 1},
		{ID: 7, Kind: Credit, Limit: math.MaxUint32},
		{ID: 8, Kind: Open, Opens: true},
		{Kind: MaxStreams, Streams: math.MaxUint32},
	} {
		b := h.Append(nil)
		require.LessOrEqual(t, len(b), MaxHeader)
		data := "payload"
		if h.Kind != Data {
			data = ""
			_, _, ok := Decode(append(bytes.Clone(b), 1))
			require.False(t, ok, "%+v with payload", h)
		}
		got, rest, ok := Decode(append(bytes.Clone(b), data...))
		require.True(t, ok, "%+v", h)
		require.Equal(t, h, got)
		require.Equal(t, data, string(rest))
		for n := range len(b) {
			_, _, ok := Decode(b[:n])
			require.False(t, ok, "%d bytes of %+v", n, h)
		}
	}
	for _, bad := range [][]byte{
		{0, 0, 0, 0, flagEnd, 1, 0, 0, 0},                        // id 0
		{1, 0, 0, 0, 0, 1, 0, 0, 0},                              // neither an end nor a fragment
		{1, 0, 0, 0, 7, 1, 0, 0, 0},                              // unknown kind
		{0, 0, 0, 0, flagOptions | 7, 1, 0, 0, 0},                // MAX_STREAMS with bits
		{0, 0, 0, 0, byte(Open), 1, 0, 0, 0},                     // another kind of no stream
		{1, 0, 0, 0, flagEnd | 0x40, 1, 0, 0, 0},                 // unknown flag
		{1, 0, 0, 0, byte(Fin) | flagEnd, 1, 0, 0, 0},            // a FIN that ends a message
		{1, 0, 0, 0, byte(Fin) | flagFragment, 1, 0, 0, 0},       // or is a fragment
		{1, 0, 0, 0, 0x11, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0},         // a fragment that is given up
		{1, 0, 0, 0, byte(Open)},                                 // options without options
		{1, 0, 0, 0, byte(Open) | flagOptions, 0, 0, 0, 0},       // half of them
		{1, 0, 0, 0, byte(Abandon), 0, 0, 0, 0},                  // without size
		{1, 0, 0, 0, byte(Reset), 0, 0, 0, 0},                    // half a code
		{1, 0, 0, 0, byte(flagEnd | flagFragment), 0, 0, 0, 0},   // without fsn
		{1, 0, 0, 0, byte(flagEnd | flagOptions), 0, 0, 0, 0, 0}, // without mid
	} {
		_, _, ok := Decode(bad)
		require.False(t, ok, "%x", bad)
	}
}
