// Package contract says in tests what programs may expect of kcp-go's API. The
// same tests run against kcp-go and, with go.mod replaced, against package
// kcpgo:
//
//	go test .                                      kcp-go
//	go test -tags kcpgo -modfile=replaced.mod .    kcpgo, as programs use it
//
// Where the two differ on purpose, the test says so and asks which one it runs
// with. Package interop, below it, has both in one program.
package contract
