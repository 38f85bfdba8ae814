// The page: asks the server once a second, less often while nobody looks.

import { startChat, setModel } from "/page/chat.js";
import { getJson, getKey, setKey } from "/page/server.js";
import { drawTree } from "/page/tree.js";

const byId = (id) => document.getElementById(id);
const SECONDS = 120;
const history = []; // {time, completion rate, itl}
let before = null;

const seconds = (value) => value == null ? "–" : value < 1 ? `${(value * 1000).toFixed(1)} ms` : `${value.toFixed(2)} s`;
const count = (value) => Math.round(value).toLocaleString("en");

function show(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

function tiles(queue) {
  const boxes = Object.entries(queue).map(([state, number]) => {
    const box = document.createElement("div");
    box.className = "tile";
    box.dataset.state = state;
    const value = document.createElement("b");
    value.textContent = number;
    box.append(value, state);
    return box;
  });
  byId("queue").replaceChildren(...boxes);
}

function pool(kv) {
  const parts = [["locked", "--locked"], ["private", "--private"], ["evictable", "--cached"], ["free", "--free"]];
  const bars = [], words = [];
  for (const [name, colour] of parts) {
    const bar = document.createElement("div");
    bar.style.width = `${(100 * kv[name]) / kv.total}%`;
    bar.style.background = `var(${colour})`;
    bars.push(bar);
    const word = document.createElement("span");
    const swatch = document.createElement("i");
    swatch.className = "swatch";
    swatch.style.background = `var(${colour})`;
    word.append(swatch, `${name} ${count(kv[name])}`);
    words.push(word);
  }
  byId("kv-bar").replaceChildren(...bars);
  byId("kv-legend").replaceChildren(...words);
}

function rates(now) {
  if (before && now.time > before.time) {
    const span = now.time - before.time;
    const rate = (name) => Math.max(0, now.counters[`${name}_tokens`] - before.counters[`${name}_tokens`]) / span;
    for (const name of ["output", "computed", "cached"]) show(`rate-${name}`, count(rate(name)));
    history.push({ time: now.time, rate: rate("output"), itl: now.latencies.itl_p50 ?? 0 });
    while (history[0].time < now.time - SECONDS) history.shift();
  }
  before = now;
  chart("chart-rates", "rate");
  chart("chart-latency", "itl");
}

function chart(id, field) {
  const svg = byId(id);
  svg.setAttribute("viewBox", `0 0 ${SECONDS} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  const top = Math.max(...history.map((point) => point[field]), 1e-9);
  const end = history.at(-1)?.time ?? 0;
  const points = history.map((p) => `${SECONDS - (end - p.time)},${98 - (94 * p[field]) / top}`);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points.join(" "));
  svg.replaceChildren(line);
}

function calls(list) {
  const rows = list.map((call) => {
    const row = document.createElement("tr");
    const cells = [
      new Date(call.time * 1000).toLocaleTimeString(), call.route, call.key || "–", call.outcome,
      call.seconds.toFixed(3), split(call), count(call.completion),
    ];
    for (const cell of cells) {
      const box = document.createElement("td");
      box.append(cell);
      row.append(box);
    }
    if (call.prompt || call.text) row.title = `${call.prompt}\n→ ${call.text}`;
    return row;
  });
  byId("calls").tBodies[0].replaceChildren(...rows);
}

function split(call) {
  const all = call.cached + call.computed || 1;
  const bar = document.createElement("span");
  bar.className = "split";
  const cached = document.createElement("i"), computed = document.createElement("u");
  cached.style.width = `${(100 * call.cached) / all}%`;
  computed.style.width = `${(100 * call.computed) / all}%`;
  bar.append(cached, computed);
  const both = document.createDocumentFragment();
  both.append(bar, `${count(call.cached)} + ${count(call.computed)}`);
  return both;
}

async function refreshTree(operator) {
  byId("tree-note").hidden = operator;
  if (!operator) return show("tree-note", "The tree shows other people's texts: it needs an operator's key.");
  const tree = await getJson("/tree");
  const shown = tree.nodes.length < tree.num_nodes ? `, the latest ${tree.nodes.length} shown` : "";
  show("tree-size", `${count(tree.num_nodes)} nodes, ${count(tree.num_tokens)} tokens${shown}`);
  drawTree(byId("tree"), tree, (node) => {
    const locks = node.locks ? `, locked ${node.locks} times` : "";
    show("node-text", `${count(node.num_tokens)} tokens, used ${node.hits} times${locks}\n${node.text}`);
  });
}

async function refresh(round) {
  try {
    const now = await getJson("/live");
    show("model", now.model);
    setModel(now.model);
    show("phase", now.phase);
    byId("phase").className = `badge ${now.phase === "ready" ? "ready" : "bad"}`;
    const frontend = now.frontends > 1 ? `, frontend ${now.frontend + 1} of ${now.frontends}` : "";
    show("uptime", `up ${Math.round(now.uptime / 60)} min${frontend}`);
    tiles(now.queue);
    pool(now.kv);
    rates(now);
    for (const [name, value] of Object.entries(now.latencies)) show(name, seconds(value));
    calls(now.calls);
    if (round % 2 === 0) await refreshTree(now.operator);
    byId("problem").hidden = true;
  } catch (error) {
    show("problem", error.status === 401 ? "This server wants an API key." : error.message);
    byId("problem").hidden = false;
  }
  setTimeout(refresh, document.hidden ? 5000 : 1000, round + 1);
}

byId("key").value = getKey();
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(byId("key").value);
});
startChat();
refresh(0);
