package pages

import _ "embed"

// uPlot is a library of charts for browsers, for pages that must work without any other
// resource. It is version 1.6.32 of the package uplot in the npm registry, unchanged,
// under the MIT licence in uPlot.LICENSE. The archive has the integrity
//
//	sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==
//
// and the files come from its folder dist.

// PlotScript is uPlot.iife.min.js, which defines the global uPlot.
//
//go:embed uPlot.iife.min.js
var PlotScript string

// PlotStyle is uPlot.min.css.
//
//go:embed uPlot.min.css
var PlotStyle string

// PlotLicense is the licence of both. Whatever contains them must contain it.
//
//go:embed uPlot.LICENSE
var PlotLicense string
