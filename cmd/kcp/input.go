package main

import (
	"context"
	"io"
	"sync"
)

// input reads ahead of who wants its data, so that waiting for data can be
// given up. One goroutine at a time may use it.
type input struct {
	source io.Reader
	start  sync.Once
	chunks chan []byte // closed at the end, after err is set
	err    error       // of source, if it did not end well
	ready  []byte      // received by wait, not yet returned by next
}

func newInput(source io.Reader) *input {
	return &input{source: source, chunks: make(chan []byte)}
}

// read hands out chunks. There are two buffers: who asks for a chunk is done
// with the one before.
func (in *input) read() {
	defer close(in.chunks)
	var buffers [2][32 << 10]byte
	for i := 0; ; i++ {
		buf := buffers[i%2][:]
		n, err := in.source.Read(buf)
		if n > 0 {
			in.chunks <- buf[:n]
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			in.err = err
			return
		}
	}
}

// wait waits until there is something to read, and returns io.EOF if there
// never will be.
func (in *input) wait(ctx context.Context) error {
	if in.ready != nil {
		return nil
	}
	in.start.Do(func() { go in.read() })
	select {
	case chunk, ok := <-in.chunks:
		switch {
		case ok:
			in.ready = chunk
			return nil
		case in.err != nil:
			return in.err
		}
		return io.EOF
	case <-ctx.Done():
		return ctx.Err()
	}
}

// next returns what was read next, or io.EOF at the end. It is valid until the
// next call.
func (in *input) next(ctx context.Context) ([]byte, error) {
	if err := in.wait(ctx); err != nil {
		return nil, err
	}
	chunk := in.ready
	in.ready = nil
	return chunk, nil
}
