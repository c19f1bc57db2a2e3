// Package uplot holds uPlot, a library of charts for browsers, for pages that
// must work without any other resource. It is version 1.6.32 of the package
// uplot in the npm registry, unchanged, under the MIT licence in LICENSE. The
// archive has the integrity
//
//	sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==
//
// and the files come from its folder dist.
package uplot

import _ "embed"

// Script is uPlot.iife.min.js, which defines the global uPlot.
//
//go:embed uPlot.iife.min.js
var Script string

// Style is uPlot.min.css.
//
//go:embed uPlot.min.css
var Style string

// License is the licence of both. Whatever contains them must contain it.
//
//go:embed LICENSE
var License string
