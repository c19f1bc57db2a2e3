#!/bin/sh
# release-test.sh VERSION: HEAD, released as VERSION, works for those who depend on
# it. The modules come from a proxy of files, made of a clone with its requirements
# set. Programs outside of the repository are built with them, and run.
set -eu

test $# = 1 || { echo "usage: release-test.sh vX.Y.Z" >&2; exit 2; }
version=$1
root=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
kcpgo=v5.6.72 # of kcp-go, as in bench/go.mod
export GOWORK=off

echo "== the modules of HEAD as $version"
git clone -q --no-hardlinks --depth 1 "file://$root" "$dir/repo"
"$dir/repo/scripts/require.sh" "$version"
git -C "$dir/repo" -c user.name=release-test -c user.email=release-test@localhost \
	-c commit.gpgsign=false commit -qam "Release $version" ||
	git -C "$dir/repo" diff --quiet HEAD # the requirements were set already
go -C "$root/scripts/modproxy" run . -repo "$dir/repo" "$dir/proxy" "$version" . kcpgo observe tunnel

# Our modules come from the files, and all others from the module cache, or as
# usual. A module cache of our own keeps the version out of the usual one. The
# checksum database knows nothing of ours. GOPRIVATE would go past the proxy.
usual=$(go env GOPROXY)
cache=$(go env GOMODCACHE)
export GOPROXY="file://$dir/proxy,file://$cache/cache/download,$usual"
export GOMODCACHE="$dir/modcache" GONOSUMDB=github.com/arqnet GOPRIVATE= GONOPROXY=
export GOBIN="$dir/bin" GOFLAGS=-modcacherw

# user NAME makes an empty module, with the program of testdata/release/NAME.
user() {
	mkdir "$dir/$1"
	cp "$root/scripts/testdata/release/${2:-$1}/main.go" "$dir/$1/"
	cd "$dir/$1"
	go mod init "example.com/$1" 2>"$dir/log" || { cat "$dir/log" >&2; exit 1; }
}

# uses PROGRAM PATTERN fails unless the build information of PROGRAM has PATTERN.
uses() {
	go version -m "$1" | grep -E "$2" || { echo "$1 was not built with $2" >&2; exit 1; }
}

echo "== go get github.com/arqnet/kcp@$version"
user kcp
go get "github.com/arqnet/kcp@$version"
go build -o user .
./user
uses ./user "github.com/arqnet/kcp	$version"

echo "== go get github.com/arqnet/kcp/kcpgo@$version"
user kcpgo
sed -i.kcp-go 's,github.com/xtaci/kcp-go/v5,github.com/arqnet/kcp/kcpgo,' main.go
go get "github.com/arqnet/kcp/kcpgo@$version"
go build -o user .
./user
uses ./user "github.com/arqnet/kcp/kcpgo	$version"

echo "== go get github.com/arqnet/kcp/observe@$version"
user observe
go get "github.com/arqnet/kcp/observe@$version"
go build -o user .
./user
uses ./user "github.com/arqnet/kcp/observe	$version"

echo "== go get github.com/arqnet/kcp/tunnel@$version"
user tunnel
go get "github.com/arqnet/kcp/tunnel@$version"
go build -o user .
./user
uses ./user "github.com/arqnet/kcp/tunnel	$version"
go get "github.com/arqnet/kcp/tunnel/cmd/kcptunnel@$version"
go build -o kcptunnel github.com/arqnet/kcp/tunnel/cmd/kcptunnel
./kcptunnel -version

echo "== go install github.com/arqnet/kcp/cmd/kcp@$version"
cd "$dir"
go install "github.com/arqnet/kcp/cmd/kcp@$version"
"$GOBIN/kcp" version | grep -F "kcp $version"
"$GOBIN/kcp" help >"$dir/log"

echo "== a program of kcp-go, with one line of go.mod"
user moved kcpgo
go mod edit -require "github.com/xtaci/kcp-go/v5@$kcpgo" \
	-replace "github.com/xtaci/kcp-go/v5=github.com/arqnet/kcp/kcpgo@$version"
go mod tidy
go build -o user .
./user
uses ./user "=>	github.com/arqnet/kcp/kcpgo	$version"

echo "release-test: all passed"
