package tunnel

import (
	"strings"
	"testing"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// Strangers that do not say who they are leave room for users, of their own address too,
// and have one stream each.
func TestStrangersLeaveRoom(t *testing.T) {
	t.Parallel()
	s := startServer(t, everything, nil)
	var strangers []*kcp.Conn
	for i := range maxUnknownEach {
		strangers = append(strangers, raw(t, s))
		_ = start(t, strangers[i], opening{kind: kindHello}.append(nil))
		waitFor(t, func() bool { // the first is the oldest
			return s.lobby.Len() == i+1
		})
	}
	at := testenv.Target(t, testenv.Echo)
	for _, bind := range []string{"127.0.0.1", "127.0.0.2"} {
		config := clientConfig(t, s, "0:"+at)
		config.Binds = []string{bind}
		exchange(t, dial(t, startClient(t, config).address(t)), 1000)
	}
	<-strangers[0].Done()
	var closed *kcp.PeerCloseError
	require.ErrorAs(t, strangers[0].Err(), &closed)
	require.EqualValues(t, closeRoom, closed.Code)
	waitFor(t, func() bool { return strings.Contains(s.log.String(), errFull.Error()) })
	for _, stranger := range strangers[1:] {
		require.NoError(t, stranger.Err(), "one made room for the user of the same address")
	}
}
