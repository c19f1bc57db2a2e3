package tunnel

import (
	"context"
	"errors"

	"github.com/arqnet/kcp/tunnel/internal/carrier"
)

const (
	// maxUnknown is how many sessions may be there at a time whose clients have not
	// shown an identity, and maxUnknownEach how many of one network.
	maxUnknown     = 256
	maxUnknownEach = 32
)

// errFull is why a session was ended to make room.
var errFull = errors.New("too many sessions have not authenticated yet")

// warn logs what a stranger has caused, if there is room.
func (s *Server) warn(text string, args ...any) { s.lobby.Warn(s.log, text, args...) }

// expectNothing ends a session if the client opens a further stream before stop is
// called: it has to wait for the answer to its hello, and could make the session hold
// much until then.
func expectNothing(ctx context.Context, conn carrier.Conn) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if _, err := conn.AcceptStream(ctx); err == nil {
			_ = conn.Abort(0, "")
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}
