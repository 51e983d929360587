// The comparison of selected runs: by method with mean and standard deviation over seeds, or run by run.

import { Chart } from "./chart.js";
import { breakable, button, duration, el, lineKey, percent, picker, plain, refill, scrollable, size, table } from "./format.js";
import { gain, groupRuns, meanCurve, spread } from "./groups.js";

const ACCURACY = { text: (value) => `${Math.round(100 * value)} %`, precise: percent, low: 0, bounds: [0, 1] };
const MEASURES = {
  global: { label: "global accuracy", ...ACCURACY },
  personal: { label: "personal accuracy", ...ACCURACY },
  loss: { label: "training loss", text: plain, low: 0, bounds: [0, Infinity], lowerIsBetter: true },
};
export const cumulative = (rounds, key) => {
  let sum = 0;
  return rounds.map((round) => (sum += round[key] ?? 0));
};
const AGAINST = {
  round: { label: "round", text: (value) => plain(value), integer: true, at: (rounds) => rounds.map((round) => round.round) },
  bytes: {
    label: "bytes sent", text: size, low: 0, binary: true,
    at: (rounds) => {
      const down = cumulative(rounds, "down");
      return cumulative(rounds, "up").map((up, k) => up + down[k]);
    },
  },
  seconds: { label: "seconds", text: duration, low: 0, at: (rounds) => cumulative(rounds, "seconds") },
};
const last = (rounds, key) => rounds.findLast((round) => round[key] !== null)?.[key] ?? null;
const options = (entries) => Object.entries(entries).map(([key, { label }]) => [key, label]);

/** Return the best value of a measure and its round, or null if it was never measured. */
export function best(rounds, key, lower = false) {
  return rounds.reduce((top, round) => {
    const value = round[key];
    return value !== null && (top === null || (lower ? value < top.value : value > top.value)) ? { value, round: round.round } : top;
  }, null);
}

export class Comparison {
  /** `drop(ids)` is called when the user removes runs, `clear()` when they close the comparison. */
  constructor({ drop, clear }) {
    this.callbacks = { drop };
    this.element = document.querySelector("#comparison");
    this.chart = new Chart("", { legend: false }); // the table of methods is its legend
    this.measure = picker("Measure", options(MEASURES));
    this.against = picker("Against", options(AGAINST));
    this.lines = picker("Lines", [["mean", "mean over seeds"], ["runs", "each run"]]);
    this.baseline = picker("Gain over", []);
    this.one = picker("Config of", []);
    this.other = picker("against", []);
    this.methods = scrollable("Methods");
    this.runs = scrollable("Selected runs");
    this.runsTitle = el("summary");
    this.settings = scrollable("Config difference");
    this.difference = el("details", { id: "difference" }, el("summary", {}, "Config difference"), el("div", { className: "tools" }, this.one.label, this.other.label), this.settings);
    const close = button("✕", clear, { className: "close", "aria-label": "Clear the selection" });
    this.element.append(
      el("div", { className: "heading" }, el("h2", { id: "comparison-title" }, "Comparison"), close),
      el("div", { className: "tools" }, this.measure.label, this.against.label, this.lines.label, this.baseline.label),
      this.chart.element,
      this.methods,
      el("details", {}, this.runsTitle, this.runs),
      this.difference,
    );
    this.baseline.select.addEventListener("change", () => (this.chosen = true));
    for (const { select } of [this.measure, this.against, this.lines, this.baseline, this.one, this.other]) select.addEventListener("change", () => this.redraw?.());
  }

  /** `selected` is a set of ids, `runs` and `histories` are by id, `configs(id)` returns a config or undefined. */
  show(selected, runs, histories, configs) {
    this.redraw = () => this.show(selected, runs, histories, configs);
    this.element.hidden = selected.size === 0;
    if (!selected.size) return;
    const key = this.measure.select.value;
    const rounds = (id) => histories.get(id)?.rounds ?? [];
    const groups = groupRuns(selected, runs, configs).map((group) => ({ ...group, rounds: group.ids.map(rounds) }));
    const local = groups.find(({ method }) => method === "local")?.name ?? "";
    refill(this.baseline.select, [["", "none"], ...groups.map(({ name }) => [name, name])], local);
    if (!this.chosen) this.baseline.select.value = local;
    this.baseline.label.hidden = groups.length < 2;
    this.showChart(groups, key, runs);
    const seed = (id) => runs.get(id)?.seed ?? null;
    this.showMethods(groups, key, seed);
    this.showRuns(groups, key, seed, rounds);
    this.showDifference([...selected], configs);
  }

  showChart(groups, key) {
    const measure = MEASURES[key];
    const against = AGAINST[this.against.select.value];
    const each = this.lines.select.value === "runs";
    const lines = groups.flatMap(({ name, ids, colour, dashes, rounds }) => (
      each
        ? ids.map((id, k) => ({ name: id, colour, dashes, thin: true, points: against.at(rounds[k]).map((x, n) => [x, rounds[k][n][key]]) }))
        : [{ name, colour, dashes, points: meanCurve(rounds, key, against.at) }]));
    this.chart.title = each || groups.every(({ ids }) => ids.length < 2) ? capital(measure.label) : `${capital(measure.label)}, mean ± standard deviation over seeds`;
    this.chart.set(lines, against, measure);
  }

  showMethods(groups, key, seed) {
    const { lowerIsBetter } = MEASURES[key];
    const text = key === "loss" ? plain : percent;
    const finals = groups.map(({ ids, rounds }) => new Map(ids.map((id, k) => [seed(id) ?? id, last(rounds[k], key)])));
    const base = finals[groups.findIndex(({ name }) => name === this.baseline.select.value)];
    const rows = groups.map((group, k) => ({
      group,
      last: spread([...finals[k].values()]),
      gain: base && base !== finals[k] ? gain(finals[k], base) : null,
      bytes: spread(group.rounds.map((rounds) => AGAINST.bytes.at(rounds).at(-1))),
      seconds: spread(group.rounds.map((rounds) => cumulative(rounds, "seconds").at(-1))),
    }));
    const means = rows.flatMap(({ last: one }) => (one ? [one.mean] : []));
    const winner = lowerIsBetter ? Math.min(...means) : Math.max(...means);
    const show = (one, format) => (one === null ? "–" : one.std === null ? format(one.mean) : `${format(one.mean).replace(/ %$/, "")} ± ${format(one.std)}`);
    const points = (one) => `${one.mean > 0 ? "+" : one.mean < 0 ? "−" : ""}${key === "loss" ? plain(Math.abs(one.mean)) : (100 * Math.abs(one.mean)).toFixed(1)}`;
    const columns = ["Method", "Seeds", "Last", ...(base ? ["Gain"] : []), "Bytes", "Time"].map((label, k) => ({ label, right: k > 0 }));
    fill(this.methods, rows.map(({ group, ...row }) => [
      { key: group.name, word: group.method.length, colour: group.colour, dashes: group.dashes },
      String(group.ids.length),
      { strong: row.last?.mean === winner && rows.length > 1, text: show(row.last, text) },
      ...(base ? [row.gain ? points(row.gain) : group.name === this.baseline.select.value ? "baseline" : "–"] : []),
      row.bytes ? size(row.bytes.mean) : "–", row.seconds ? duration(row.seconds.mean) : "–",
    ]), columns, "methods");
  }

  showRuns(groups, key, seed, rounds) {
    const { lowerIsBetter } = MEASURES[key];
    const text = key === "loss" ? plain : percent;
    const rows = groups.flatMap(({ ids, colour, dashes }) => ids.map((id) => {
      const top = best(rounds(id), key, lowerIsBetter);
      return [{ key: id, colour, dashes }, String(seed(id) ?? "–"), text(last(rounds(id), key)), top ? text(top.value) : "–", top ? String(top.round) : "–", { drop: id }];
    }));
    this.runsTitle.textContent = `Selected runs (${rows.length})`;
    const columns = [{ label: "Run" }, ...["Seed", "Last", "Best", "In round"].map((label) => ({ label, right: true })), { label: el("span", { className: "visually-hidden" }, "Remove") }];
    fill(this.runs, rows, columns, "legend", (id) => this.callbacks.drop([id]));
  }

  showDifference(ids, configs) {
    this.difference.hidden = ids.length < 2;
    if (ids.length < 2) return;
    refill(this.one.select, ids.map((id) => [id, id]), ids[0]);
    refill(this.other.select, ids.map((id) => [id, id]), ids.find((id) => id !== this.one.select.value));
    const [first, second] = [this.one.select.value, this.other.select.value];
    const both = [configs(first), configs(second)];
    if (!both.every(Boolean)) return this.settings.replaceChildren("Reading…");
    const failed = both.find((config) => config.error !== undefined);
    if (failed) return this.settings.replaceChildren(el("p", { role: "alert" }, failed.error));
    const [a, b] = both.map((config) => config.settings);
    const keys = [...new Set([...Object.keys(a), ...Object.keys(b)])].filter((key) => a[key] !== b[key]);
    if (!keys.length) return this.settings.replaceChildren(el("p", {}, "The configs are equal."));
    const columns = [{ label: "Key" }, ...[first, second].map((name) => ({ label: el("span", {}, ...breakable(name)) }))];
    fill(this.settings, keys.map((key) => [key, a[key] ?? "(none)", b[key] ?? "(none)"]), columns, "config");
  }
}

/** Replace a table if its content changed. Cells are text, or {key}, {strong, text} or {drop}. `word` letters of a key stay on one line. */
function fill(place, rows, columns, className, drop) {
  const shown = JSON.stringify([rows, columns.map(({ label }) => label.textContent ?? label)]);
  if (place.dataset.shown === shown) return;
  place.dataset.shown = shown;
  const node = (cell) => {
    if (typeof cell === "string") return el("span", {}, ...breakable(cell));
    if (cell.key !== undefined) return lineKey([el("span", { className: "word" }, cell.key.slice(0, cell.word ?? 0)), ...breakable(cell.key.slice(cell.word ?? 0))], cell);
    if (cell.drop !== undefined) return button("✕", () => drop(cell.drop), { "aria-label": `Remove ${cell.drop}` });
    return cell.strong ? el("strong", {}, cell.text, el("span", { title: "best" }, " ★")) : cell.text;
  };
  place.replaceChildren(table(columns, rows.map((cells) => cells.map(node)), { className }));
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);
