// Helpers: create elements safely, and format numbers for display.

const SVG = "http://www.w3.org/2000/svg";

/** Create an element. Strings become text nodes and are never parsed as markup. */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Create a button with a click handler. */
export function button(label, action, properties = {}) {
  const element = el("button", { type: "button", ...properties }, label);
  element.addEventListener("click", action);
  return element;
}

/** Create a table. `columns` are {label, right}; cells are strings or nodes; the first cell of a row is its heading. */
export function table(columns, rows, properties = {}) {
  const name = (right) => (right ? "right" : "");
  const head = columns.map(({ label, right }) => el("th", { scope: "col", className: name(right) }, label));
  const body = rows.map((cells) => el("tr", {}, ...cells.map((cell, k) => (
    k === 0 ? el("th", { scope: "row" }, cell) : el("td", { className: name(columns[k].right) }, cell)))));
  return el("table", properties, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body));
}

/** Create an area that scrolls if its content is too wide. It can be focused, so that arrow keys scroll it. */
export function scrollable(label, ...children) {
  return el("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": label }, ...children);
}

/** Create a labelled select. `options` are [value, label]. */
export function picker(name, options) {
  const select = el("select");
  select.append(...options.map(([value, label]) => el("option", { value }, label)));
  return { select, label: el("label", {}, `${name} `, select) };
}

/** Replace the options of a select. The current option stays selected if it still exists. */
export function refill(select, options, otherwise) {
  const wanted = JSON.stringify(options);
  if (select.dataset.options === wanted) return;
  select.dataset.options = wanted;
  const before = select.value;
  select.replaceChildren(...options.map(([value, label]) => el("option", { value }, label)));
  select.value = options.some(([value]) => value === before) ? before : otherwise;
}

/** Return a name as nodes that may break after separators, so that it never breaks inside a word. */
export function breakable(name) {
  return name.split(/(?<=[/,=_:;@+-])|(?<=\.)(?=[A-Za-z_])/).flatMap((part, k) => (k ? [el("wbr"), part] : [part]));
}

/** Return a name with a piece of its line in a chart: colour and dashes. `name` is text or a list of nodes. */
export function lineKey(name, { colour, dashes }) {
  const line = svg("line", { class: `line c${colour} d${dashes}`, x1: 0, y1: 5, x2: 26, y2: 5 });
  const sample = svg("svg", { class: "sample", viewBox: "0 0 26 10", width: 26, height: 10, "aria-hidden": "true" }, line);
  return el("span", { className: "key" }, sample, el("span", {}, ...[name].flat()));
}

export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);

export function size(count) {
  if (count === null || count === undefined) return "–";
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(count) < 1024) return `${unit === "B" ? Math.round(count) : count.toFixed(1)} ${unit}`;
    count /= 1024;
  }
  return `${count.toFixed(1)} TiB`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${String(Math.round(seconds) % 60).padStart(2, "0")} s`;
  return `${Math.floor(seconds / 3600)} h ${String(Math.floor(seconds / 60) % 60).padStart(2, "0")} min`;
}

/** Format an age in a single unit, so that the table changes rarely. */
export function age(seconds) {
  const units = [[60, "s", 1], [3600, "min", 60], [86400, "h", 3600], [Infinity, "d", 86400]];
  const [, unit, length] = units.find(([limit]) => seconds < limit);
  return unit === "s" && seconds < 10 ? "now" : `${Math.floor(seconds / length)} ${unit}`;
}

export function plain(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const exponential = Math.abs(value) < 0.001 || Math.abs(value) >= 1e5;
  return exponential ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

export const whole = (count) => (count === null || count === undefined ? "–" : count.toLocaleString("en-GB"));

export const STATES = {
  running: "▶", finished: "✓", stopped: "⏸", failed: "✕", died: "†", broken: "⚠", reading: "…",
};

export function badge(state, reason) {
  const element = el("span", { className: `badge ${state in STATES ? state : ""}` });
  element.append(el("span", { className: "icon", "aria-hidden": "true" }, STATES[state] ?? ""), el("span", { className: "word" }, ` ${state}`));
  if (reason) element.title = reason;
  return element;
}
