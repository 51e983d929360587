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
  const exponential = Math.abs(value) < 0.01 || Math.abs(value) >= 1e5;
  return exponential ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

export const STATES = {
  running: "▶", finished: "✓", stopped: "⏸", failed: "✕", died: "†", broken: "⚠", reading: "…",
};

export function badge(state, reason) {
  const element = el("span", { className: `badge ${state in STATES ? state : ""}` });
  element.append(el("span", { "aria-hidden": "true" }, STATES[state] ?? ""), ` ${state}`);
  if (reason) element.title = reason;
  return element;
}
