package e2e

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/netsim"
)

// failOnPurpose, if set in the environment, makes TestFailsOnPurpose fail.
const failOnPurpose = "KCP_FAIL_ON_PURPOSE"

// A test that fails within a world, with calls of other goroutines blocked, prints one
// error. The process goes on, so that other tests give their results.
func TestFailureIsOneError(t *testing.T) {
	t.Parallel()
	c := exec.Command(os.Args[0], "-test.v", "-test.run", "^TestFailsOnPurpose$")
	// An empty value lets worlds run in the stage without MMSG, too.
	c.Env = append(os.Environ(), failOnPurpose+"=1", "KCP_DISABLE_MMSG=")
	b, err := c.CombinedOutput()
	out := string(b)
	require.Error(t, err, out)
	for text, n := range map[string]int{
		"Error Trace:":   1,
		"one is not two": 1,
		"--- FAIL: TestFailsOnPurpose/in_a_world": 1,
		"--- PASS: TestFailsOnPurpose/beside_it":  1,
		"panic":                                   0,
		"FailNow on a parent":                     0,
		"deadlock":                                0,
	} {
		require.Equal(t, n, strings.Count(out, text), "%q in\n%s", text, out)
	}
}

func TestFailsOnPurpose(t *testing.T) {
	if os.Getenv(failOnPurpose) == "" {
		t.Skip("it fails for TestFailureIsOneError alone")
	}
	t.Run("in a world", func(t *testing.T) {
		inWorld(t, 1, netsim.LinkConfig{}, func(t *testing.T, w *world) {
			client, server, l := w.pair(nil, nil)
			go func() { _, _ = l.Accept() }()
			go func() { _, _ = server.Read(make([]byte, 1)) }()
			go func() { _, _ = client.Write(make([]byte, 64<<20)) }()
			go func() { _, _ = client.AcceptStream(t.Context()) }()
			go func() { _, _ = client.ReceiveDatagram(t.Context()) }()
			synctest.Wait()
			require.Equal(t, 1, 2, "one is not two")
		})
	})
	t.Run("beside it", func(t *testing.T) {
		inWorld(t, 1, netsim.LinkConfig{}, func(t *testing.T, w *world) {
			client, server, _ := w.pair(nil, nil)
			require.NoError(t, client.Close())
			_, err := server.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
		})
	})
}
