package life

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What String returns, Parse takes, and nothing else. Bytes make scripts of any length.
func TestScripts(t *testing.T) {
	table := Weighted("write 2 open 1 reset 1 wait 1 close 1")
	for seed := range uint64(50) {
		s := table.Of(table.Random(rand.New(rand.NewPCG(seed, 0)), int(seed)*4))
		require.Len(t, s.Steps, min(int(seed)*4, MaxSteps))
		again, err := Parse(s.String())
		require.NoError(t, err)
		require.Equal(t, s, again)
	}
	for _, text := range []string{"c:write", "zz", "a:write:x", "a:write:1,2,3,4", "write"} {
		_, err := Parse(text)
		require.Error(t, err, text)
	}
}

// exchange is a good session in message mode, or of bytes: end 0 writes three times, and
// both end in order.
func exchange(mode bool) (s *Session, failures *[]string) {
	failures = new([]string)
	s = &Session{Mode: mode, Whole: true, Clean: true, Fail: func(text string) { *failures = append(*failures, text) }}
	s.Begin()
	out, back := s.Flow(0, 0), s.Flow(1, 0)
	for range 3 {
		number, b := out.Begin(100, Message{Wants: true})
		out.End(number, true)
		out.Receipt(number, "")
		out.Takes(b)
	}
	for i := range s.Ends {
		s.Ends[i] = Seen{There: true, Ended: true, Called: Close}
	}
	out.Ends(EOF, 0)
	back.Ends(EOF, 0)
	return s, failures
}

// The judge finds each kind of wrong, and nothing where nothing is.
func TestJudge(t *testing.T) {
	messages, bytes := 1, 2
	for name, c := range map[string]struct {
		in    int
		spoil func(s *Session, f *Flow)
	}{
		"": {messages | bytes, func(*Session, *Flow) {}},
		"a wrong byte": {bytes, func(_ *Session, f *Flow) {
			f.Got.Ended = ""
			f.Written.Bytes++
			f.Takes([]byte{f.bytesAt(300, 1)[0] ^ 1})
		}},
		"bytes not written":     {bytes, func(_ *Session, f *Flow) { f.Got.Ended = ""; f.Takes(f.bytesAt(300, 1)) }},
		"bytes after the end":   {bytes, func(_ *Session, f *Flow) { f.Written.Bytes++; f.Takes(f.bytesAt(300, 1)) }},
		"the end too soon":      {bytes, func(_ *Session, f *Flow) { f.Got.Bytes-- }},
		"a message missing":     {messages, func(_ *Session, f *Flow) { f.Got.Numbers = f.Got.Numbers[:2] }},
		"a message twice":       {messages, func(_ *Session, f *Flow) { f.Got.Numbers = append(f.Got.Numbers, 3) }},
		"messages out of order": {messages, func(_ *Session, f *Flow) { f.Got.Numbers = []uint32{2, 1, 3} }},
		"a message not sent":    {messages, func(_ *Session, f *Flow) { f.Got.Numbers = []uint32{1, 2, 3, 4} }},
		"a message of another":  {messages, func(s *Session, f *Flow) { f.Got.Ended = ""; f.Takes(s.Flow(1, 0).content(3, 100)) }},
		"no receipt":            {messages | bytes, func(_ *Session, f *Flow) { f.Written.Sent[1].Receipts = nil }},
		"two receipts":          {messages | bytes, func(_ *Session, f *Flow) { f.Receipt(1, "") }},
		"a false receipt":       {messages | bytes, func(_ *Session, f *Flow) { f.Written.Sent[1].Receipts[0] = Abandoned }},
		"an error of Write":     {messages | bytes, func(s *Session, _ *Flow) { s.Ends[0].Write = ResetByPeer }},
		"an unknown error":      {messages | bytes, func(s *Session, _ *Flow) { s.Broken, s.Clean, s.Ends[0].Write = true, false, "unknown: x" }},
		"Close says too much":   {messages | bytes, func(s *Session, f *Flow) { s.Clean, f.Got.Ended = false, PeerLost }},
		"Close says too little": {messages | bytes, func(s *Session, _ *Flow) { s.Clean, s.Ends[0].Close = false, NotDelivered }},
		"Close says that what was reset was lost": {messages | bytes, func(s *Session, _ *Flow) {
			s.Add(1, StreamOptions{})
			s.Clean, s.Ends[0].Close = false, NotDelivered
			s.Flow(0, 1).Written.Bytes, s.Flow(0, 1).Written.Dropped = 10, true
		}},
		"a false end":        {messages | bytes, func(_ *Session, f *Flow) { f.Got.Ended = ResetByPeer }},
		"a reason of nobody": {messages | bytes, func(s *Session, _ *Flow) { s.Ends[1].Told = true }},
		"a reason not told": {messages | bytes, func(s *Session, _ *Flow) {
			s.Ends[0].Called, s.Ends[0].Gives, s.Ends[0].Calls = Reason, true, 1
		}},
		"a code of nobody": {messages, func(s *Session, _ *Flow) {
			s.Add(1, StreamOptions{})
			s.Flow(0, 1).Ends(StreamReset, 7)
		}},
	} {
		for _, mode := range []bool{true, false} {
			if mode && c.in&messages == 0 || !mode && c.in&bytes == 0 {
				continue
			}
			s, failures := exchange(mode)
			c.spoil(s, s.Flow(0, 0))
			s.Check()
			require.Equal(t, name != "", len(*failures) > 0, "%s: %s", name, strings.Join(*failures, "\n"))
		}
	}
}
