package rulebook

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/testenv"
)

// Comments, texts and pages are in the English of the standard library: none has a phrase
// of testdata/words.txt.
func TestPlainEnglish(t *testing.T) {
	testenv.OfSources(t)
	table, err := os.ReadFile("testdata/words.txt")
	require.NoError(t, err)
	leaveOut := []string{".git", "testdata", "uplot"}
	root, err := filepath.Glob("../../*.go")
	require.NoError(t, err)
	for _, path := range root { // they follow
		leaveOut = append(leaveOut, filepath.Base(path))
	}
	found, err := CheckWords(os.DirFS("../.."), string(table), leaveOut...)
	require.NoError(t, err)
	require.Empty(t, strings.Join(found, "\n"))
}

// Phrases are found in comments, texts and pages, also across lines, and not in code, in
// tests, in folders that are left out, and where they are allowed.
func TestCheckWords(t *testing.T) {
	const table = "# a comment\n(is|are) no\\b | ^there |no longer$ | say not\nanew |  | say again\n" +
		"allow | a.go | begins anew | a quotation\nallow | b.md | gone anew | was once\n"
	tree := fstest.MapFS{
		"a.go":      {Data: []byte("package a\n\n// It is\n// no session. There is no other, and it is no longer one.\nconst b = \"x\\nthey are no files\"\n\n// It begins anew.\nvar is, no int\n")},
		"a_test.go": {Data: []byte("package a // is no test\n")},
		"b.md":      {Data: []byte("one\n\n```\nis no code\n```\nThat is no `is no thing`.\n")},
		"out/c.md":  {Data: []byte("is no page\n")},
	}
	found, err := CheckWords(tree, table, "out")
	require.NoError(t, err)
	require.Equal(t, []string{
		`a.go:3: "It is no session": say not`,
		`a.go:6: "they are no files": say not`,
		`allowed, and not there: b.md: gone anew`,
		"b.md:6: \"That is no ``\": say not",
	}, found)
	for _, wrong := range []string{"anew\n", "(anew |  | again\n", "anew | ( | again\n"} {
		_, err = CheckWords(tree, wrong)
		require.ErrorContains(t, err, "line 1", wrong)
	}
}
