package kcp

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// What an application can only call has no fields that it could read or set.
func TestOpaqueTypesHaveNoFields(t *testing.T) {
	t.Parallel()
	for _, of := range []reflect.Type{
		reflect.TypeFor[Conn](), reflect.TypeFor[Stream](), reflect.TypeFor[Endpoint](),
		reflect.TypeFor[Listener](), reflect.TypeFor[Group](), reflect.TypeFor[KCP](),
	} {
		for _, f := range reflect.VisibleFields(of) {
			require.False(t, f.IsExported(), "%v.%s", of, f.Name)
		}
	}
}
