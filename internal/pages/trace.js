"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const ink = dark ? "#ccc" : "#333", grid = dark ? "#ffffff22" : "#00000018";
  const colors = { blue: "#3b82f6", red: "#ef4444", orange: "#f59e0b", green: "#22a35a", purple: "#a855f7", grey: "#8b8f98", teal: "#14b8a6" };
  const causeColors = [colors.red, colors.orange, colors.purple, colors.teal, colors.blue, colors.green, colors.grey, "#d946ef"];
  const si = (v, unit) => {
    if (v == null) return "–";
    for (const [n, p] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (Math.abs(v) >= n) return +(v / n).toPrecision(4) + " " + p + unit;
    return +v.toPrecision(4) + " " + unit;
  };
  const cols = p => p.columns.length ? p.columns : null;
  const el = (tag, text, cls) => { const e = document.createElement(tag); e.textContent = text; if (cls) e.className = cls; return e; };

  // chart draws series over aligned data, all charts with one cursor and one zoom.
  const sync = uPlot.sync("trace");
  const plots = [];
  let zooming = false;
  const chart = (id, series, data, unit, height = 260) => {
    const root = document.getElementById(id);
    if (!data || !data[0].length) { root.append(el("p", "Nothing of this in the trace.")); return; }
    const axis = { stroke: ink, grid: { stroke: grid }, ticks: { stroke: grid } };
    const plot = new uPlot({
      width: root.clientWidth - 14, height,
      cursor: { sync: { key: sync.key, setSeries: false }, drag: { x: true, y: false } },
      scales: { x: { time: false } },
      axes: [
        { ...axis, values: (u, v) => v.map(t => +t.toPrecision(6) + " s") },
        { ...axis, size: 80, values: (u, v) => v.map(y => si(y, unit)) },
      ],
      series: [{ label: "time", value: (u, v) => v == null ? "–" : v.toFixed(3) + " s" },
        ...series.map(s => ({ spanGaps: true, width: 1.3, value: (u, v) => si(v, unit), ...s }))],
      hooks: { setScale: [(u, key) => {
        if (key !== "x" || zooming) return;
        zooming = true;
        for (const p of plots) if (p !== u) p.setScale("x", { min: u.scales.x.min, max: u.scales.x.max });
        zooming = false;
      }] },
    }, data, root);
    plots.push(plot);
    addEventListener("resize", () => plot.setSize({ width: root.clientWidth - 14, height }));
  };
  const dots = (label, color, size = 4) => ({ label, stroke: color, paths: () => null, points: { show: true, size, fill: color, stroke: color, width: 0 } });
  const rings = (label, color, size) => ({ label, stroke: color, paths: () => null, points: { show: true, size, fill: "#0000", stroke: color, width: 1 } });
  const line = (label, color, more) => ({ label, stroke: color, points: { show: false }, ...more });
  // join aligns points of different times.
  const join = list => {
    const tables = list.map(p => cols(p) || [[], []]).map(c => [c[0], c[1]]);
    return uPlot.join(tables.map(t => dedupe(t)));
  };
  // dedupe moves points of one time apart by a nanosecond: x must grow.
  const dedupe = ([x, y]) => {
    const out = new Float64Array(x.length);
    let last = -1;
    for (let i = 0; i < x.length; i++) { last = Math.max(x[i], last + 1e-9); out[i] = last; }
    return [Array.from(out), y];
  };
  const aligned = p => { const c = cols(p); return c && [dedupe([c[0], c[0]])[0], ...c.slice(1)]; };

  const t = trace.totals;
  document.getElementById("about").textContent =
    `${trace.title}, ${trace.side} by this end, conversation ${trace.conv}, from ${trace.start || "an unknown time"}, ${trace.duration.toFixed(3)} s`;
  const rows = [
    ["segments sent", t.sent], ["retransmissions", t.retransmitted], ["redundant copies", t.copies],
    ["acknowledged", t.acked], ["received", t.received], ["declared lost", t.lost],
    ...Object.entries(t.byCause).map(([k, v]) => ["– by " + k, v]),
    ...trace.limits.names.map((k, i) => [k, trace.limits.seconds[i]]).sort((a, b) => b[1] - a[1]).map(([k, v]) => ["limited by " + k + ", seconds", +v.toFixed(3)]),
    ["lost in error (spurious)", t.spurious], ["packets refused", t.dropped], ["events not in the trace", t.leftOut],
  ];
  for (const [name, n] of rows) {
    const tr = document.createElement("tr");
    tr.append(el("td", name), el("td", n.toLocaleString("en"), "n"));
    document.getElementById("totals").append(tr);
  }
  const hidden = ["sent", "resent", "copies", "acked", "losses", "received", "rtt", "window"].reduce((n, k) => n + trace[k].dropped, 0);
  if (hidden) document.getElementById("about").textContent += `; ${hidden.toLocaleString("en")} points are left out of the charts, evenly`;

  chart("sequence",
    [dots("sent", colors.blue, 3), dots("acknowledged", colors.green, 2), dots("redundant copy", colors.grey, 4), rings("declared lost", colors.red, 9), dots("retransmitted", colors.orange, 5)],
    join([trace.sent, trace.acked, trace.copies, trace.losses, trace.resent]), "", 420);
  chart("rtt",
    [line("latest", colors.grey), line("smoothed", colors.blue, { width: 2 }), line("least", colors.green), line("time-out", colors.orange, { show: false })],
    aligned(trace.rtt), "ms");
  chart("window",
    [line("congestion window", colors.blue, { width: 2 }), line("in flight", colors.orange), line("peer's window", colors.purple)],
    aligned(trace.window), "B");

  // What limits the sending: shares of each interval on top of each other.
  const limits = trace.limits, spans = limits.bins.rows[0] || [];
  const limitColors = { "congestion window": colors.blue, pacing: colors.teal, "peer's window": colors.purple, "send window": "#d946ef", "write buffer": colors.orange,
    reader: colors.red, "rate cap": "#eab308", outage: "#111827", handshake: colors.green, application: colors.grey };
  const shares = limits.names.map((_, i) => limits.bins.rows[i].map(v => 100 * v / limits.bins.width));
  const stacked = shares.map((_, i) => spans.map((_, j) => shares.slice(0, i + 1).reduce((sum, row) => sum + row[j], 0)));
  const order = limits.names.map((_, i) => i).reverse(); // the highest first, others before it
  chart("limits", order.map(i => {
    const color = limitColors[limits.names[i]] || colors.grey;
    return line(limits.names[i], color, { paths: uPlot.paths.stepped({ align: 1 }), fill: color, width: 0, value: (u, v, s, at) => si(at == null ? null : shares[i][at], "%") });
  }), spans.length ? [spans.map((_, j) => j * limits.bins.width), ...order.map(i => stacked[i])] : null, "%", 160);

  const bins = trace.bins, n = bins.rows[0].length;
  const centre = Array.from({ length: n }, (_, i) => (i + .5) * bins.width);
  const perSecond = row => bins.rows[row].map(v => v / bins.width);
  const stepped = { paths: uPlot.paths.stepped({ align: 0 }) };
  chart("rate", [line("sent", colors.orange, stepped), line("acknowledged", colors.blue, { ...stepped, width: 2 }), line("received", colors.green, stepped)],
    n ? [centre, perSecond(0), perSecond(1), perSecond(2)] : null, "B/s");
  const bars = uPlot.paths.bars({ size: [0.9, 20] });
  chart("losses", (trace.causes || []).map((c, i) => ({ ...line(c, causeColors[i], { paths: bars }), fill: causeColors[i] + "99" })),
    trace.causes && n ? [centre, ...trace.causes.map((_, i) => bins.rows[3 + i].map(v => v || null))] : null, "");
  chart("received", [dots("received", colors.green, 3)], cols(trace.received) && dedupe(trace.received.columns), "", 300);

  const streams = document.getElementById("streams");
  streams.hidden = trace.streams.length === 0;
  const row = (kind, cells) => {
    const tr = document.createElement("tr");
    tr.append(...cells.map(text => el(kind, text, "n")));
    streams.querySelector("table").append(tr);
  };
  row("th", ["stream", "sent", "retransmitted", "declared lost", "received", "longest", "sent at"]);
  for (const s of trace.streams)
    row("td", [s.id, s.sent, s.resent, s.lost, s.received, (1e3 * s.longest).toFixed(1) + " ms", s.at.toFixed(6) + " s"]);

  const list = document.getElementById("events");
  for (const e of trace.events) {
    const tr = document.createElement("tr");
    tr.append(el("td", e.at.toFixed(6) + " s", "n"), el("td", e.what), el("td", e.text));
    list.append(tr);
  }
  if (trace.moreEvents) list.append(el("caption", trace.moreEvents + " more events"));
  window.kcpTrace = { plots, data: trace };
})();
