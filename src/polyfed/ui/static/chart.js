// Line charts as SVG, with round tick values and a readout for the pointer and the arrow keys.

import { el, lineKey, svg } from "./format.js";

const HEIGHT = 220;
const MARGIN = { top: 10, right: 14, bottom: 34, left: 58 };

/** Return a round distance between about `count` ticks; for bytes, round in KiB, MiB and so on. */
function tickDistance(low, high, count, binary) {
  const rough = (high - low) / Math.max(1, count) || 1;
  const unit = binary ? 1024 ** Math.max(0, Math.floor(Math.log(rough) / Math.log(1024))) : 1;
  const power = 10 ** Math.floor(Math.log10(rough / unit));
  return unit * [1, 2, 5, 10].map((k) => k * power).find((k) => k >= (rough / unit) * 0.999);
}

function ticks(low, high, step) {
  const values = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-6; k += 1) values.push(k * step);
  return values;
}

/**
 * A chart whose lines can be replaced. `lines` are {name, colour, dashes, points: [[x, y or null, deviation], ...]}; a
 * deviation is drawn as a band. `x` and `y` are {label, text: number -> string, low, high}; `integer` restricts the ticks
 * of x to integers, and `bounds` are the values that a band cannot exceed.
 */
export class Chart {
  constructor(title, { legend = true } = {}) {
    Object.assign(this, { title, legend });
    this.svg = svg("svg", { class: "chart", role: "img", tabindex: "0" });
    this.readout = el("p", { className: "readout", "aria-live": "polite" });
    this.caption = el("figcaption", {}, title);
    this.element = el("figure", {}, this.caption, this.svg, this.readout);
    this.lines = [];
    this.position = null;
    new ResizeObserver(() => this.draw()).observe(this.element);
    this.svg.addEventListener("pointermove", (event) => this.point(event.clientX));
    this.svg.addEventListener("pointerleave", () => this.show(null));
    this.svg.addEventListener("blur", () => this.show(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  set(lines, x, y) {
    const same = JSON.stringify([this.title, lines, x.label, y.label]);
    if (same === this.drawn) return;
    this.drawn = same;
    Object.assign(this, { lines, x, y });
    const keys = lines.map((line) => lineKey(line.name, line));
    this.caption.replaceChildren(el("strong", {}, this.title), ...(this.legend && lines.length > 1 ? keys : []));
    this.draw();
  }

  draw() {
    const width = Math.floor(this.element.clientWidth);
    if (!this.x || width < 80) return;
    const all = this.lines.flatMap((line) => line.points.filter(([, value]) => value !== null));
    const reach = all.flatMap(([, value, deviation]) => [this.bounded(value - (deviation ?? 0)), this.bounded(value + (deviation ?? 0))]);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.setAttribute("height", HEIGHT);
    this.svg.setAttribute("aria-label", this.description());
    this.svg.replaceChildren();
    if (!all.length) {
      const middle = { x: width / 2, y: HEIGHT / 2, class: "note", "text-anchor": "middle" };
      this.svg.append(svg("text", middle, "no data yet"));
      return;
    }
    const [lowX, highX] = extent(all.map(([a]) => a), this.x);
    const [lowY, highY, stepY] = rounded(...extent(reach, this.y), this.y);
    const inner = { wide: width - MARGIN.left - MARGIN.right, high: HEIGHT - MARGIN.top - MARGIN.bottom };
    this.toX = (value) => MARGIN.left + ((value - lowX) / (highX - lowX)) * inner.wide;
    this.toY = (value) => MARGIN.top + (1 - (value - lowY) / (highY - lowY)) * inner.high;
    this.axes(width, inner, [lowX, highX], [lowY, highY, stepY]);
    for (const line of this.lines) this.band(line);
    for (const line of this.lines) this.line(line);
    this.cross = svg("line", { class: "cross", y1: MARGIN.top, y2: MARGIN.top + inner.high, visibility: "hidden" });
    this.svg.append(this.cross);
    this.positions = [...new Set(all.map(([a]) => a))].sort((a, b) => a - b);
    this.show(this.position);
  }

  axes(width, inner, xs, ys) {
    const bottom = MARGIN.top + inner.high;
    for (const value of ticks(...ys)) {
      const at = this.toY(value);
      this.svg.append(
        svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at }),
        svg("text", { class: "tick", x: MARGIN.left - 6, y: at + 4, "text-anchor": "end" }, this.y.text(value)),
      );
    }
    const marks = ticks(...xs, tickDistance(...xs, Math.max(2, Math.floor(inner.wide / 80)), this.x.binary));
    for (const value of marks.filter((each) => !this.x.integer || Number.isInteger(each))) {
      const at = this.toX(value);
      this.svg.append(
        svg("line", { class: "axis", x1: at, x2: at, y1: bottom, y2: bottom + 4 }),
        svg("text", { class: "tick", x: at, y: bottom + 16, "text-anchor": "middle" }, this.x.text(value)),
      );
    }
    this.svg.append(
      svg("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }),
      svg("text", { class: "label", x: MARGIN.left + inner.wide / 2, y: HEIGHT - 4, "text-anchor": "middle" }, this.x.label),
    );
  }

  bounded(value) {
    const [low, high] = this.y.bounds ?? [-Infinity, Infinity];
    return Math.min(high, Math.max(low, value));
  }

  band({ points, colour }) {
    const wide = points.filter(([, value, deviation]) => value !== null && deviation);
    if (wide.length < 2) return;
    const place = (x, y) => `${this.toX(x).toFixed(1)} ${this.toY(this.bounded(y)).toFixed(1)}`;
    const upper = wide.map(([x, y, deviation]) => place(x, y + deviation));
    const lower = wide.map(([x, y, deviation]) => place(x, y - deviation)).reverse();
    this.svg.append(svg("path", { class: `band c${colour}`, d: `M${[...upper, ...lower].join("L")}Z` }));
  }

  line({ points, colour, dashes, thin }) {
    // a round without a measurement is left out: the line continues at the next one
    const measured = points.filter(([, value]) => value !== null);
    const path = measured.map(([x, y]) => `${this.toX(x).toFixed(1)} ${this.toY(y).toFixed(1)}`).join("L");
    this.svg.append(svg("path", { class: `line c${colour} d${dashes}${thin ? " thin" : ""}`, d: path ? `M${path}` : "M0 0" }));
    const dots = measured.length <= 30 && !thin ? measured : measured.slice(-1);
    for (const [x, y] of dots) {
      this.svg.append(svg("circle", { class: `dot c${colour}`, cx: this.toX(x), cy: this.toY(y), r: 2.5 }));
    }
  }

  /** Format a value with its standard deviation. */
  value([, value, deviation]) {
    const text = this.y.precise ?? this.y.text;
    return deviation ? `${text(value)} ± ${text(deviation)}` : text(value);
  }

  /** Describe the chart for screen readers. */
  description() {
    const each = this.lines.map(({ name, points }) => {
      const last = points.filter(([, value]) => value !== null).at(-1);
      return last ? `${name}: ${this.value(last)} at ${this.x.label} ${this.x.text(last[0])}` : `${name}: no data`;
    });
    return `${this.title} by ${this.x.label}. ${each.join("; ")}. Left and right arrow keys read values.`;
  }

  point(clientX) {
    if (!this.positions?.length) return;
    const box = this.svg.getBoundingClientRect();
    const at = clientX - box.left;
    const distance = (value) => Math.abs(this.toX(value) - at);
    this.show(this.positions.reduce((best, value) => (distance(value) < distance(best) ? value : best)));
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!(event.key in steps) || !this.positions?.length) return;
    event.preventDefault();
    const last = this.positions.length - 1;
    const now = this.position === null ? (event.key === "ArrowRight" ? -1 : last + 1) : this.positions.indexOf(this.position);
    this.show(this.positions[Math.min(last, Math.max(0, now + steps[event.key]))]);
  }

  show(position) {
    this.position = position;
    if (!this.cross) return;
    const valid = position !== null && this.positions.includes(position);
    this.cross.setAttribute("visibility", valid ? "visible" : "hidden");
    if (!valid) {
      this.position = null;
      this.readout.replaceChildren();
      return;
    }
    this.cross.setAttribute("x1", this.toX(position));
    this.cross.setAttribute("x2", this.toX(position));
    const parts = [el("b", {}, `${this.x.label} ${this.x.text(position)}`)];
    for (const line of this.lines) {
      const point = line.points.find(([a, b]) => a === position && b !== null);
      if (point) parts.push(lineKey(`${line.name} ${this.value(point)}`, line));
    }
    this.readout.replaceChildren(...parts);
  }
}

function extent(values, { low, high }) {
  let least = values.reduce((a, b) => Math.min(a, b), low ?? Infinity);
  let most = values.reduce((a, b) => Math.max(a, b), high ?? -Infinity);
  if (least === most) [least, most] = [least === 0 ? 0 : least - Math.abs(least) * 0.1, most === 0 ? 1 : most + Math.abs(most) * 0.1];
  return [least, most];
}

/** Extend a range so that its ends are ticks. */
function rounded(low, high, { binary }) {
  const step = tickDistance(low, high, 4, binary);
  return [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step, step];
}
