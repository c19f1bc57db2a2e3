package mobile

import (
	"crypto/tls"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/identity"
	"github.com/arqnet/kcp/internal/testenv"
)

// A session carries messages and datagrams, and errors say whether to dial again.
func TestSession(t *testing.T) {
	cert, err := identity.New("test")
	require.NoError(t, err)
	l, err := kcp.Listen("udp", "127.0.0.1:0", &kcp.Config{MessageMode: true, TLS: &tls.Config{Certificates: []tls.Certificate{cert}}})
	require.NoError(t, err)
	defer l.Endpoint().Close()
	o := NewOptions()
	o.Address, o.Fingerprint = l.Addr().String(), identity.Fingerprint(cert.Leaf)
	s, err := Dial(o)
	require.NoError(t, err)
	server, err := l.AcceptKCP(t.Context())
	require.NoError(t, err)
	for _, size := range []int{0, 10, 100_000} {
		sent := testenv.Content(1, size)
		require.NoError(t, s.Send(sent))
		got := make([]byte, 200_000)
		n, err := server.ReadMessage(got)
		require.NoError(t, err)
		require.NoError(t, server.WriteMessage(got[:n], nil))
		back, err := s.Receive()
		require.NoError(t, err)
		require.Equal(t, testenv.Sum(sent), testenv.Sum(back))
	}
	require.NoError(t, server.SendDatagram([]byte("datagram")))
	got, err := s.ReceiveDatagram()
	require.NoError(t, err)
	require.Equal(t, "datagram", string(got))
	_, err = s.Ping(5000)
	require.NoError(t, err)
	require.NoError(t, s.SetKeepAlive(-1))
	require.True(t, Hopeless(s.SetPeerTimeout(1)))
	go server.CloseWithError(7, "enough")
	_, err = s.Receive()
	require.EqualValues(t, 7, PeerCode(err))
	require.False(t, Hopeless(err))
	o.Fingerprint = "SHA256:" + strings.Repeat("A", 43)
	_, err = Dial(o)
	require.True(t, Hopeless(err))
	require.EqualValues(t, -1, PeerCode(err))
}

// What is exported has types that gobind binds: see go doc golang.org/x/mobile/cmd/gobind.
func TestBindable(t *testing.T) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "mobile.go", nil, 0)
	require.NoError(t, err)
	check := types.Config{Importer: importer.Default(), Error: func(error) {}} // imports are not resolved
	p, _ := check.Check("mobile", files, []*ast.File{file}, nil)
	function := func(name string, s *types.Signature) {
		results := s.Results()
		require.LessOrEqual(t, results.Len(), 2, name)
		if results.Len() == 2 {
			require.Equal(t, "error", results.At(1).Type().String(), name)
		}
		for _, tuple := range []*types.Tuple{s.Params(), results} {
			for v := range tuple.Variables() {
				require.True(t, bindable(p, v.Type()), "%s: %v", name, v)
			}
		}
	}
	seen := 0
	for _, name := range p.Scope().Names() {
		o := p.Scope().Lookup(name)
		if !o.Exported() {
			continue
		}
		seen++
		if f, ok := o.Type().(*types.Signature); ok {
			function(name, f)
			continue
		}
		named := o.Type().(*types.Named)
		for m := range named.Methods() {
			function(name+"."+m.Name(), m.Signature())
		}
		for f := range named.Underlying().(*types.Struct).Fields() {
			require.True(t, !f.Exported() || bindable(p, f.Type()), "%s.%v", name, f)
		}
	}
	require.Equal(t, 6, seen)
}

// bindable reports whether gobind has a type for parameters, results and fields.
func bindable(p *types.Package, t types.Type) bool {
	if pointer, ok := t.(*types.Pointer); ok {
		named, ok := pointer.Elem().(*types.Named)
		return ok && named.Obj().Pkg() == p
	}
	switch t.String() {
	case "bool", "string", "int", "int8", "int16", "int32", "int64", "float32", "float64", "[]byte", "[]uint8", "error":
		return true
	}
	return false
}
