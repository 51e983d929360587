// Line charts as SVG: axes with round numbers, gaps where nothing was measured, values under the pointer or by arrow keys.

import { el, svg } from "./words.js";

const HEIGHT = 220;
const MARGIN = { top: 10, right: 14, bottom: 34, left: 58 };

/** The distance of round numbers in a range, about as many as wanted; of bytes, round in KiB, MiB and so on. */
function distance(low, high, wanted, binary) {
  const rough = (high - low) / Math.max(1, wanted) || 1;
  const unit = binary ? 1024 ** Math.max(0, Math.floor(Math.log(rough) / Math.log(1024))) : 1;
  const power = 10 ** Math.floor(Math.log10(rough / unit));
  return unit * [1, 2, 5, 10].map((k) => k * power).find((k) => k >= (rough / unit) * 0.999);
}

function ticks(low, high, step) {
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-6; k += 1) found.push(k * step);
  return found;
}

/**
 * A chart that can be given other lines later. `lines` are {name, at, points: [[x, y or null], ...]}, `at` a colour's
 * number. `x` and `y` are {label, text: number -> string, low, high}; `whole` keeps ticks of x at whole numbers.
 */
export class Chart {
  constructor(title) {
    this.title = title;
    this.svg = svg("svg", { class: "chart", role: "img", tabindex: "0" });
    this.readout = el("p", { className: "readout", "aria-live": "polite" });
    this.caption = el("figcaption", {}, title);
    this.element = el("figure", {}, this.caption, this.svg, this.readout);
    this.lines = [];
    this.place = null;
    new ResizeObserver(() => this.draw()).observe(this.element);
    this.svg.addEventListener("pointermove", (event) => this.point(event.clientX));
    this.svg.addEventListener("pointerleave", () => this.show(null));
    this.svg.addEventListener("blur", () => this.show(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  set(lines, x, y) {
    const same = JSON.stringify([lines, x.label, y.label]);
    if (same === this.drawn) return;
    this.drawn = same;
    Object.assign(this, { lines, x, y });
    const keys = lines.map(({ name, at }) => el("span", { className: `key s${at % 8}` }, name));
    this.caption.replaceChildren(this.title ?? y.label, ...(this.title && lines.length > 1 ? keys : []));
    this.draw();
  }

  draw() {
    const width = Math.floor(this.element.clientWidth);
    if (!this.x || width < 80) return;
    const all = this.lines.flatMap((line) => line.points.filter(([, value]) => value !== null));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.setAttribute("height", HEIGHT);
    this.svg.setAttribute("aria-label", this.words());
    this.svg.replaceChildren();
    if (!all.length) {
      const middle = { x: width / 2, y: HEIGHT / 2, class: "note", "text-anchor": "middle" };
      this.svg.append(svg("text", middle, "nothing measured yet"));
      return;
    }
    const [lowX, highX] = extent(all.map(([a]) => a), this.x);
    const [lowY, highY, stepY] = rounded(...extent(all.map(([, b]) => b), this.y), this.y);
    const inner = { wide: width - MARGIN.left - MARGIN.right, high: HEIGHT - MARGIN.top - MARGIN.bottom };
    this.toX = (value) => MARGIN.left + ((value - lowX) / (highX - lowX)) * inner.wide;
    this.toY = (value) => MARGIN.top + (1 - (value - lowY) / (highY - lowY)) * inner.high;
    this.axes(width, inner, [lowX, highX], [lowY, highY, stepY]);
    for (const line of this.lines) this.line(line);
    this.cross = svg("line", { class: "cross", y1: MARGIN.top, y2: MARGIN.top + inner.high, visibility: "hidden" });
    this.svg.append(this.cross);
    this.places = [...new Set(all.map(([a]) => a))].sort((a, b) => a - b);
    this.show(this.place);
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
    const marks = ticks(...xs, distance(...xs, Math.max(2, Math.floor(inner.wide / 80)), this.x.binary));
    for (const value of marks.filter((each) => !this.x.whole || Number.isInteger(each))) {
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

  line({ points, at }) {
    let path = "";
    let pen = "M";
    const measured = points.filter(([, value]) => value !== null);
    for (const [a, b] of points) {
      if (b === null) continue; // a round that was not measured: the line goes on to the next that was
      path += `${pen}${this.toX(a).toFixed(1)} ${this.toY(b).toFixed(1)}`;
      pen = "L";
    }
    this.svg.append(svg("path", { class: `line s${at % 8}`, d: path || "M0 0" }));
    const dots = measured.length <= 30 ? measured : measured.slice(-1);
    for (const [a, b] of dots) {
      this.svg.append(svg("circle", { class: `dot s${at % 8}`, cx: this.toX(a), cy: this.toY(b), r: 2.5 }));
    }
  }

  /** What the picture shows, for whoever does not see it. */
  words() {
    const each = this.lines.map(({ name, points }) => {
      const known = points.filter(([, value]) => value !== null);
      const last = known.at(-1);
      return last ? `${name}: ${this.y.text(last[1])} at ${this.x.label} ${this.x.text(last[0])}` : `${name}: nothing`;
    });
    return `${this.title ?? this.y.label} by ${this.x.label}. ${each.join("; ")}. Left and right arrow keys read values.`;
  }

  point(clientX) {
    if (!this.places?.length) return;
    const box = this.svg.getBoundingClientRect();
    const at = clientX - box.left;
    const apart = (value) => Math.abs(this.toX(value) - at);
    this.show(this.places.reduce((best, value) => (apart(value) < apart(best) ? value : best)));
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!(event.key in steps) || !this.places?.length) return;
    event.preventDefault();
    const last = this.places.length - 1;
    const now = this.place === null ? (event.key === "ArrowRight" ? -1 : last + 1) : this.places.indexOf(this.place);
    this.show(this.places[Math.min(last, Math.max(0, now + steps[event.key]))]);
  }

  show(place) {
    this.place = place;
    if (!this.cross) return;
    const known = place !== null && this.places.includes(place);
    this.cross.setAttribute("visibility", known ? "visible" : "hidden");
    if (!known) {
      this.place = null;
      this.readout.replaceChildren();
      return;
    }
    this.cross.setAttribute("x1", this.toX(place));
    this.cross.setAttribute("x2", this.toX(place));
    const parts = [el("b", {}, `${this.x.label} ${this.x.text(place)}`)];
    for (const { name, at, points } of this.lines) {
      const found = points.find(([a, b]) => a === place && b !== null);
      if (found) parts.push(el("span", { className: `key s${at % 8}` }, `${name} ${this.y.text(found[1])}`));
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

/** A range whose ends are ticks, so that the topmost line has a number beside it. */
function rounded(low, high, { binary }) {
  const step = distance(low, high, 4, binary);
  return [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step, step];
}

/** Accuracies of clients, sorted: one bar each. */
export function bars(title, values) {
  const known = values.map((value, client) => [value, client]).filter(([value]) => value !== null);
  known.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
  const wide = 600;
  const step = wide / Math.max(1, known.length);
  const said = known.length
    ? `${title}: best ${(100 * known[0][0]).toFixed(1)} % (client ${known[0][1]}), ` +
      `worst ${(100 * known.at(-1)[0]).toFixed(1)} % (client ${known.at(-1)[1]}), ${known.length} clients`
    : `${title}: nothing measured yet`;
  const picture = svg("svg", { class: "bars", viewBox: `0 0 ${wide} 100`, preserveAspectRatio: "none", role: "img", "aria-label": said });
  known.forEach(([value, client], k) => {
    const bar = svg("rect", { x: k * step + step * 0.1, width: step * 0.8, y: 100 - 100 * value, height: 100 * value });
    bar.append(svg("title", {}, `client ${client}: ${(100 * value).toFixed(1)} %`));
    picture.append(bar);
  });
  return el("figure", {}, el("figcaption", {}, said), picture);
}
