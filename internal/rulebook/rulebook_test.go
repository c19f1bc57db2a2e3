package rulebook

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for figure, want := range map[string]float64{
		"25 ms": 25e6, "64 KiB": 65536, "5 s": 5e9, "8192": 8192, "srtt/16": 16, "36 %": 0.36,
		"10 000": 10000, "2^22": 1 << 22, "10 to 20 s": 10e9, "1/16 s": 62.5e6, "10/16": 0.625,
		"20th": 20, "4 segments": 4, "30 min": 1800e9, "24 h": 86400e9, "0.2 to 3 s": 0.2e9, "512 µs": 512e3,
		"x 1.5": 1.5, "60 s, 8192 entries": 60e9,
	} {
		got, err := parse(figure)
		require.NoError(t, err, figure)
		require.InEpsilon(t, want, got, 1e-9, figure)
	}
	_, err := parse("some")
	require.Error(t, err)
}

func TestFiguresThatDiffer(t *testing.T) {
	rules := split("# Head\n\nA paragraph of 5 s\ngoes on for 25 s.\n\n| rule | 16 KiB |\n| other | 2.5 s |\n* an item\n  of 4 ms")
	require.Equal(t, []string{
		"# Head", "A paragraph of 5 s goes on for 25 s.", "| rule | 16 KiB |", "| other | 2.5 s |", "* an item of 4 ms",
	}, rules)
	for _, test := range []struct {
		Figure
		err string
	}{
		{Figure{"goes on", "5 s", 5 * time.Second}, ""},
		{Figure{"goes on", "25 s", 25 * time.Second}, ""},
		{Figure{"rule", "16 KiB", 16 << 10}, ""},
		{Figure{"item", "4 ms", 4 * time.Millisecond}, ""},
		{Figure{"goes on", "5 s", 6 * time.Second}, "the code has 6s"},
		{Figure{"other", "5 s", 5 * time.Second}, "does not say"},
		{Figure{"rule", "6 KiB", 6 << 10}, "does not say"},
		{Figure{"none", "5 s", 5 * time.Second}, "no rule has"},
		{Figure{"o", "5 s", 5 * time.Second}, ""}, // of several rows one says it
		{Figure{"s", "5 s", 5 * time.Second}, ""},
		{Figure{"ru", "5 s", 5 * time.Second}, "does not say"},
	} {
		err := test.check(rules)
		if test.err == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, test.err)
	}
}
