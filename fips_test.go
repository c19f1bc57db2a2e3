package kcp

import (
	"bytes"
	"crypto/fips140"
	"os"
	"os/exec"
	"testing"

	"github.com/arqnet/kcp/crypt"
	"github.com/stretchr/testify/require"
)

// AES-GCM works in programs that are held to FIPS 140-3, and packets are those
// of other programs.
func TestAESGCMUnderFIPS(t *testing.T) {
	long(t)
	const want = "the same packets"
	key := bytes.Repeat([]byte{1}, 32)
	if path := os.Getenv("KCP_TEST_FIPS"); path != "" {
		require.True(t, fips140.Enabled())
		c, err := crypt.AESGCM(key)
		require.NoError(t, err)
		packet, err := os.ReadFile(path)
		require.NoError(t, err)
		got, err := c.Open(packet)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
		require.NoError(t, os.WriteFile(path, sealed(t, c, []byte(want+want)), 0o600))
		return
	}
	c, err := crypt.AESGCM(key)
	require.NoError(t, err)
	path := t.TempDir() + "/packet"
	require.NoError(t, os.WriteFile(path, sealed(t, c, []byte(want)), 0o600))
	test := exec.Command(os.Args[0], "-test.run=^TestAESGCMUnderFIPS$")
	test.Env = append(os.Environ(), "GODEBUG=fips140=only", "KCP_TEST_FIPS="+path)
	out, err := test.CombinedOutput()
	require.NoError(t, err, "%s", out)
	packet, err := os.ReadFile(path)
	require.NoError(t, err)
	got, err := c.Open(packet)
	require.NoError(t, err)
	require.Equal(t, want+want, string(got))
}
