package pages

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The files are those of the package, and may stand between the tags of a page.
func TestFilesOfUPlot(t *testing.T) {
	for _, f := range []struct{ content, sum, tag string }{
		{PlotScript, "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f", "</script"},
		{PlotStyle, "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04", "</style"},
	} {
		sum := sha256.Sum256([]byte(f.content))
		require.Equal(t, f.sum, hex.EncodeToString(sum[:]))
		require.NotContains(t, strings.ToLower(f.content), f.tag)
	}
	require.Contains(t, PlotLicense, "MIT License")
}
