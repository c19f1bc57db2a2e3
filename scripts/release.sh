#!/bin/sh
# release.sh VERSION [--dry-run | --tag]: makes the commit and the tags of a release.
#
# Without --tag it does so in a clone that it removes again, so nothing changes.
# With --tag it does so here. It never pushes.
#
# The modules kcpgo, observe and tunnel require the root module, and tunnel the others. While there is no release
# they require v0.0.0, which does not exist; a replace directive puts the root of the
# tree in its place. A dependant ignores that directive, so the tagged commit has to
# require a version that exists. One commit sets the requirement of every module to
# VERSION, and all tags name it. The replace directives stay, so the modules
# still build from the tree, and nothing has to be put back afterwards.
#
# A go.work file would do without the directives. But it makes one choice of versions
# for all modules, and it does not allow the -modfile that kcpgo's tests need.
set -eu

usage() {
	echo "usage: release.sh vX.Y.Z [--dry-run | --tag]" >&2
	exit 2
}
fail() {
	echo "release.sh: $*" >&2
	exit 1
}

version='' tag=no
for arg; do
	case $arg in
	--tag) tag=yes ;;
	--dry-run) tag=no ;;
	-*) usage ;;
	*) test -z "$version" || usage; version=$arg ;;
	esac
done
echo "$version" | grep -Eqx 'v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?' || usage
case $version in
v0.* | v1.*) ;;
*) fail "from v2 on the paths of the modules have to end in the major version" ;;
esac

cd "$(dirname "$0")/.."
root=$(pwd)
tags="$version kcpgo/$version observe/$version tunnel/$version"
branch=$(git symbolic-ref --short -q HEAD) || branch='no branch'
test "$branch" = main || fail "on $branch, not on main"
test -z "$(git status --porcelain)" || fail "the working tree is not clean"
number=$(echo "${version#v}" | sed 's/\./\\./g')
grep -Eq "^## \[$number\]" CHANGELOG.md || fail "CHANGELOG.md has no section ## [${version#v}]"
for t in $tags; do
	! git rev-parse -q --verify "refs/tags/$t" >/dev/null || fail "the tag $t exists"
done
! grep -q '^replace' go.mod || fail "go.mod has a replace directive, so go install would fail"
git var GIT_COMMITTER_IDENT >/dev/null || fail "git does not know who you are"

if test $tag = no; then
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' EXIT
	trap 'exit 1' INT TERM
	git clone -q --branch main "file://$root" "$dir/repo"
	cd "$dir/repo"
fi

scripts/require.sh "$version"
git diff --quiet || git commit -qam "Release $version

The modules of this tree require $version of each other."
for m in $(git ls-files 'go.mod' '*/go.mod'); do
	(cd "$(dirname "$m")" && GOWORK=off go list -mod=readonly -deps ./... >/dev/null) ||
		fail "$m is not complete; the commit is made, the tags are not"
done
scripts/release-test.sh "$version" ||
	fail "the release does not work; the commit is made, the tags are not"
for t in $tags; do
	git tag -a -m "Release $version" "$t"
done
git show --stat --format='%h %s' HEAD
git tag --points-at HEAD

if test $tag = no; then
	echo "release.sh: this was a dry run: nothing has changed; --tag does it"
else
	echo "release.sh: done. To publish: git push --atomic origin main $tags"
fi
