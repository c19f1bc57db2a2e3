package main

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// input reads ahead of its user, so that waiting for data can be abandoned. One
// goroutine at a time may use it.
type input struct {
	source io.Reader
	start  sync.Once
	chunks chan []byte // closed at the end, after err is set
	err    error       // of source; io.EOF after a regular end
	ended  atomic.Bool // all that there was has been taken
}

func newInput(source io.Reader) *input {
	return &input{source: source, chunks: make(chan []byte)}
}

// read sends chunks to in.chunks. There are two buffers: a caller that asks for
// a chunk no longer uses the one before.
func (in *input) read() {
	defer close(in.chunks)
	var buffers [2][32 << 10]byte
	for i := 0; ; i++ {
		buf := buffers[i%2][:]
		n, err := in.source.Read(buf)
		if n > 0 {
			in.chunks <- buf[:n]
		}
		if err != nil {
			in.err = err
			in.ended.Store(true)
			return
		}
	}
}

// next returns the next chunk, or io.EOF at the end. The chunk is valid until
// the next call. At a tick it returns no data. When ctx is done it returns its
// error, unless a chunk has been read already.
func (in *input) next(ctx context.Context, tick <-chan time.Time) ([]byte, error) {
	in.start.Do(func() { go in.read() })
	select {
	case chunk, ok := <-in.chunks:
		return in.take(chunk, ok)
	case <-tick:
		return nil, nil
	case <-ctx.Done():
	}
	select {
	case chunk, ok := <-in.chunks:
		return in.take(chunk, ok)
	default:
		return nil, ctx.Err()
	}
}

// take returns a chunk, or the error at the end.
func (in *input) take(chunk []byte, ok bool) ([]byte, error) {
	if !ok {
		return nil, in.err
	}
	return chunk, nil
}
