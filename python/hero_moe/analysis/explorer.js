// The interactive part: the URL fragment stores the selection, and rendering depends only on the selection.
const data = JSON.parse(document.getElementById("analysis-data").textContent);
const { layers, experts } = data;
const pairs = new Map(data.pairs.map((pair) => [`${pair.layer}.${pair.from}`, pair]));
const byId = (id) => document.getElementById(id);
const decode = (text, Type) => new Type(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
const number = (value, digits = 3) => value.toPrecision(digits).replace("-", "−");
const percent = (value) => `${(100 * value).toFixed(2)}%`;
const MAX_PARTNERS = 8;
let state = {};

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// State: read from the URL, with defaults for missing or invalid values.
function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  const within = (key, low, high, fallback) => {
    const text = given.get(key) ?? "", value = Number(text);
    return /^\d+$/.test(text) && value >= low && value <= high ? value : fallback;
  };
  const picked = [within("layer", 1, layers), within("from", 1, layers)];
  const [layer, from] = pairs.has(picked.join(".")) ? picked : data.default ?? [];
  state = { layer, from, weights: given.get("weights") === "centered" ? "centered" : null };
  for (const key of ["source", "target"]) state[key] = within(key, 0, experts - 1, null);
  if (data.paths) {
    state.token = within("token", 0, data.paths.names.length - 1, 0);
    state.at = within("at", 1, layers, layer ?? 1);
    state.expert = within("expert", 0, experts - 1, expertsOf(state.token, state.at)[0][0]);
  }
}

function pick(change) {
  Object.assign(state, change);
  const set = Object.entries(state).filter(([, value]) => value != null);
  history.replaceState(null, "", `#${new URLSearchParams(set)}`);
  const home = document.activeElement?.closest("#of-source, #of-target, #token-table");
  const place = home ? [...home.querySelectorAll("button")].indexOf(document.activeElement) : -1;
  render();
  if (place >= 0) byId(home.id)?.querySelectorAll("button")[place]?.focus(); // the list was recreated
}

// Raw or centered weights.
const form = () => state.weights ?? "raw";

function pickPair(layer, from) {
  if (pairs.has(`${layer}.${from}`)) pick({ layer, from });
}

// Selects a layer and the predecessor at the same distance if visible, else the nearest.
function pickLayer(layer) {
  const seen = data.pairs.filter((pair) => pair.layer === layer).map((pair) => pair.from);
  const wanted = layer - (state.layer - state.from);
  pick({ layer, from: seen.includes(wanted) ? wanted : Math.max(...seen) });
}

// Coupling.
let block = null, step = 0, rows, columns; // selected pair: int8 centered weights, scale, means
function weight(target, source) {
  const centered = block[target * experts + source] * step;
  return form() === "centered" ? centered : centered + rows[target] + columns[source];
}

const matrix = data.default && new Grid(byId("dependency"), {
  size: layers, first: 1, across: "predecessor layer p", down: "target layer l", single: true,
  blocks: data.stages,
  move: (row, column) => {
    const pair = pairs.get(`${row + 1}.${column + 1}`);
    const what = pair ? `D = ${number(pair[form()].dependency)}` : column < row ? "not visible" : "no predecessor";
    byId("dependency-readout").textContent = `Layer ${column + 1} → layer ${row + 1}: ${what}`;
  },
  pick: (row, column) => pickPair(row + 1, column + 1),
});

const coupling = data.default && new Grid(byId("coupling"), {
  size: experts, first: 0, across: "source expert", down: "target expert",
  move: (row, column) => {
    if (!block) return;
    const text = `Source expert ${column} → target expert ${row}: ${number(weight(row, column))}`;
    const bias = form() === "centered" ? `; bias of expert ${row}: ${number(data.bias[state.layer - 1][row])}` : "";
    byId("coupling-readout").textContent = text + bias;
  },
  pick: (row, column) => pick({ source: column, target: row }),
});

function fill(select, values, chosen) {
  select.replaceChildren(...values.map((value) => new Option(value, value, false, value === chosen)));
}

function renderCoupling() {
  const { layer, from, source, target } = state, pair = pairs.get(`${layer}.${from}`);
  const { dependency, norm, rank, limit } = pair[form()];
  fill(byId("layer"), [...new Set(data.pairs.map((one) => one.layer))], layer);
  fill(byId("from"), data.pairs.filter((one) => one.layer === layer).map((one) => one.from), from);
  for (const key of ["source", "target"]) byId(key).value = state[key] ?? "";
  const facts = `Layer ${from} → layer ${layer}, ${form()} weights: dependency D ${number(dependency)}, ` +
    `norm ${number(norm)}, depth factor ${number(pair.factor)}, effective rank ${rank.toFixed(1)} of ${experts}.`;
  block = pair.block === undefined ? null : decode(pair.block, Int8Array);
  step = pair.step ?? 0;
  [rows, columns] = ["rows", "columns"].map((key) => block && decode(pair[key], Float32Array));
  byId("pair-facts").textContent = `${facts} ${block ?
    `Color range ±${number(limit)}; quantization error at most ${number(step / 2, 2)}.` :
    `This block is not embedded; see ${form() === "raw" ? "coupling" : "centered"}.${layer}.${from} in analysis.safetensors.`}`;
  const strongest = Math.max(...data.pairs.map((one) => one[form()].dependency)) || 1;
  matrix.show((row, column) => {
    const shown = pairs.get(`${row + 1}.${column + 1}`);
    return shown ? colorOf(GREENS, shown[form()].dependency / strongest) : column < row ? UNSEEN : null;
  });
  matrix.marks = { row: layer - 1, column: from - 1 };
  coupling.marks = { row: target, column: source };
  coupling.show((row, column) => block && colorOf(DIVERGING, 0.5 + weight(row, column) / (2 * limit)));
  byId("coupling-readout").textContent = "";
  if (block && source != null && target != null) coupling.move(target, source);
  const partners = [];
  if (block && source != null) {
    const title = `Source expert ${source} of layer ${from}: strongest targets in layer ${layer}`;
    const value = (other) => weight(other, source);
    partners.push(partnerLists(title, "of-source", value, (other) => pick({ target: other })));
  }
  if (block && target != null) {
    const title = `Target expert ${target} of layer ${layer}: strongest sources in layer ${from}`;
    const value = (other) => weight(target, other);
    partners.push(partnerLists(title, "of-target", value, (other) => pick({ source: other })));
  }
  byId("partners").replaceChildren(...partners);
}

function partnerLists(title, id, value, choose) {
  const order = Array.from({ length: experts }, (_, i) => i).sort((a, b) => value(b) - value(a));
  const item = (other) => element("li", {}, element("button", {
    type: "button", textContent: `expert ${other}`, onclick: () => choose(other),
  }), ` ${number(value(other))}`);
  const list = (name, chosen) => element("div", {}, element("h4", { textContent: name }),
    chosen.length ? element("ol", {}, ...chosen.map(item)) : "none");
  return element("div", { className: "partners", id }, element("h3", { textContent: title }),
    list("positive", order.filter((other) => value(other) > 0).slice(0, MAX_PARTNERS)),
    list("negative", order.reverse().filter((other) => value(other) < 0).slice(0, MAX_PARTNERS)));
}

function setUpCoupling() {
  byId("layer").addEventListener("change", (event) => pickLayer(Number(event.target.value)));
  byId("from").addEventListener("change", (event) => pickPair(state.layer, Number(event.target.value)));
  ["source", "target"].forEach(expertInput);
  for (const select of document.querySelectorAll("select.weights")) {
    select.addEventListener("change", () => pick({ weights: select.value === "centered" ? "centered" : null }));
  }
  byId("clear").addEventListener("click", () => pick({ source: null, target: null }));
}

// Tokens.
const chosen = data.paths && decode(data.paths.experts, Uint16Array);
const shares = data.paths && decode(data.paths.weights, Float32Array);

// [expert, weight] of a token in a layer, in descending order of weight.
function expertsOf(token, layer) {
  const first = ((layer - 1) * data.paths.names.length + token) * data.top_k;
  return Array.from({ length: data.top_k }, (_, k) => [chosen[first + k], shares[first + k]]);
}

function drawPath() {
  const picture = byId("token-path"), width = Math.max(300, picture.clientWidth);
  const height = 300, left = 52, bottom = 36;
  const x = (layer) => left + 12 + (layer - 1) * (width - left - 24) / Math.max(1, layers - 1);
  const y = (expert) => 10 + (height - bottom - 20) * (1 - expert / Math.max(1, experts - 1));
  const drawn = (kind, attributes, text = "") => {
    const made = document.createElementNS(picture.namespaceURI, kind);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    return made;
  };
  const parts = [], line = [], step = layers <= 12 ? 1 : 5;
  for (let layer = 1; layer <= layers; layer++) {
    if (layer === 1 || layer % step === 0) {
      parts.push(drawn("text", { x: x(layer), y: height - 20, "text-anchor": "middle" }, layer));
    }
    const here = expertsOf(state.token, layer);
    line.push(`${x(layer)},${y(here[0][0])}`);
    for (const [expert, weight] of here) {
      const picked = layer === state.at && expert === state.expert;
      const r = 2 + 6 * Math.sqrt(weight / data.paths.most), fill = picked ? "#d55e00" : "#0072b2";
      const dot = drawn("circle", { cx: x(layer), cy: y(expert), r, fill });
      dot.append(drawn("title", {}, `layer ${layer}, expert ${expert}: ${number(weight)}`));
      dot.addEventListener("click", () => pick({ at: layer, expert }));
      parts.push(dot);
    }
  }
  for (const expert of [0, Math.floor(experts / 2), experts - 1]) {
    parts.push(drawn("text", { x: left - 2, y: y(expert) + 4, "text-anchor": "end" }, expert));
  }
  const below = { x: left + (width - left) / 2, y: height - 3, "text-anchor": "middle" };
  parts.push(drawn("text", below, "layer"));
  const middle = (height - bottom) / 2;
  const turned = { x: 12, y: middle, transform: `rotate(-90 12 ${middle})`, "text-anchor": "middle" };
  parts.push(drawn("text", turned, "expert"));
  parts.unshift(drawn("polyline", { points: line.join(" "), fill: "none", stroke: "#767676" }));
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.replaceChildren(...parts);
}

function renderTokens() {
  const { token, at, expert } = state, { names } = data.paths;
  let count = 0;
  [...byId("tokens").children].forEach((button, i) => {
    const weight = expertsOf(i, at).find(([one]) => one === expert)?.[1];
    if (weight !== undefined) count++;
    button.className = weight === undefined ? "" : "here";
    button.title = weight === undefined ? `token ${i}` : `token ${i}: ${number(weight)}`;
    button.setAttribute("aria-pressed", i === token);
    button.tabIndex = i === token ? 0 : -1;
  });
  fill(byId("at"), Array.from({ length: layers }, (_, i) => i + 1), at);
  byId("expert").value = expert;
  const share = percent(data.share[at - 1][expert]), even = percent(data.top_k / experts);
  byId("expert-facts").textContent =
    `Expert ${expert} of layer ${at} receives ${count} of these ${names.length} tokens (marked) and ${share} of ` +
    `all tokens; perfect balance is ${even}.`;
  byId("token-facts").textContent = `Token ${token}, “${names[token]}”: its experts, in descending order of weight.`;
  drawPath();
  byId("token-table").replaceChildren(...Array.from({ length: layers }, (_, i) => element("tr", {},
    element("td", { textContent: i + 1 }),
    ...expertsOf(token, i + 1).map(([one, weight]) => element("td", {}, element("button", {
      type: "button", textContent: one, className: i + 1 === at && one === expert ? "picked" : "",
      onclick: () => pick({ at: i + 1, expert: one }),
    }), ` ${number(weight)}`)))));
}

function setUpTokens() {
  const list = byId("tokens");
  list.append(...data.paths.names.map((name, i) => element("button", {
    type: "button", textContent: name, onclick: () => pick({ token: i }),
  })));
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], next = list.children[state.token + step];
    if (!next) return;
    pick({ token: state.token + step });
    next.focus();
    event.preventDefault();
  });
  new ResizeObserver(drawPath).observe(byId("token-path"));
  byId("at").addEventListener("change", (event) => pick({ at: Number(event.target.value) }));
  expertInput("expert");
}

function expertInput(key) {
  byId(key).addEventListener("change", (event) => {
    const { value, validity } = event.target;
    const right = validity.valid && (value !== "" || key !== "expert");
    pick(right ? { [key]: value === "" ? null : Number(value) } : {});
  });
}

function render() {
  document.body.dataset.weights = form();
  for (const select of document.querySelectorAll("select.weights")) select.value = form();
  if (data.default) renderCoupling();
  if (data.paths) renderTokens();
}

if (data.default) setUpCoupling();
if (data.paths) setUpTokens();
window.addEventListener("hashchange", () => { readState(); render(); });
readState();
render();
