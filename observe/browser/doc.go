// Package browser tests the pages of kcp in a browser: the live page of a
// running demo, and the page of a trace. It is a module of its own, and has
// nothing but tests. Run them by "make observe-browser". They need chromium, or
// another browser that chromedp finds, and skip themselves without it. If
// KCP_SCREENSHOTS names a folder, screenshots go there.
package browser
