// The panels next to the list: details of the opened run, and the comparison of selected runs.

import { Chart, bars } from "./chart.js";
import { badge, duration, el, percent, plain, size } from "./format.js";

const ROUND = { label: "round", text: String, integer: true };
const FRACTION = { text: (value) => `${Math.round(100 * value)} %`, low: 0 };
const cumulative = (rounds, key) => {
  let sum = 0;
  return rounds.map((round) => (sum += round[key] ?? 0));
};
const column = (rounds, key) => rounds.map((round) => [round.round, round[key]]);

/** Return the best value of a measure and its round, or null if it was never measured. */
function best(rounds, key, better = (a, b) => a > b) {
  return rounds.reduce((top, round) => {
    const value = round[key];
    return value !== null && (top === null || better(value, top.value)) ? { value, round: round.round } : top;
  }, null);
}

export class Detail {
  constructor({ close, stop }) {
    this.callbacks = { close, stop };
    this.element = document.querySelector("#detail");
    this.id = null;
  }

  open(id) {
    if (this.id === id) return;
    this.id = id;
    this.element.hidden = id === null;
    if (id === null) return;
    this.title = el("h2", { id: "detail-title", tabIndex: -1 }, id);
    const close = el("button", { type: "button", className: "close", "aria-label": "Close this run" }, "✕");
    close.addEventListener("click", () => this.callbacks.close());
    this.state = el("p", { className: "state" });
    this.stop = el("div", { className: "stop" });
    this.stopState = null; // null, confirm or sent
    this.facts = el("dl", { className: "facts" });
    this.charts = ["Accuracy", "Training loss", "Bytes per round", "Seconds per round"].map((name) => new Chart(name));
    this.clients = el("div", { className: "clients" });
    this.notes = el("ul", { className: "notes" });
    this.config = el("div");
    this.element.replaceChildren(
      el("div", { className: "heading" }, this.title, close),
      this.state,
      this.stop,
      this.facts,
      el("div", { className: "charts" }, ...this.charts.map((chart) => chart.element)),
      this.clients,
      el("details", { open: true }, el("summary", {}, "Events"), this.notes),
      el("details", {}, el("summary", {}, "Config"), this.config),
    );
  }

  show(run, history, config) {
    if (!run) {
      this.state.replaceChildren("This run is no longer in the folder.");
      this.stop.replaceChildren();
      return;
    }
    const rounds = history?.rounds ?? [];
    const named = run.name === run.id ? "" : `${run.name}, `;
    const parts = [badge(run.state), ` ${named}${run.method || "unknown method"} on ${run.data || "unknown data"}, seed ${run.seed ?? "–"}`];
    if (run.rounds) parts.push(el("progress", { max: run.rounds, value: run.done, "aria-label": "Rounds done" }));
    if (run.reason) parts.push(el("span", { className: "reason" }, run.reason));
    this.state.replaceChildren(...parts);
    this.showStop(run);
    this.showFacts(run, rounds);
    const [accuracy, loss, bytes, seconds] = this.charts;
    accuracy.set(
      [{ name: "personal", at: 0, points: column(rounds, "personal") }, { name: "global", at: 1, points: column(rounds, "global") }]
        .filter(({ points }) => !points.length || points.some(([, value]) => value !== null)),
      ROUND, { label: "accuracy", ...FRACTION },
    );
    loss.set([{ name: "loss", at: 0, points: column(rounds, "loss") }], ROUND, { label: "loss", text: plain });
    bytes.set(
      [{ name: "up", at: 0, points: column(rounds, "up") }, { name: "down", at: 1, points: column(rounds, "down") }],
      ROUND, { label: "bytes", text: size, low: 0, binary: true },
    );
    seconds.set([{ name: "seconds", at: 0, points: column(rounds, "seconds") }], ROUND, { label: "seconds", text: duration, low: 0 });
    this.showClients(history);
    this.showNotes(history?.notes ?? []);
    this.showConfig(config);
  }

  showFacts(run, rounds) {
    const last = rounds.at(-1);
    const facts = [["Round", run.rounds === null ? "–" : `${run.done} of ${run.rounds}`]];
    for (const key of ["personal", "global"]) {
      const top = best(rounds, key);
      const now = rounds.findLast((round) => round[key] !== null);
      if (top) facts.push([`Accuracy, ${key}`, `${percent(now[key])}, best ${percent(top.value)} in round ${top.round}`]);
    }
    if (last) {
      const each = rounds.reduce((sum, round) => sum + (round.seconds ?? 0), 0) / rounds.length;
      facts.push(
        ["Loss", plain(last.loss)],
        ["Bytes", `${size(cumulative(rounds, "up").at(-1))} up, ${size(cumulative(rounds, "down").at(-1))} down`],
        ["Time", `${duration(each)} per round` + (run.state === "running" ? `, about ${duration(each * (run.rounds - run.done))} left` : "")],
        ["Failures", String(cumulative(rounds, "failures").at(-1))],
      );
    }
    const items = facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
    this.facts.replaceChildren(...items);
  }

  /** Show the stop button. Stopping needs a confirmation: it cannot be undone from the page. */
  showStop(run) {
    const view = !run.stoppable ? "none" : this.stopState === "sent" ? "sent" : (this.stopState ?? "offer");
    if (this.stop.dataset.shown === view) return;
    this.stop.dataset.shown = view;
    const setState = (state) => {
      this.stopState = state;
      this.showStop(run);
    };
    const button = (label, action, className = "") => {
      const element = el("button", { type: "button", className }, label);
      element.addEventListener("click", action);
      return element;
    };
    if (view === "none") return this.stop.replaceChildren();
    if (view === "sent") return this.stop.replaceChildren(el("p", { role: "status" }, "Stop requested: the run stops after its current round and writes a checkpoint."));
    if (view === "offer") return this.stop.replaceChildren(button("Stop this run", () => { setState("confirm"); this.stop.querySelector("button").focus(); }));
    const send = async () => {
      const error = await this.callbacks.stop(run.id);
      setState(error ? null : "sent");
      if (error) this.stop.append(el("p", { role: "alert" }, error));
    };
    this.stop.replaceChildren("Stop after this round? ", button("Yes, stop", send, "strong"), " ", button("No", () => setState(null)));
  }

  showClients(history) {
    const text = JSON.stringify(history?.clients ?? {});
    if (this.clients.dataset.shown === text) return;
    this.clients.dataset.shown = text;
    const kinds = Object.entries(history?.clients ?? {}).filter(([, values]) => values.some((value) => value !== null));
    this.clients.replaceChildren(...kinds.map(([kind, values]) => bars(`Accuracy per client, ${kind}`, values)));
  }

  showNotes(notes) {
    const key = `${notes.length} ${notes.at(-1)?.time}`;
    if (this.notes.dataset.shown === key) return;
    this.notes.dataset.shown = key;
    const lines = notes.slice().reverse().map(({ time, text }) => {
      const when = time === null ? "" : new Date(1000 * time).toLocaleString();
      return el("li", {}, el("time", {}, when), ` ${text}`);
    });
    this.notes.replaceChildren(...(lines.length ? lines : [el("li", {}, "No events yet.")]));
  }

  showConfig(config) {
    if (!config || this.shownConfig === config) return;
    this.shownConfig = config;
    if (config.error !== undefined) return this.config.replaceChildren(el("p", {}, config.error));
    const rows = Object.entries(config.settings).map(([key, value]) => el("tr", {}, el("th", { scope: "row" }, key), el("td", {}, value)));
    this.config.replaceChildren(el("table", { className: "config" }, el("tbody", {}, ...rows)));
  }
}

const MEASURES = {
  personal: { label: "personal accuracy", ...FRACTION },
  global: { label: "global accuracy", ...FRACTION },
  loss: { label: "training loss", text: plain, lowerIsBetter: true },
};
const AGAINST = {
  round: { ...ROUND, at: (rounds) => rounds.map((round) => round.round) },
  bytes: {
    label: "bytes sent", text: size, low: 0, binary: true,
    at: (rounds) => {
      const down = cumulative(rounds, "down");
      return cumulative(rounds, "up").map((up, k) => up + down[k]);
    },
  },
  seconds: { label: "seconds", text: duration, low: 0, at: (rounds) => cumulative(rounds, "seconds") },
};

export class Overlay {
  constructor({ drop }) {
    this.callbacks = { drop };
    this.element = document.querySelector("#overlay");
    this.chart = new Chart(null);
    this.measure = picker("Measure", Object.entries(MEASURES).map(([key, { label }]) => [key, label]));
    this.against = picker("Against", Object.entries(AGAINST).map(([key, { label }]) => [key, label]));
    this.legend = el("tbody");
    this.one = picker("Config of", []);
    this.other = picker("against", []);
    this.table = el("div", { className: "scroll" });
    this.difference = el("div", { id: "difference" }, el("h3", {}, "Config difference"), el("div", { className: "tools" }, this.one.label, this.other.label), this.table);
    this.element.append(
      el("h2", { id: "overlay-title" }, "Selected runs"),
      el("div", { className: "tools" }, this.measure.label, this.against.label),
      this.chart.element,
      el("div", { className: "scroll" }, el("table", { className: "legend" },
        el("thead", {}, el("tr", {}, ...["Run", "Method", "Last", "Best", "Round"].map((name, k) => el("th", { scope: "col", className: k > 1 ? "right" : "" }, name)), el("th", { scope: "col" }, el("span", { className: "visually-hidden" }, "Remove")))),
        this.legend)),
      this.difference,
    );
    for (const { select } of [this.measure, this.against, this.one, this.other]) select.addEventListener("change", () => this.redraw?.());
  }

  /** `selected` maps ids to colours, `runs` and `histories` are by id, `configs(id)` returns a config or undefined. */
  show(selected, runs, histories, configs) {
    this.redraw = () => this.show(selected, runs, histories, configs);
    this.element.hidden = selected.size === 0;
    if (!selected.size) return;
    const key = this.measure.select.value;
    const measure = MEASURES[key];
    const against = AGAINST[this.against.select.value];
    const lines = [...selected].map(([id, at]) => {
      const rounds = histories.get(id)?.rounds ?? [];
      const places = against.at(rounds);
      return { name: id, at, rounds, points: rounds.map((round, k) => [places[k], round[key]]) };
    });
    this.chart.set(lines.map(({ name, at, points }) => ({ name, at, points })), against, measure);
    this.showLegend(lines, key, measure, runs);
    this.showDifference([...selected.keys()], configs);
  }

  showLegend(lines, key, measure, runs) {
    const better = measure.lowerIsBetter ? (a, b) => a < b : (a, b) => a > b;
    const text = key === "loss" ? plain : percent;
    const tops = lines.map(({ rounds }) => best(rounds, key, better));
    const winner = tops.reduce((best, one) => (one && (best === null || better(one.value, best)) ? one.value : best), null);
    const shown = JSON.stringify([key, lines.map(({ name, at, rounds }) => [name, at, rounds.length, runs.get(name)?.method])]);
    if (shown === this.shown) return;
    this.shown = shown;
    this.legend.replaceChildren(...lines.map(({ name, at, rounds }, k) => {
      const drop = el("button", { type: "button", "aria-label": `Remove ${name}` }, "✕");
      drop.addEventListener("click", () => this.callbacks.drop(name));
      const last = rounds.findLast((round) => round[key] !== null);
      const wins = tops[k] && tops[k].value === winner;
      return el("tr", {},
        el("th", { scope: "row" }, el("span", { className: `key s${at % 8}` }, name)),
        el("td", {}, runs.get(name)?.method ?? "–"),
        el("td", { className: "right" }, last ? text(last[key]) : "–"),
        el("td", { className: "right" }, wins ? el("strong", {}, `${text(tops[k].value)} ★`) : (tops[k] ? text(tops[k].value) : "–")),
        el("td", { className: "right" }, tops[k] ? String(tops[k].round) : "–"),
        el("td", {}, drop));
    }));
  }

  showDifference(ids, configs) {
    this.difference.hidden = ids.length < 2;
    if (ids.length < 2) return;
    refill(this.one.select, ids, ids[0]);
    refill(this.other.select, ids, ids.find((id) => id !== this.one.select.value));
    const [first, second] = [this.one.select.value, this.other.select.value];
    const both = [configs(first), configs(second)];
    if (!both.every(Boolean)) return this.table.replaceChildren("Reading…");
    const failed = both.find((config) => config.error !== undefined);
    if (failed) return this.table.replaceChildren(el("p", { role: "alert" }, failed.error));
    const [a, b] = both.map((config) => config.settings);
    const keys = [...new Set([...Object.keys(a), ...Object.keys(b)])].filter((key) => a[key] !== b[key]);
    if (!keys.length) return this.table.replaceChildren(el("p", {}, "The configs are equal."));
    const head = el("thead", {}, el("tr", {}, ...["Key", first, second].map((name) => el("th", { scope: "col" }, name))));
    const rows = keys.map((key) => el("tr", {}, el("th", { scope: "row" }, key), el("td", {}, a[key] ?? "(none)"), el("td", {}, b[key] ?? "(none)")));
    this.table.replaceChildren(el("table", { className: "config" }, head, el("tbody", {}, ...rows)));
  }
}

function picker(name, options) {
  const select = el("select");
  select.append(...options.map(([value, label]) => el("option", { value }, label)));
  return { select, label: el("label", {}, `${name} `, select) };
}

/** Replace the options of a select. The current option stays selected if it still exists. */
function refill(select, ids, otherwise) {
  const now = [...select.options].map((option) => option.value);
  if (JSON.stringify(now) === JSON.stringify(ids)) return;
  const before = select.value;
  select.replaceChildren(...ids.map((id) => el("option", { value: id }, id)));
  select.value = ids.includes(before) ? before : otherwise;
}
