// The views of one run. Each has an element, and `show` updates it from what the page knows about the run.

import { Chart } from "./chart.js";
import { breakable, button, duration, el, percent, picker, plain, refill, scrollable, size, svg, table, whole } from "./format.js";
import { spread } from "./groups.js";

const ROUND = { label: "round", text: String, integer: true };
const FRACTION = { label: "accuracy", text: (value) => `${Math.round(100 * value)} %`, precise: percent, low: 0 };
const MAX_ROWS = 500; // of a table
const MAX_CLASSES = 200; // columns of the partition
const MAX_COLOURS = 12;
const column = (rounds, key) => rounds.map((round) => [round.round, round[key]]);
const measured = (points) => points.some(([, value]) => value !== null && value !== undefined);

/** A view that is drawn again only if its data changed. */
class View {
  constructor() {
    this.element = el("div", { className: "view" });
  }

  show(known) {
    const data = this.data(known);
    const text = JSON.stringify(data);
    if (text === this.shown) return;
    this.shown = text;
    this.draw(data);
  }

  /** Show a sentence instead of data. */
  say(...words) {
    this.element.replaceChildren(el("p", { className: "empty" }, ...words));
  }
}

/** A view of the details that the server reads on demand. */
class DetailsView extends View {
  data({ details, ...known }) {
    return details === undefined || details.error !== undefined ? { details } : this.select(details, known);
  }

  draw(data) {
    if ("details" in data) return data.details === undefined ? this.say("Reading…") : this.say(data.details.error);
    return this.render(data);
  }
}

export class OverviewView {
  constructor() {
    this.charts = ["Accuracy", "Training loss"].map((name) => new Chart(name));
    this.element = el("div", { className: "charts" }, ...this.charts.map((chart) => chart.element));
  }

  show({ run, rounds }) {
    const colour = run.colour;
    const accuracies = ["global", "personal"].map((name, dashes) => ({ name, colour, dashes, points: column(rounds, name) }));
    this.charts[0].set(accuracies.filter(({ points }) => !points.length || measured(points)), ROUND, FRACTION);
    this.charts[1].set([{ name: "loss", colour, dashes: 0, points: column(rounds, "loss") }], ROUND, { label: "loss", text: plain, low: 0 });
  }
}

export class CostView {
  constructor() {
    this.charts = ["Bytes per round", "Seconds per round"].map((name) => new Chart(name));
    this.fields = scrollable("Bytes by field");
    this.element = el("div", {}, el("div", { className: "charts" }, ...this.charts.map((chart) => chart.element)), el("h3", {}, "Bytes by field"), this.fields);
  }

  show({ run, rounds, history }) {
    const { colour } = run;
    const ways = ["up", "down"].map((key, dashes) => ({ name: key === "up" ? "uploads" : "downloads", colour, dashes, points: column(rounds, key) }));
    this.charts[0].set(ways, ROUND, { label: "bytes", text: size, low: 0, binary: true });
    const parts = ["seconds", "train", "evaluate", "server"].map((key, dashes) => ({ name: key === "seconds" ? "total" : key, colour, dashes, points: column(rounds, key) }));
    this.charts[1].set(parts.filter(({ name, points }) => name === "total" || measured(points)), ROUND, { label: "seconds", text: duration, low: 0 });
    const shown = JSON.stringify(history?.fields ?? null);
    if (this.fields.dataset.shown === shown) return;
    this.fields.dataset.shown = shown;
    const { up = {}, down = {}, overhead = {} } = history?.fields ?? {};
    const rows = [...new Set([...Object.keys(up), ...Object.keys(down)])].map((name) => [name, up[name] ?? 0, down[name] ?? 0]);
    rows.sort((a, b) => b[1] + b[2] - a[1] - a[2]);
    const all = [...rows, ["message encoding", overhead.up ?? 0, overhead.down ?? 0]];
    const total = all.reduce((sum, row) => [sum[0] + row[1], sum[1] + row[2]], [0, 0]);
    const columns = [{ label: "Field" }, ...["Uploads", "Downloads"].map((label) => ({ label, right: true }))];
    const text = ([name, ...sizes]) => [el("span", {}, ...breakable(name)), ...sizes.map(size)];
    this.fields.replaceChildren(table(columns, [...all, ["total", ...total]].map(text), { className: "totals" }));
  }
}

const SORTS = { client: "client", samples: "training samples", global: "global accuracy", personal: "personal accuracy" };

export class ClientsView extends View {
  constructor() {
    super();
    this.sort = picker("Sort by", Object.entries(SORTS));
    this.sort.select.addEventListener("change", () => this.draw(this.latest));
  }

  data({ run, history, details }) {
    const known = details?.clients ?? [];
    const accuracy = history?.clients ?? {};
    const count = Math.max(known.length, ...Object.values(accuracy).map((values) => values.length), 0);
    const rows = [...Array(count).keys()].map((k) => ({
      order: k,
      name: known[k]?.name ?? `client ${k}`,
      model: known[k]?.model ?? "–",
      parameters: known[k]?.parameters ?? null,
      samples: known[k] ? Object.values(known[k].train).reduce((a, b) => a + b, 0) : null,
      global: accuracy.global?.[k] ?? null,
      personal: accuracy.personal?.[k] ?? null,
    }));
    return { colour: run.colour, rows };
  }

  draw(data) {
    this.latest = data;
    const { rows, colour } = data;
    if (!rows.length) return this.say("There is no data about clients yet.");
    const key = this.sort.select.value;
    const value = (row) => row[key] ?? -1;
    const sorted = key === "client" ? rows : [...rows].sort((a, b) => value(b) - value(a) || a.order - b.order);
    const columns = [{ label: "Client" }, { label: "Model" }, { label: "Parameters", right: true }, { label: "Samples", right: true }, { label: "Global" }, { label: "Personal" }];
    const lines = sorted.slice(0, MAX_ROWS).map((row) => [
      el("span", {}, ...breakable(row.name)), el("span", {}, ...breakable(row.model)), whole(row.parameters), whole(row.samples), bar(row.global, colour), bar(row.personal, colour),
    ]);
    this.element.replaceChildren(
      el("p", { className: "summary" }, ["global", "personal"].map((kind) => summary(rows, kind)).filter(Boolean).join(" ")),
      el("div", { className: "tools" }, this.sort.label),
      scrollable("Clients", table(columns, lines, { className: "clients" })),
      ...more(sorted.length, "clients"),
    );
  }
}

function summary(rows, kind) {
  const known = rows.filter((row) => row[kind] !== null).sort((a, b) => b[kind] - a[kind]);
  if (!known.length) return "";
  const { std } = spread(known.map((row) => row[kind]));
  const text = `${kind === "global" ? "Global" : "Personal"} accuracy: best ${percent(known[0][kind])} (${known[0].name}), worst ${percent(known.at(-1)[kind])} (${known.at(-1).name})`;
  return std === null ? `${text}.` : `${text}, standard deviation ${(100 * std).toFixed(1)} points.`;
}

function bar(value, colour) {
  if (value === null) return "–";
  const fill = el("span", { className: `fill c${colour}` });
  fill.style.setProperty("width", `${100 * value}%`);
  return el("span", { className: "bar" }, el("span", { className: "track", "aria-hidden": "true" }, fill), percent(value));
}

const more = (count, what) => (count > MAX_ROWS ? [el("p", { className: "hint" }, `The first ${MAX_ROWS} of ${count} ${what} are shown.`)] : []);

export class PartitionView extends DetailsView {
  select({ clients, class_names: names }) {
    return { clients: clients.slice(0, MAX_ROWS), names, count: clients.length };
  }

  render({ clients, names, count }) {
    if (!clients.length) return this.say("This run folder does not record the data partition.");
    const labels = [...new Set([...names.keys(), ...clients.flatMap(({ train }) => Object.keys(train).map(Number))])].sort((a, b) => a - b);
    const shown = labels.slice(0, MAX_CLASSES);
    const most = Math.max(1, ...clients.flatMap(({ train }) => Object.values(train)));
    const head = ["Client", ...shown.map((label) => names[label] ?? String(label)), "Sum"];
    const rows = clients.map(({ name, train }) => el("tr", {},
      el("th", { scope: "row" }, ...breakable(name)),
      ...shown.map((label) => {
        const value = train[label] ?? 0;
        return el("td", { className: `heat h${value ? Math.ceil((5 * value) / most) : 0}` }, value ? String(value) : "");
      }),
      el("td", { className: "right" }, whole(Object.values(train).reduce((a, b) => a + b, 0)))));
    this.element.replaceChildren(
      el("p", { className: "summary" }, `Training samples by client and class. The strongest colour stands for ${whole(most)} samples.`),
      scrollable("Data partition", el("table", { className: "partition" },
        el("thead", {}, el("tr", {}, ...head.map((name, k) => el("th", { scope: "col", className: k ? "right" : "" }, name)))),
        el("tbody", {}, ...rows))),
      ...more(count, "clients"),
    );
  }
}

export class UploadsView extends DetailsView {
  select({ uploads, upload_clients: clients, privacy }) {
    return { uploads, clients, privacy };
  }

  render({ uploads, clients, privacy }) {
    if (!uploads.length) return this.say("No client has uploaded anything yet.");
    const fields = [{ label: "Field" }, { label: "Step" }, { label: "Shape" }, { label: "Messages", right: true }, { label: "Bytes", right: true }, { label: "Differential privacy" }];
    const rows = uploads.map((one) => [el("span", {}, ...breakable(one.name)), one.step, one.shape || "–", whole(one.messages), size(one.bytes), one.protection ?? "none"]);
    const most = Math.max(1, ...clients.map(({ bytes }) => bytes));
    const columns = [{ label: "Client" }, { label: "Fields" }, { label: "Messages", right: true }, { label: "Bytes" }];
    const lines = clients.slice(0, MAX_ROWS).map((one) => {
      const fill = el("span", { className: "fill" });
      fill.style.setProperty("width", `${(100 * one.bytes) / most}%`);
      return [el("span", {}, ...breakable(one.name)), one.fields.join(", "), whole(one.messages), el("span", { className: "bar" }, el("span", { className: "track", "aria-hidden": "true" }, fill), size(one.bytes))];
    });
    this.element.replaceChildren(
      el("p", { className: "summary" }, "Everything that clients sent to the server, without the message encoding."),
      scrollable("Uploads by field", table(fields, rows)),
      ...privacy.map((sentence) => el("p", { className: "summary" }, sentence)),
      el("h3", {}, "By client"),
      scrollable("Uploads by client", table(columns, lines, { className: "clients" })),
      ...more(clients.length, "clients"),
    );
  }
}

export class EmbeddingView extends DetailsView {
  constructor({ embedding }) {
    super();
    this.fetch = embedding;
    this.round = picker("Round", []);
    this.projection = picker("Projection", [["pca", "PCA"], ["tsne", "t-SNE"]]);
    this.colours = picker("Colours", [["classes", "class"], ["clients", "client"]]);
    this.highlighted = null;
    this.plot = svg("svg", { class: "scatter", viewBox: "0 0 400 400", role: "img", "aria-label": "Scatter plot" });
    this.keys = el("div", { className: "keys", role: "group", "aria-label": "Highlight" });
    this.note = el("p", { className: "summary", role: "status" });
    this.content = el("div", {}, el("div", { className: "tools" }, this.round.label, this.projection.label, this.colours.label), this.note, this.keys, this.plot);
    for (const { select } of [this.round, this.projection]) select.addEventListener("change", () => this.load());
    this.colours.select.addEventListener("change", () => {
      this.highlighted = null;
      this.plotPoints();
    });
  }

  select({ features, class_names: classes, clients }) {
    return { features, classes, names: clients.map(({ name }) => name) };
  }

  render({ features, classes, names }) {
    if (!features.length) return this.say("This run recorded no features. Set ", el("code", {}, "evaluate.features=true"), " to record features of test samples.");
    Object.assign(this, { classes, names });
    const newest = this.round.select.value === this.round.select.options[this.round.select.options.length - 1]?.value;
    refill(this.round.select, features.slice().reverse().map((round) => [String(round), String(round)]), String(features.at(-1)));
    if (newest) this.round.select.value = String(features.at(-1));
    if (!this.content.isConnected) this.element.replaceChildren(this.content);
    this.load();
  }

  async load() {
    const wanted = `${this.round.select.value} ${this.projection.select.value}`;
    if (this.loaded === wanted) return;
    this.loaded = wanted;
    this.note.textContent = "Computing…";
    const answer = await this.fetch(this.round.select.value, this.projection.select.value);
    if (this.loaded !== wanted) return; // the user has chosen another one meanwhile
    if (answer.error) {
      this.note.textContent = answer.error;
      this.plot.replaceChildren();
      this.keys.replaceChildren();
      return;
    }
    this.points = answer.points;
    this.plotPoints();
  }

  plotPoints() {
    if (!this.points) return;
    const at = this.colours.select.value === "classes" ? 3 : 2; // a point is [x, y, client, class]
    const name = (kind, value) => (kind === 3 ? (this.classes[value] ?? `class ${value}`) : (this.names[value] ?? `client ${value}`));
    const values = [...new Set(this.points.map((point) => point[at]))].sort((a, b) => a - b);
    const style = (value) => values.indexOf(value) % MAX_COLOURS;
    const clients = new Set(this.points.map((point) => point[2])).size;
    this.note.textContent = `${this.points.length} features of test samples from ${clients} clients. Clients with different models may place a class differently.`;
    this.plot.setAttribute("aria-label", `Scatter plot: ${this.note.textContent}`);
    this.plot.replaceChildren(...this.points.map((point) => {
      const off = this.highlighted !== null && point[at] !== this.highlighted;
      const dot = svg("circle", { class: `dot c${style(point[at])}${off ? " off" : ""}`, cx: 10 + 380 * point[0], cy: 390 - 380 * point[1], r: 3.5 });
      dot.append(svg("title", {}, `${name(2, point[2])}, class ${name(3, point[3])}`));
      return dot;
    }));
    this.keys.replaceChildren(...values.map((value) => {
      const dot = svg("svg", { viewBox: "0 0 10 10", width: 10, height: 10, "aria-hidden": "true" }, svg("circle", { class: `dot c${style(value)}`, cx: 5, cy: 5, r: 4.5 }));
      const toggle = () => {
        this.highlighted = this.highlighted === value ? null : value;
        this.plotPoints();
        this.keys.children[values.indexOf(value)].focus();
      };
      const key = button(dot, toggle, { "aria-pressed": String(this.highlighted === value) });
      key.append(` ${name(at, value)}`);
      return key;
    }));
  }
}

const METRICS = {
  worst_decile: "accuracy of worst 10 % of clients", balanced_accuracy: "balanced accuracy", macro_f1: "macro F1", auroc: "AUROC",
  log_loss: "log loss", calibration_error: "calibration error", client_mean: "accuracy, plain mean over clients",
};
const metricText = (name) => (["log_loss", "calibration_error"].includes(name) ? plain : percent);

export class MetricsView extends DetailsView {
  constructor() {
    super();
    this.metric = picker("Metric", []);
    this.matrix = picker("Test set", []);
    this.chart = new Chart("");
    this.values = scrollable("Metrics by client");
    this.confusion = el("div");
    this.content = el("div", {}, el("div", { className: "tools" }, this.metric.label), this.chart.element, this.values, this.confusion);
    for (const { select } of [this.metric, this.matrix]) select.addEventListener("change", () => this.render(this.latest));
  }

  select({ metrics, clients, class_names: classes }, { run, rounds }) {
    return { metrics, classes, names: clients.map(({ name }) => name), colour: run.colour, rounds: rounds.map((each) => [each.round, each.metrics ?? {}]) };
  }

  render(data) {
    this.latest = data;
    const { kinds, confusion, round } = data.metrics;
    const names = [...new Set(Object.values(kinds).flatMap((by) => Object.keys(by)))];
    if (!names.length) return this.say("This run recorded no metrics. Set ", el("code", {}, "evaluate.metrics"), " to measure more than accuracy, such as macro F1 or AUROC.");
    if (!this.content.isConnected) this.element.replaceChildren(this.content);
    refill(this.metric.select, names.map((name) => [name, METRICS[name] ?? name]), names[0]);
    const name = this.metric.select.value;
    const text = metricText(name);
    const lines = Object.keys(kinds).filter((kind) => name in kinds[kind]).map((kind, k) => ({
      name: kind, colour: data.colour, dashes: k % 5, points: data.rounds.map(([number, by]) => [number, by[kind]?.[name] ?? null]),
    }));
    this.chart.title = METRICS[name] ?? name;
    this.chart.title = this.chart.title[0].toUpperCase() + this.chart.title.slice(1);
    this.chart.set(lines, ROUND, { label: name, text: text === percent ? FRACTION.text : text, precise: text, low: 0 });
    this.showClients(data, lines.map((line) => line.name), name, text, round);
    this.showConfusion(confusion, data.classes);
  }

  showClients({ metrics, names }, kinds, name, text, round) {
    const values = kinds.map((kind) => metrics.kinds[kind][name]);
    const count = Math.min(MAX_ROWS, Math.max(0, ...values.map((one) => one.by_client.length)));
    const columns = [{ label: "Client" }, ...kinds.map((label) => ({ label, right: true }))];
    const rows = [...Array(count).keys()].map((k) => [names[k] ?? `client ${k}`, ...values.map((one) => text(one.by_client[k] ?? null))]);
    const all = count ? `mean, round ${round}` : `round ${round}`;
    this.values.replaceChildren(table(columns, [...rows, [all, ...values.map((one) => text(one.value))]], { className: count ? "totals" : "" }));
  }

  showConfusion(confusion, classes) {
    const kinds = Object.keys(confusion).filter((kind) => confusion[kind].length);
    refill(this.matrix.select, kinds.map((kind) => [kind, kind]), kinds[0]);
    if (!kinds.length) return this.confusion.replaceChildren();
    const rows = confusion[this.matrix.select.value].slice(0, MAX_CLASSES);
    const name = (k) => classes[k] ?? String(k);
    const cells = (row) => {
      const sum = Math.max(1, row.reduce((a, b) => a + b, 0));
      return row.slice(0, MAX_CLASSES).map((count) => el("td", { className: `heat h${count ? Math.ceil((5 * count) / sum) : 0}` }, count ? String(count) : ""));
    };
    this.confusion.replaceChildren(
      el("h3", {}, "Confusion matrix"),
      el("p", { className: "summary" }, "Test samples of all clients, by true class (rows) and predicted class (columns)."),
      el("div", { className: "tools" }, this.matrix.label),
      scrollable("Confusion matrix", el("table", { className: "partition" },
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Class"), ...rows.map((_, k) => el("th", { scope: "col", className: "right" }, name(k))))),
        el("tbody", {}, ...rows.map((row, k) => el("tr", {}, el("th", { scope: "row" }, name(k)), ...cells(row)))))),
    );
  }
}

export class EventsView extends View {
  data({ history }) {
    return history?.notes ?? [];
  }

  draw(notes) {
    if (!notes.length) return this.say("No events yet.");
    const lines = notes.slice().reverse().map(({ time, text }) => {
      const when = time === null ? "" : new Date(1000 * time).toLocaleString();
      return el("li", {}, el("time", {}, when), ` ${text}`);
    });
    this.element.replaceChildren(el("ul", { className: "notes" }, ...lines));
  }
}

export class ConfigView extends View {
  data({ config }) {
    return config ?? null;
  }

  draw(config) {
    if (config === null) return this.say("Reading…");
    if (config.error !== undefined) return this.say(config.error);
    const rows = Object.entries(config.settings).map(([key, value]) => [el("span", {}, ...breakable(key)), el("span", {}, ...breakable(value))]);
    this.element.replaceChildren(scrollable("Config", table([{ label: "Key" }, { label: "Value" }], rows, { className: "config" })));
  }
}
