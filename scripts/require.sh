#!/bin/sh
# require.sh VERSION: every module of this tree requires the root module, kcpgo and
# observe at VERSION, if it requires them at all. The replace directives stay.
set -eu

test $# = 1 || { echo "usage: require.sh vX.Y.Z" >&2; exit 2; }
version=$1
cd "$(dirname "$0")/.."
git ls-files '*.mod' | while read -r file; do
	for module in github.com/arqnet/kcp github.com/arqnet/kcp/kcpgo github.com/arqnet/kcp/observe; do
		if grep -Eq "^(require)?[[:space:]]*$module v" "$file"; then
			go mod edit -require "$module@$version" "$file"
		fi
	done
done
