package container

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestSizes(t *testing.T) {
	for _, test := range []struct{ n, want int }{
		{1, 128}, {128, 128}, {129, 512}, {512, 512}, {513, 1536}, {1536, 1536}, {1537, 4096},
		{4096, 4096}, {4097, 16384}, {16384, 16384}, {16385, 65536}, {65536, 65536},
	} {
		require.Equal(t, test.want, BufferSize(test.n), test.n)
		buf := new(Pool[int]).Get(test.n)
		require.Len(t, buf, test.n)
		require.Equal(t, test.want, cap(buf), test.n)
	}
	require.Nil(t, new(Pool[int]).Get(0))
}

// A buffer goes to who asks for its size, once, and is counted until then.
func TestReuse(t *testing.T) {
	var p Pool[int]
	small, large := p.Get(1), p.Get(1000)
	require.Zero(t, p.Held())
	p.Put(small)
	p.Put(large)
	p.Put(make([]byte, 100)) // not of a size
	require.Equal(t, 128+1536, p.Held())
	require.Same(t, &large[0], &p.Get(600)[0])
	require.Equal(t, 128, p.Held())
	require.NotSame(t, &large[0], &p.Get(600)[0])
	require.Same(t, &small[0], &p.Get(128)[0])
	require.Zero(t, p.Held())
}

// A buffer that grows keeps its content, and its place while that is large enough.
func TestGrow(t *testing.T) {
	var p Pool[int]
	buf := append(p.Get(3)[:0], "abc"...)
	grown := p.Grow(buf, 128)
	require.Same(t, &buf[0], &grown[0])
	grown = p.Grow(buf, 129)
	require.Len(t, grown, 129)
	require.Equal(t, "abc", string(grown[:3]))
	require.Equal(t, 128, p.Held(), "the smaller buffer is free")
}

// Trim releases what was not needed since the last one, and counts the rest.
func TestTrim(t *testing.T) {
	var p Pool[[10]int]
	p.Trim(1, 100) // nothing is held
	for _, begin := range []uint32{1, 1<<32 - 250} {
		var all [][]byte
		var elements []*[10]int
		for range 10 {
			all, elements = append(all, p.Get(600)), append(elements, p.New())
		}
		for i := range all {
			p.Put(all[i])
			p.Free(elements[i])
		}
		const element = int(unsafe.Sizeof([10]int{}))
		const each = 1536 + element
		p.Trim(begin, 100)
		require.Equal(t, 10*each, p.Held(), "the first one sees how much there is")
		p.Trim(begin+99, 100)
		require.Equal(t, 10*each, p.Held(), "too early")
		first, second := p.Get(600), p.Get(600) // two are in use at a time
		p.Put(first)
		p.Put(second)
		p.Free(p.New())
		p.Put(p.Get(1)) // of another class
		p.Trim(begin+100, 100)
		require.Equal(t, 2*1536+element+128, p.Held())
		p.Put(p.Get(600))
		p.Trim(begin+300, 100)
		require.Equal(t, 1536, p.Held())
		p.Trim(begin+400, 100)
		require.Zero(t, p.Held())
	}
}

func TestElements(t *testing.T) {
	var p Pool[int]
	e := p.New()
	*e = 7
	p.Free(e)
	require.Same(t, e, p.New())
	require.Zero(t, *e)
	require.NotSame(t, e, p.New())
}
