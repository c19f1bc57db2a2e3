package ends

import (
	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv/life"
)

// Batch is one call of Group.Send for many sessions and streams.
type Batch struct {
	out   []kcp.Outgoing
	after []func(o *kcp.Outgoing)
}

// Add adds a write of an application, unless another one is under way. It is named by
// its session, or by its stream alone.
func (b *Batch) Add(a *App, id uint32, size int, named bool) {
	id = a.Pick(id)
	data, after, ok := a.Prepare(id, size)
	if !ok {
		return
	}
	o := kcp.Outgoing{Stream: a.Stream(id), Data: data}
	if id == 0 || named {
		o.Conn = a.Conn
	}
	b.out = append(b.out, o)
	b.after = append(b.after, func(o *kcp.Outgoing) {
		if a.Out(id).Messages && o.N != 0 && o.N != len(o.Data) {
			a.Fail("Send has queued a part of a message")
		}
		after(o.N, o.Err)
	})
}

// Send sends all.
func (b *Batch) Send() {
	kcp.NewGroup().Send(b.out)
	for i := range b.out {
		b.after[i](&b.out[i])
	}
}

var _ life.End = (*End)(nil)
