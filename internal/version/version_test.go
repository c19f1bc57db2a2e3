package version

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLine(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"},
	}}
	require.Contains(t, line(info), "v1.2.3 (revision 0123456789ab, modified), go")
	require.Contains(t, line(&debug.BuildInfo{}), "(devel), go")
	require.Contains(t, Line(), Number())
}
