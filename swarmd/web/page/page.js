// Draws the page from /api/..., once a second. Everything that comes from a peer is put in as text,
// never as HTML: names are chosen by strangers.
"use strict";

const EVERY_MS = 1000;
const SLOW_EVERY = 5; // rounds of the loop between two looks at history and events
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

// ------------------------------------------------------------------------------- words and figures

const known = (value) => value !== null && value !== undefined;

function scaled(value, unit = "") {
  if (!known(value)) return "-";
  for (const [factor, prefix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= factor) return `${(value / factor).toPrecision(3)} ${prefix}${unit}`;
  }
  return `${value < 10 && value !== Math.round(value) ? value.toPrecision(3) : Math.round(value)} ${unit}`.trim();
}

function duration(seconds) {
  if (!known(seconds)) return "-";
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} m ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} m`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

const clock = (at) => new Date(at).toLocaleTimeString([], { hour12: false });
const fixed = (value, digits) => (known(value) ? value.toFixed(digits) : "-");
const percent = (value) => (known(value) ? `${Math.round(value * 100)} %` : "-");
const mbit = (value) => (known(value) ? ((value * 8) / 1e6).toFixed(1) : "-");
const tail = (id) => (id ? `·${id.slice(-4)}` : "");
const called = (row) => `${row.name || ""} ${tail(row.id)}`.trim();

function facts(list, rows) {
  list.replaceChildren();
  for (const [name, value] of rows) {
    if (value === null) continue;
    list.append(element("dt", name), element("dd", value));
  }
}

// ------------------------------------------------------------------------------------- the sections

function refusedAtPorts(refused) {
  if (!refused.total) return null;
  const kinds = Object.entries(refused.by_code).sort((one, other) => other[1] - one[1]);
  return `${scaled(refused.total)} at our ports: ${kinds.map(([code, count]) => `${count} ${code.replaceAll("_", " ")}`).join(", ")}`;
}

function showNow(status) {
  const { peer, run, progress, throughput, communication, contribution, faults, resources } = status;
  byId("peer").textContent = called(peer);
  byId("run").textContent = run.id ? `run ${run.name || ""} ·${run.id.slice(0, 4)} · up ${duration(status.time.uptime_s)}` : "";
  document.title = `${status.state} · ${peer.name} · swarmd`;
  const state = byId("state");
  const stage = status.stage;
  state.textContent = stage ? `${status.state} · stage ${stage.index} of ${run.stages}` : status.state;
  state.className = status.state;
  const reason = status.reason;
  const about = reason.eta_basis === "deadline" ? "at most" : "about";
  const eta = known(reason.eta_s) ? `, ${about} ${duration(reason.eta_s)} left` : "";
  const why = reason.text === reason.code ? reason.text : `${reason.text} (${reason.code})`;
  byId("reason").textContent = `${why} for ${duration(reason.for_s)}${eta}`;
  const share = known(progress.inner_step) && run.total_steps ? progress.inner_step / run.total_steps : 0;
  byId("progress").firstElementChild.style.width = `${100 * share}%`;
  byId("progress").setAttribute("aria-valuenow", String(Math.round(100 * share)));
  byId("round").textContent = known(progress.outer_round)
    ? `round ${progress.outer_round} · step ${progress.inner_step ?? "-"} of ${run.total_steps}` +
      (known(progress.eta_s) ? ` · about ${duration(progress.eta_s)} left` : "")
    : "";
  const total = communication.total;
  facts(byId("figures"), [
    ["loss", `${fixed(progress.loss, 3)} now, ${fixed(progress.loss_first, 3)} at first, ${fixed(progress.loss_heldout, 3)} held out`],
    ["speed", `${scaled(throughput.tokens_per_s_self)} tok/s here · ${scaled(throughput.tokens_per_s_swarm)} tok/s swarm${known(throughput.mfu) ? ` · MFU ${percent(throughput.mfu)}` : ""} · utilisation ${percent(throughput.compute_utilisation)}`],
    ["traffic", `sent ${scaled(total.wire_bytes_sent, "B")} for ${scaled(total.raw_bytes_sent, "B")} raw · received ${scaled(total.wire_bytes_received, "B")}`],
    ["counted", `${scaled(contribution.micro_batches)} micro-batches · ${scaled(contribution.tokens)} tokens`],
    ["faults", faults.count ? `${faults.count} · ${faults.redone_micro_batches ?? 0} redone · ${faults.lost_micro_batches ?? 0} lost` : null],
    ["machine", `${peer.device.name || peer.device.kind || "-"} · ${scaled(resources.rss_bytes, "B")} resident · ${fixed(resources.cpu_share, 1)} cores`],
    ["refused", refusedAtPorts(status.refused)],
    ...status.slots.filter((slot) => slot.home).map((slot) => ["also", `${slot.device} · ${known(slot.stage) ? `stage ${slot.stage}` : "no stage"} · ${slot.state}`]),
  ]);
  byId("health").replaceChildren(...status.health.items.map((item) => {
    const line = element("li", `${item.code}: ${item.text}`, item.severity);
    if (item.fix) line.append(element("div", `fix: ${item.fix}`, "note"));
    return line;
  }));
}

function showMap(status, peers) {
  const rows = new Map(peers.map((row) => [row.id, row]));
  byId("map").replaceChildren(...status.stage_map.map((entry) => {
    const box = element("div", undefined, entry.peers.length ? "stage" : "stage empty");
    box.append(element("h3", `stage ${entry.stage}`));
    for (const id of entry.peers) {
      const row = rows.get(id) || { id };
      const line = element("span", called(row), row.self ? "peer self" : "peer");
      const note = row.self ? status.state : row.liveness === "alive" ? "" : row.liveness || "";
      if (note) line.append(" ", element("span", note, "note"));
      box.append(line);
    }
    if (!entry.peers.length) box.append(element("span", "nobody", "note"));
    return box;
  }));
  const observers = peers.filter((row) => row.observer && row.liveness === "alive");
  if (observers.length) {
    const box = element("div", undefined, "stage");
    box.append(element("h3", "no stage"), ...observers.map((row) => element("span", called(row), "peer")));
    byId("map").append(box);
  }
}

function showPeers(peers) {
  byId("peers").replaceChildren(...peers.map((row) => {
    const line = element("tr");
    const cells = [
      called(row) + (row.self ? " *" : ""), known(row.stage) ? row.stage : "-",
      row.liveness === "alive" ? row.state || (row.observer ? "observer" : "alive") : row.liveness || "-",
      row.path || "-", known(row.rtt_ms) ? `${row.rtt_ms.toFixed(0)} ms` : "-",
      known(row.up_bytes_per_s) ? `${mbit(row.up_bytes_per_s)} / ${mbit(row.down_bytes_per_s)} Mbit/s` : "-",
      scaled(row.tokens_per_s), scaled(row.wire_bytes_sent, "B"),
      known(row.last_seen_s) ? (row.last_seen_s < 1 ? "now" : duration(row.last_seen_s)) : "-",
    ];
    line.append(...cells.map((text) => element("td", String(text))));
    return line;
  }));
}

function showRounds(status) {
  const { last_round: last, totals, communication } = status;
  const traffic = communication.last_round;
  const missing = last.missing.map((item) => `${tail(item.peer)} ${item.code}`).join(", ");
  facts(byId("rounds"), [
    ["phase", status.progress.round_phase || "-"],
    ["last", known(last.round) ? `round ${last.round} ${last.outcome}, ${last.included.length} of ${last.planned.length} in${missing ? `; missing ${missing}` : ""}` : "-"],
    ["exchange", `${fixed(traffic.mix1_s, 1)} s parameters (${fixed(traffic.hidden_s, 1)} s hidden), ${fixed(traffic.mix2_s, 1)} s progress, ${fixed(traffic.blocking_s, 1)} s blocking`],
    ["disagreement", fixed(status.progress.disagreement, 3)],
    ["in all", `${totals.rounds_committed ?? "-"} committed · ${totals.rounds_partial ?? "-"} partial · ${totals.rounds_skipped ?? "-"} skipped`],
  ]);
}

function showEvents(events) {
  byId("events").replaceChildren(...events.slice().reverse().map((event) => {
    const line = element("li");
    const at = element("time", clock(event.at));
    const words = [event.event, event.code, known(event.stage) ? `stage ${event.stage}` : null,
      known(event.round) ? `round ${event.round}` : null, tail(event.peer)];
    line.append(at, element("span", words.filter(Boolean).join(" · ")));
    return line;
  }));
}

// ------------------------------------------------------------------------------------------ charts

function chart(svg, label, series) {
  const points = series.flatMap((line) => line.points);
  svg.replaceChildren();
  svg.setAttribute("aria-label", label);
  if (points.length < 2) return;
  const [left, right, top, bottom] = [6, 594, 14, 140];
  const xs = points.map((point) => point[0]);
  const ys = points.map((point) => point[1]);
  const [xLow, xHigh, yLow, yHigh] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const x = (value) => left + ((value - xLow) / (xHigh - xLow || 1)) * (right - left);
  const y = (value) => bottom - ((value - yLow) / (yHigh - yLow || 1)) * (bottom - top);
  for (const height of [top, bottom]) {
    const line = document.createElementNS(SVG, "line");
    for (const [name, value] of [["x1", left], ["x2", right], ["y1", height], ["y2", height]]) line.setAttribute(name, value);
    svg.append(line);
  }
  for (const { points: own, second } of series) {
    if (own.length < 2) continue;
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", own.map(([a, b], index) => `${index ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join(""));
    if (second) path.setAttribute("class", "second");
    svg.append(path);
  }
  for (const [text, px, py, anchor] of [[yHigh.toPrecision(4), left, 11, "start"], [yLow.toPrecision(4), left, 155, "start"], [duration(xHigh), right, 155, "end"]]) {
    const label_ = document.createElementNS(SVG, "text");
    label_.setAttribute("x", px);
    label_.setAttribute("y", py);
    label_.setAttribute("text-anchor", anchor);
    label_.textContent = text;
    svg.append(label_);
  }
}

function showCourse(points) {
  const line = (name) => points.filter((point) => known(point[name])).map((point) => [point.t_s, point[name]]);
  chart(byId("loss-chart"), "training loss, and held-out loss dashed, over time",
    [{ points: line("loss") }, { points: line("loss_heldout"), second: true }]);
  chart(byId("speed-chart"), "tokens a second over time", [{ points: line("tokens_per_s") }]);
  const last = points[points.length - 1] || {};
  byId("loss-now").textContent = fixed(last.loss, 3);
  byId("speed-now").textContent = scaled(last.tokens_per_s);
}

// -------------------------------------------------------------------------------------------- loop

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error((await answer.text()).trim() || `status ${answer.status}`);
  return answer.json();
}

async function look(turn) {
  const [status, found] = await Promise.all([ask("api/status"), ask("api/peers")]);
  showNow(status);
  showMap(status, found.peers);
  showPeers(found.peers);
  showRounds(status);
  if (turn % SLOW_EVERY === 0) {
    const [history, events] = await Promise.all([ask("api/history"), ask("api/events")]);
    showCourse(history.points);
    showEvents(events.events);
  }
  byId("age").textContent = `as of ${clock(status.generated_at)}`;
}

async function loop() {
  for (let turn = 0; ; turn += 1) {
    try {
      await look(turn);
      document.body.dataset.ready = "yes";
    } catch (error) {
      byId("age").textContent = `no answer: ${error.message}`;
    }
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
  }
}

loop();
