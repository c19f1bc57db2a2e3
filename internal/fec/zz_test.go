package fec
import ("testing";"fmt";"hash/fnv";"math/rand/v2")
func TestZZ(t *testing.T) {
	from := newSender(t, ratio{5,5}, 1); to := newSender(t, ratio{5,5}, 2); from.longest, to.longest = 40, 40
	h := fnv.New32(); h.Write([]byte("Y"))
	to.random = rand.New(rand.NewPCG(uint64(h.Sum32()), 1))
	d := NewDecoder()
	runScript(t, d, from, []byte("Y"))
	fmt.Printf("%+v\n", d.Stats())
	to.enc.next = to.random.Uint32N(to.enc.code.limit()/10) * 10
	rcv := newReceiver(to); rcv.dec = d
	fmt.Println(to.enc.next, d.code.ratio, d.doubt)
	for i, p := range to.group() { if i != 1 { rcv.feed(p); g := d.window.find(packetSeqID(p)/10); fmt.Printf("%d %d %+v\n", i, len(p), g) } }
}
