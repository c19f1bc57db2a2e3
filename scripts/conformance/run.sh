#!/bin/sh
# run.sh: makes recordings of the C reference from new seeds, and replays them. KCP_REFERENCE
# is a checkout of it, version 2.0.0 (public: skywind3000/kcp), which a C compiler builds;
# COUNT how many recordings of each generator (default 500); SEED the first seed, which is
# printed; KEEP=DIR keeps the recordings.
set -eu

: "${KCP_REFERENCE:?names a folder with ikcp.c and ikcp.h, version 2.0.0}"
count=${COUNT:-500}
seed=${SEED:-$(date +%s)}
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
traces=${KEEP:-$dir/traces}
mkdir -p "$traces"

for kind in odd changes; do
	${CC:-cc} -O2 -w -I"$KCP_REFERENCE" -o "$dir/$kind" "$here/$kind.c" "$KCP_REFERENCE/ikcp.c"
	echo "conformance: $count recordings of $kind, SEED=$seed"
	n=0
	while [ "$n" -lt "$count" ]; do
		"$dir/$kind" $((seed + n)) | gzip -n >"$traces/$kind-$((seed + n)).trace.gz"
		n=$((n + 1))
	done
done
cd "$here/../.."
KCP_CONFORMANCE_DIR=$traces "${GO:-go}" test -count=1 -run 'TestConformance$' -timeout 60m .
