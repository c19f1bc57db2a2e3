package browser

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// buildKCP builds the command and returns its path.
func buildKCP(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kcp")
	build := exec.Command("go", "build", "-o", path, "./cmd/kcp")
	build.Dir = filepath.Join("..", "..")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// watch is what a page has asked for, and complained of.
type watch struct {
	mu     sync.Mutex
	asked  []string
	faults []string
}

// open starts a browser, which ends with the test, and reports what happens in
// it.
func open(t *testing.T) (context.Context, *watch) {
	t.Helper()
	found := false
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome", "headless-shell"} {
		if _, err := exec.LookPath(name); err == nil {
			found = true
		}
	}
	if !found {
		t.Skip("no browser is installed (Debian: apt-get install chromium)")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.WindowSize(1300, 1400))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // the sandbox refuses to run as root
	}
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 3*time.Minute)
	t.Cleanup(cancel)
	w := new(watch)
	chromedp.ListenTarget(ctx, func(ev any) {
		w.mu.Lock()
		defer w.mu.Unlock()
		switch ev := ev.(type) {
		case *network.EventRequestWillBeSent:
			w.asked = append(w.asked, ev.Request.URL)
		case *runtime.EventExceptionThrown:
			w.faults = append(w.faults, ev.ExceptionDetails.Error())
		case *runtime.EventConsoleAPICalled:
			if ev.Type == runtime.APITypeError {
				w.faults = append(w.faults, fmt.Sprint(ev.Args))
			}
		}
	})
	require.NoError(t, chromedp.Run(ctx, network.Enable()))
	return ctx, w
}

// requireOnly wants the page to have asked for nothing but what begins with
// prefix, and to have had no fault. The browser itself asks for an icon.
func (w *watch) requireOnly(t *testing.T, prefix string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Empty(t, w.faults)
	require.NotEmpty(t, w.asked)
	for _, u := range w.asked {
		require.True(t, strings.HasPrefix(u, prefix), u)
	}
}

// eval returns the value of a JavaScript expression.
func eval[T any](t *testing.T, ctx context.Context, js string) (v T) {
	t.Helper()
	require.NoError(t, chromedp.Run(ctx, chromedp.Evaluate(js, &v)), js)
	return v
}

// until waits for a JavaScript expression to be true.
func until(t *testing.T, ctx context.Context, js string) {
	t.Helper()
	require.NoError(t, chromedp.Run(ctx, chromedp.Poll(js, nil, chromedp.WithPollingTimeout(time.Minute))), js)
}

// colored is a function of JavaScript that counts the pixels of an element's
// canvas that have nearly a color.
const colored = `((id, r, g, b) => {
	const c = document.querySelector("#" + id + " canvas");
	const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
	let n = 0;
	for (let i = 0; i < d.length; i += 4)
		if (d[i+3] > 128 && Math.abs(d[i]-r) < 12 && Math.abs(d[i+1]-g) < 12 && Math.abs(d[i+2]-b) < 12) n++;
	return n;
})`

// The live page of a running demo shows both sessions, and charts that move.
func TestLivePage(t *testing.T) {
	kcp := buildKCP(t)
	ctx, w := open(t)
	demo := exec.Command(kcp, "demo", "-size", "10GB", "-timeout", "4m", "-loss", "5%", "-delay", "10ms", "-debug", "127.0.0.1:0")
	stderr, err := demo.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, demo.Start())
	t.Cleanup(func() { _, _ = demo.Process.Kill(), demo.Wait() })
	line, err := bufio.NewReader(stderr).ReadString('\n')
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, stderr) }()
	_, at, ok := strings.Cut(strings.TrimSpace(line), "live page at ")
	require.True(t, ok, line)

	require.NoError(t, chromedp.Run(ctx, chromedp.Navigate(at)))
	until(t, ctx, `document.querySelectorAll("#sessions tbody tr").length === 2`)
	require.Equal(t, 3, eval[int](t, ctx, `document.querySelectorAll("#endpoints tr").length`)) // with the heading
	require.Regexp(t, `^2 sessions on 2 endpoints, `, eval[string](t, ctx, `document.getElementById("about").textContent`))
	const columns = `[...document.querySelectorAll("#endpoints tr")].map(tr => [...tr.cells].slice(14).map(c => c.textContent).join()).join(";")`
	require.Equal(t, ";;", eval[string](t, ctx, columns))
	// Figures of a takeover are shown once there is one, for all endpoints.
	require.Equal(t, "forwarded,forward drops;1.5 k,2;0,0", eval[string](t, ctx, `(() => {
		const stats = o => ({ Lag: {}, ...o });
		kcpLive.showEndpoints({ endpoints: [{ stats: stats({ Forwarded: 1500, DropForward: 2, PredecessorSessions: 0 }), totals: {} },
			{ stats: stats({ Forwarded: 0, DropForward: 0, PredecessorSessions: 0 }), totals: {} }] });
		return `+columns+`;
	})()`))
	until(t, ctx, `document.getElementById("chosen").textContent.startsWith("Session ")`)
	until(t, ctx, `kcpLive.history.time.length >= 6`)
	require.Contains(t, []string{"congestion window", "pacing", "peer's window", "write buffer", "application", "reader"},
		eval[string](t, ctx, `document.querySelector("#sessions tbody tr").cells[8].textContent`))
	until(t, ctx, `["congestion window", "pacing", "peer's window", "write buffer"].some(name => Math.max(...kcpLive.history.columns[name]) > 50)`)
	require.Positive(t, eval[int](t, ctx, colored+`("limits", 0xa8, 0x55, 0xf7)`)+eval[int](t, ctx, colored+`("limits", 0x14, 0xb8, 0xa6)`)+eval[int](t, ctx, colored+`("limits", 0x3b, 0x82, 0xf6)`))
	for _, id := range []string{"rate", "rtt", "losses", "window", "queue"} {
		require.Positive(t, eval[int](t, ctx, fmt.Sprintf("%s(%q, 0x3b, 0x82, 0xf6) + %s(%q, 0xf5, 0x9e, 0x0b)", colored, id, colored, id)), "%s has no line", id)
	}
	require.Positive(t, eval[float64](t, ctx, `Math.max(...kcpLive.history.columns.out)`))
	// No column is cut off in a window of 1500 pixels.
	require.NoError(t, chromedp.Run(ctx, chromedp.EmulateViewport(1500, 1400)))
	require.LessOrEqual(t, eval[int](t, ctx, `Math.max(...[...document.querySelectorAll(".wide")].map(d => d.scrollWidth - d.clientWidth))`), 0)
	require.Contains(t, eval[string](t, ctx, `document.querySelector("#endpoints tr").textContent`), "lag")
	require.Positive(t, eval[float64](t, ctx, `Math.max(...kcpLive.history.columns.rtt)`))
	require.Positive(t, eval[float64](t, ctx, `Math.max(...kcpLive.history.columns.resent)`))

	// They move: what the canvas shows is something else some seconds later.
	picture := `document.querySelector("#rate canvas").toDataURL()`
	before, points := eval[string](t, ctx, picture), eval[int](t, ctx, `kcpLive.history.time.length`)
	until(t, ctx, fmt.Sprintf(`kcpLive.history.time.length > %d`, points+3))
	require.NotEqual(t, before, eval[string](t, ctx, picture))

	// Another session can be chosen, and the filter narrows the table.
	other := eval[string](t, ctx, `document.querySelector("#sessions tbody tr:not(.picked)").dataset.id`)
	until(t, ctx, fmt.Sprintf(`(() => { const tr = document.querySelector('[data-id="%s"]'); if (!tr) return false; tr.querySelector("td").click(); return true; })()`, other))
	until(t, ctx, fmt.Sprintf(`document.querySelector("tr.picked")?.dataset.id === %q`, other))
	require.NoError(t, chromedp.Run(ctx, chromedp.SendKeys("#filter", "nothing like it")))
	until(t, ctx, `document.getElementById("range").textContent === "none"`)

	// The page says when there are no figures any more.
	w.requireOnly(t, at)
	_ = demo.Process.Kill()
	until(t, ctx, `document.getElementById("fault").textContent !== ""`)
}

// The page of the trace of a lossy transfer shows its retransmissions.
func TestTracePage(t *testing.T) {
	kcp := buildKCP(t)
	ctx, w := open(t)
	dir := t.TempDir()
	out, err := exec.Command(kcp, "demo", "-size", "1MB", "-loss", "20%", "-delay", "10ms", "-seed", "1", "-trace", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	traces, err := filepath.Glob(filepath.Join(dir, "*-client.sqlog"))
	require.NoError(t, err)
	require.Len(t, traces, 1)
	page := filepath.Join(dir, "page.html")
	out, err = exec.Command(kcp, "trace", traces[0], "-o", page).CombinedOutput()
	require.NoError(t, err, "%s", out)

	at := (&url.URL{Scheme: "file", Path: page}).String()
	require.NoError(t, chromedp.Run(ctx, chromedp.Navigate(at)))
	until(t, ctx, `window.kcpTrace && kcpTrace.plots.length === 7`)
	resent := eval[int](t, ctx, `kcpTrace.data.totals.retransmitted`)
	require.Greater(t, resent, 50)
	require.Equal(t, resent, eval[int](t, ctx, `kcpTrace.data.resent.columns[1].length`))
	time.Sleep(time.Second) // charts are drawn with the next frame
	require.Greater(t, eval[int](t, ctx, colored+`("sequence", 0x3b, 0x82, 0xf6)`), 100, "first transmissions")
	require.Greater(t, eval[int](t, ctx, colored+`("sequence", 0xf5, 0x9e, 0x0b)`), 100, "retransmissions")
	require.Greater(t, eval[int](t, ctx, colored+`("sequence", 0x22, 0xa3, 0x5a)`), 100, "acknowledgements")
	require.Positive(t, eval[int](t, ctx, colored+`("rtt", 0x3b, 0x82, 0xf6)`), "smoothed round-trip time")
	require.Positive(t, eval[int](t, ctx, colored+`("window", 0x3b, 0x82, 0xf6)`), "congestion window")
	require.Positive(t, eval[int](t, ctx, colored+`("window", 0xa8, 0x55, 0xf7)`), "peer's window")
	require.Greater(t, eval[int](t, ctx, colored+`("limits", 0x14, 0xb8, 0xa6)`), 100, "limited by pacing")
	require.Contains(t, eval[string](t, ctx, `document.getElementById("totals").textContent`), "limited by pacing, seconds")
	for _, what := range []string{"HELLO", "quic:connection_closed", "startup"} {
		require.Contains(t, eval[string](t, ctx, `document.getElementById("events").textContent`), what)
	}
	w.requireOnly(t, at)
}
