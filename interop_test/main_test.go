package interop

import (
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	kcpgo "github.com/xtaci/kcp-go/v5"
)

// seed is that of the whole run; every case derives its own from it.
var seed = rand.Uint64()

// full asks for the cross product, long for all rows and sizes.
var (
	full = os.Getenv("KCP_INTEROP") == "full"
	long = full || os.Getenv("KCP_LONG") != ""
)

// TestMain runs the tests. It then checks that kcp-go took no packet for
// malformed, nor for one of another conversation.
func TestMain(m *testing.M) {
	if s := os.Getenv("KCP_INTEROP_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			fmt.Fprintln(os.Stderr, "KCP_INTEROP_SEED:", err)
			os.Exit(2)
		}
	}
	flag.Parse()

	// InCsumErrors says nothing here: a session of kcp-go that was closed may
	// repeat itself to a port that another case, with another cipher, has now.
	code := m.Run()
	if after := kcpgo.DefaultSnmp.Copy(); after.InErrs+after.KCPInErrors != 0 {
		fmt.Printf("FAIL: kcp-go counts %d InErrs, %d KCPInErrors over well-formed sessions\n", after.InErrs, after.KCPInErrors)
		code = 1
	}
	if code != 0 {
		fmt.Printf("run again with KCP_INTEROP_SEED=%d\n", seed)
	}
	os.Exit(code)
}

// caseSeed returns the seed of the case t, which does not depend on which
// other cases run.
func caseSeed(t testing.TB) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, t.Name())
	return h.Sum64() ^ seed
}
