"use strict";
(() => {
  const every = 500, kept = 240; // milliseconds, points
  const $ = id => document.getElementById(id);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const ink = dark ? "#ccc" : "#333", grid = dark ? "#ffffff22" : "#00000018";
  const blue = "#3b82f6", red = "#ef4444", orange = "#f59e0b", green = "#22a35a", grey = "#8b8f98";
  const si = (v, unit = "") => {
    if (v == null) return "–";
    for (const [n, p] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (Math.abs(v) >= n) return +(v / n).toPrecision(3) + " " + p + unit;
    return +v.toPrecision(3) + (unit && " " + unit);
  };
  const plural = (n, name) => n.toLocaleString("en") + " " + name + (n === 1 ? "" : "s");
  const state = { sort: "rate", offset: 0, rows: 25, session: "", total: 0 };

  // History of the chosen session: one column for each line of each chart.
  const history = { time: [], last: null, columns: {} };
  const plots = {};
  const define = (id, unit, lines) => {
    for (const l of lines) history.columns[l.key] = [];
    const root = $(id);
    plots[id] = { keys: lines.map(l => l.key), plot: new uPlot({
      width: Math.max(300, root.clientWidth), height: 170,
      cursor: { sync: { key: "live" }, drag: { x: false, y: false } },
      axes: [{ stroke: ink, grid: { stroke: grid } }, { stroke: ink, grid: { stroke: grid }, size: 72, values: (u, v) => v.map(y => si(y, unit)) }],
      scales: { y: { range: (u, min, max) => [0, Math.max(max * 1.1, 1)] } },
      series: [{}, ...lines.map(l => ({ label: l.label, stroke: l.color, width: 1.5, points: { show: false }, value: (u, v) => si(v, unit) }))],
    }, [[], ...lines.map(() => [])], root) };
    addEventListener("resize", () => plots[id].plot.setSize({ width: Math.max(300, root.clientWidth), height: 170 }));
  };
  define("rate", "B/s", [{ key: "out", label: "out", color: blue }, { key: "in", label: "in", color: green }]);
  define("rtt", "ms", [{ key: "rtt", label: "smoothed", color: blue }, { key: "rto", label: "time-out", color: grey }]);
  define("losses", "/s", [{ key: "resent", label: "retransmitted", color: orange }, { key: "spurious", label: "in error", color: red }, { key: "duplicates", label: "duplicates in", color: grey }]);
  // What kept the session from sending more: shares of the time, by the names of the server.
  const limits = ["congestion window", "pacing", "peer's window", "send window", "write buffer", "reader", "rate cap", "outage", "handshake", "application"];
  const limitColors = [blue, "#14b8a6", "#a855f7", "#d946ef", orange, red, "#eab308", "#111827", green, grey];
  define("limits", "%", limits.map((name, i) => ({ key: name, label: name, color: limitColors[i] })));
  define("window", "seg", [{ key: "cwnd", label: "congestion window", color: blue }, { key: "flight", label: "in flight", color: orange }, { key: "remote", label: "peer's window", color: grey }]);
  define("queue", "B", [{ key: "write", label: "not acknowledged", color: orange }, { key: "held", label: "held for reading", color: green }]);

  const forget = () => {
    history.time.length = 0;
    history.last = null;
    for (const k in history.columns) history.columns[k].length = 0;
  };
  const record = s => {
    const x = s.stats, last = history.last, seconds = last ? (s.time - last.time) / 1000 : 0;
    history.last = s;
    if (!last || seconds <= 0) return;
    const rate = f => (f(x) - f(last.stats)) / seconds;
    const values = {
      out: rate(y => y.BytesSent), in: rate(y => y.BytesReceived),
      rtt: x.RTT / 1e6, rto: x.RTO / 1e6,
      resent: rate(y => y.TimeoutRetransmits + y.FastRetransmits), spurious: rate(y => y.SpuriousRetransmits), duplicates: rate(y => y.Duplicates),
      cwnd: s.window < 0 ? null : s.window, flight: x.InFlight, remote: x.RemoteWindow,
      write: x.WriteBuffered, held: x.Held,
    };
    for (const name of limits) {
      const i = s.limits.indexOf(name);
      values[name] = i < 0 ? null : 100 * Math.min(rate(y => y.Limited[i]) / 1e9, 1);
    }
    history.time.push(s.time / 1000);
    for (const k in values) history.columns[k].push(values[k]);
    if (history.time.length > kept) {
      history.time.shift();
      for (const k in history.columns) history.columns[k].shift();
    }
    for (const id in plots) plots[id].plot.setData([history.time.slice(), ...plots[id].keys.map(k => history.columns[k].slice())]);
  };

  const cell = (text, cls) => { const td = document.createElement("td"); td.textContent = text; if (cls) td.className = cls; return td; };
  const named = r => r.name ? `${r.name} · ${r.remote}` : r.remote;
  const choose = id => { if (state.session !== id) { state.session = id; forget(); } };
  const percent = v => v < 0 ? "–" : (100 * v).toFixed(1) + " %";
  const showRows = a => {
    const body = $("sessions").tBodies[0];
    body.replaceChildren(...a.rows.map(r => {
      const tr = document.createElement("tr");
      tr.dataset.id = r.id;
      if (r.id === state.session) tr.className = "picked";
      const share = r.segments ? (100 * r.retransmits / (r.segments + r.retransmits)).toFixed(1) + " %" : "–";
      tr.append(cell(named(r)), cell(r.conv, "t"), cell(si(r.sendRate, "B")), cell(si(r.receiveRate, "B")), cell(r.rtt ? si(r.rtt, "ms") : "–"),
        cell(si(r.bytesSent, "B")), cell(si(r.bytesReceived, "B")), cell(share), cell(percent(r.lostOut)), cell(percent(r.lostIn)), cell(r.limitedBy, "t"), cell(si(r.inFlight)), cell(r.window < 0 ? "∞" : si(r.window)),
        cell(si(r.queue, "B")), cell(si(r.held, "B")), cell(si(r.drops)));
      return tr;
    }));
    state.total = a.matching;
    state.offset = a.offset;
    $("range").textContent = a.matching ? `${a.offset + 1}–${a.offset + a.rows.length} of ${a.matching.toLocaleString("en")}` : "none";
  };
  // Figures of endpoints that are shown once one of them is not 0: of a takeover.
  const rare = [["forwarded", s => s.Forwarded], ["forward drops", s => s.DropForward], ["sessions before", s => s.PredecessorSessions]];
  const showEndpoints = a => {
    const extra = rare.filter(([, of]) => a.endpoints.some(e => of(e.stats)));
    const names = ["endpoint", "address", "sessions", "opened", "ended", "packets in", "packets out", "bytes in", "bytes out", "resent", "another key", "other drops", "socket drops", "lag", ...extra.map(([n]) => n)];
    const head = document.createElement("tr");
    head.append(...names.map(n => { const th = document.createElement("th"); th.textContent = n; return th; }));
    $("endpoints").replaceChildren(head, ...a.endpoints.map(e => {
      const s = e.stats, t = e.totals, tr = document.createElement("tr");
      const other = s.DropShort + s.DropReplay + s.DropUnknown + s.DropEnded + s.DropSessions + s.DropHalfOpen + s.DropBacklog + s.DropHandshake;
      tr.append(cell(e.name), cell(e.local), cell(si(s.Sessions)), cell(si(s.Dialled + s.Accepted)), cell(si(s.Dialled + s.Accepted - s.Sessions)),
        cell(si(s.PacketsReceived)), cell(si(s.PacketsSent)), cell(si(s.BytesReceived, "B")), cell(si(s.BytesSent, "B")),
        cell(si(t.TimeoutRetransmits + t.FastRetransmits)), cell(si(s.DropCipher)), cell(si(other)), cell(si(s.SocketDrops)), cell(si(s.Lag.Max / 1e9, "s")),
        ...extra.map(([, of]) => cell(si(of(s)))));
      return tr;
    }));
  };
  const showTotals = a => {
    $("about").textContent = `${plural(a.sessions, "session")} on ${plural(a.endpoints.length, "endpoint")}, ${new Date(a.time).toLocaleTimeString()}`;
  };
  const show = a => {
    showTotals(a);
    showEndpoints(a);
    if (!state.session && a.rows.length) choose(a.rows[0].id);
    showRows(a);
    if (a.selected) {
      record(a.selected);
      $("chosen").textContent = `Session ${a.selected.conv} with ${named(a.selected)} (${a.selected.endpoint})`;
      const names = a.selected.limits, times = v => Object.fromEntries(names.map((n, i) => [n, v[i]]));
      $("all").textContent = JSON.stringify({ ...a.selected.stats, LimitedBy: a.selected.limitedBy, Limited: times(a.selected.stats.Limited) }, null, 1);
    } else if (state.session && history.last) {
      $("chosen").textContent = "The session has ended: " + state.session;
      if (a.rows.length && !a.rows.some(r => r.id === state.session)) state.session = "";
    }
    window.kcpLive.polls++;
  };

  window.kcpLive = { polls: 0, history, plots, showEndpoints, showTotals };
  const poll = async () => {
    try {
      if (!$("pause").checked) {
        const q = new URLSearchParams({ sort: state.sort, n: state.rows, offset: state.offset, q: $("filter").value.trim(), session: state.session });
        const r = await fetch("stats.json?" + q);
        if (!r.ok) throw new Error("HTTP status " + r.status);
        show(await r.json());
        $("fault").textContent = "";
      }
    } catch (e) {
      $("fault").textContent = "No figures: " + e.message;
    }
    setTimeout(poll, every);
  };
  $("sessions").tBodies[0].addEventListener("click", e => { const tr = e.target.closest("tr"); if (tr) choose(tr.dataset.id); });
  const heads = $("sessions").tHead.querySelectorAll("th[data-sort]");
  const mark = () => heads.forEach(h => h.dataset.sort === state.sort ? h.setAttribute("aria-sort", "descending") : h.removeAttribute("aria-sort"));
  heads.forEach(h => h.addEventListener("click", () => { state.sort = h.dataset.sort; state.offset = 0; mark(); }));
  mark();
  $("back").addEventListener("click", () => { state.offset = Math.max(0, state.offset - state.rows); });
  $("forward").addEventListener("click", () => { if (state.offset + state.rows < state.total) state.offset += state.rows; });
  $("filter").addEventListener("input", () => { state.offset = 0; });
  poll();
})();
