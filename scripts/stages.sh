#!/bin/sh
# stages.sh JOBS STAGE...: runs stages of the Makefile, JOBS at a time. It says when each
# begins and ends, and goes on if one fails. At the end it names the tests that have
# failed, and the command that runs each alone. MAKE and SHORT are taken from the
# environment. Everything works with the make and the tools of macOS.
set -eu

say() { echo "== $(date +%H:%M:%S) $*"; }

# one runs a stage. Its output is printed in one piece when it ends.
one() {
	say "$1 begins"
	begun=$(date +%s) status=0
	${MAKE:-make} --no-print-directory SHORT="${SHORT-}" "$1" >"$LOGS/$1" 2>&1 || status=$?
	until mkdir "$LOGS/.printing" 2>/dev/null; do sleep 0.1; done
	cat "$LOGS/$1"
	if test "$status" = 0; then
		rm "$LOGS/$1"
		say "$1 passed in $(($(date +%s) - begun)) s"
	else
		say "$1 FAILED in $(($(date +%s) - begun)) s"
	fi
	rmdir "$LOGS/.printing"
}

# failed names the failed tests in a log, by the commands that run them.
failed() {
	awk '
	/^--- FAIL: / { names[++n] = $3 }
	/^\trunning tests:/ { running = 1; next } # when the limit is over
	running && /^\t\t/ { names[++n] = $1; next }
	{ running = 0 }
	/^FAIL\t/ {
		dir = $2
		sub(/^github.com\/arqnet\/kcp\/?/, "", dir)
		if (n == 0) print "    go -C ./" dir " test .   # no test is named: see above"
		for (i = 1; i <= n; i++) print "    go -C ./" dir " test -run \047^" names[i] "$\047 ."
		n = 0
	}' "$1"
}

if test "$1" = -one; then
	one "$2"
	exit
fi
jobs=$1
shift
LOGS=$(mktemp -d)
export LOGS
trap 'rm -rf "$LOGS"' EXIT
trap 'exit 1' INT TERM
printf '%s\n' "$@" | xargs -P "$jobs" -n 1 "$0" -one
test -n "$(ls "$LOGS")" || exit 0
say FAILED
for log in "$LOGS"/*; do
	echo "  ${log##*/}: make SHORT=${SHORT-} ${log##*/}"
	failed "$log"
done
exit 1
