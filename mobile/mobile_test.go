package mobile

import (
	"crypto/tls"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"regexp"
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

// bindable are the types that gobind binds: go doc golang.org/x/mobile/cmd/gobind.
var bindable = regexp.MustCompile(`^(bool|string|int(8|16|32|64)?|float(32|64)|\[\]byte|error|\*mobile\.\w+)$`)

// What is exported has such types: parameters, one result or one and an error, fields.
func TestBindable(t *testing.T) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "mobile.go", nil, 0)
	require.NoError(t, err)
	config := types.Config{Importer: importer.Default(), Error: func(error) {}} // what is imported has no type
	p, _ := config.Check("mobile", files, []*ast.File{file}, nil)
	require.NotEmpty(t, p.Scope().Names())
	var all []types.Object
	for _, name := range p.Scope().Names() {
		all = append(all, p.Scope().Lookup(name))
		if named, ok := p.Scope().Lookup(name).Type().(*types.Named); ok {
			for m := range named.Methods() {
				all = append(all, m)
			}
			for f := range named.Underlying().(*types.Struct).Fields() {
				all = append(all, f)
			}
		}
	}
	for _, o := range all {
		s, function := o.Type().(*types.Signature)
		_, name := o.(*types.TypeName)
		switch {
		case !o.Exported() || name:
		case function:
			n := s.Results().Len()
			require.True(t, n < 2 || n == 2 && s.Results().At(1).Type().String() == "error", o)
			for _, tuple := range []*types.Tuple{s.Params(), s.Results()} {
				for v := range tuple.Variables() {
					require.Regexp(t, bindable, v.Type().String(), o)
				}
			}
		default: // a field, or a variable
			require.Regexp(t, bindable, o.Type().String(), o)
		}
	}
}
