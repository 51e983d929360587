// The panel of the opened run: its state, the button to stop it, and its views as tabs.

import { best } from "./compare.js";
import { badge, breakable, button, duration, el, percent, size } from "./format.js";
import { ClientsView, ConfigView, CostView, EmbeddingView, EventsView, MetricsView, OverviewView, PartitionView, UploadsView } from "./views.js";

const VIEWS = {
  overview: ["Overview", OverviewView],
  clients: ["Clients", ClientsView],
  partition: ["Partition", PartitionView],
  cost: ["Cost", CostView],
  uploads: ["Uploads", UploadsView],
  embedding: ["Features", EmbeddingView],
  metrics: ["Metrics", MetricsView],
  events: ["Events", EventsView],
  config: ["Config", ConfigView],
};
export class Detail {
  /** `stop(id)` requests a stop and returns an answer with an `error` if it failed; `embedding` fetches a projection. */
  constructor({ close, stop, select, embedding, stoppable }) {
    this.callbacks = { close, stop, select, embedding, stoppable };
    this.element = document.querySelector("#detail");
    this.id = null;
    this.view = "overview";
  }

  open(id, view) {
    this.view = view in VIEWS ? view : "overview";
    if (this.id === id) return this.switch();
    this.id = id;
    this.element.hidden = id === null;
    if (id === null) return this.element.replaceChildren();
    this.title = el("h2", { id: "detail-title", tabIndex: -1 }, ...breakable(id));
    const close = button("✕", () => this.callbacks.close(), { className: "close", "aria-label": "Close this run" });
    this.state = el("div", { className: "state" });
    this.action = el("div", { className: "action" });
    this.stopState = null; // null, confirm or sent
    this.facts = el("dl", { className: "facts" });
    this.tabs = el("div", { role: "tablist", "aria-label": "Views of this run" });
    this.tabs.addEventListener("keydown", (event) => this.key(event));
    this.views = {};
    const panels = Object.entries(VIEWS).map(([key, [label, View]]) => {
      const tab = button(label, () => this.callbacks.select(key), { role: "tab", id: `tab-${key}`, "aria-controls": `view-${key}` });
      const view = new View({ embedding: (round, projection) => this.callbacks.embedding(id, round, projection) });
      const panel = el("div", { role: "tabpanel", id: `view-${key}`, "aria-labelledby": `tab-${key}` }, view.element);
      this.views[key] = { tab, view, panel };
      this.tabs.append(tab);
      return panel;
    });
    this.element.replaceChildren(el("div", { className: "heading" }, this.title, close), this.state, this.action, this.facts, this.tabs, ...panels);
    this.switch();
  }

  switch() {
    for (const [key, { tab, panel }] of Object.entries(this.views ?? {})) {
      const on = key === this.view;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      panel.hidden = !on;
    }
  }

  key(event) {
    const keys = Object.keys(VIEWS);
    const now = keys.indexOf(this.view);
    const targets = { ArrowRight: (now + 1) % keys.length, ArrowLeft: (now + keys.length - 1) % keys.length, Home: 0, End: keys.length - 1 };
    if (!(event.key in targets)) return;
    event.preventDefault();
    const next = keys[targets[event.key]];
    this.callbacks.select(next);
    this.views[next].tab.focus();
  }

  show(run, history, config, details) {
    if (!run) {
      this.state.replaceChildren("This run is no longer in the folder.");
      this.action.replaceChildren();
      return;
    }
    const rounds = history?.rounds ?? [];
    this.showState(run);
    this.showAction(run);
    this.showFacts(run, rounds);
    this.views[this.view].view.show({ run, rounds, history, config, details });
  }

  showState(run) {
    const text = run.state === "broken" ? "" : `${run.method || "unknown method"} on ${run.data || "unknown data"}, seed ${run.seed ?? "–"}, round ${run.done} of ${run.rounds ?? "–"}`;
    const shown = JSON.stringify([run.state, run.reason, text]);
    if (this.state.dataset.shown === shown) return;
    this.state.dataset.shown = shown;
    const parts = [el("p", {}, badge(run.state), ` ${text}`)];
    if (run.rounds && run.state !== "finished") parts.push(el("progress", { max: run.rounds, value: run.done, "aria-label": "Rounds done" }));
    if (run.reason) parts.push(el("p", { className: "reason" }, run.reason));
    this.state.replaceChildren(...parts);
  }

  showFacts(run, rounds) {
    const facts = [];
    for (const key of ["global", "personal"]) {
      const top = best(rounds, key);
      const now = rounds.findLast((round) => round[key] !== null);
      if (top) facts.push([`${key === "global" ? "Global" : "Personal"} accuracy`, percent(now[key]), `best ${percent(top.value)}, round ${top.round}`]);
    }
    if (rounds.length) {
      const total = (key) => rounds.reduce((sum, round) => sum + (round[key] ?? 0), 0);
      const each = total("seconds") / rounds.length;
      const left = run.state === "running" ? `about ${duration(each * (run.rounds - run.done))} left` : `${duration(each)} per round`;
      facts.push(["Traffic", size(total("up") + total("down")), `${size(total("up"))} up, ${size(total("down"))} down`]);
      facts.push(["Time", duration(total("seconds")), left]);
      if (total("failures")) facts.push(["Failures", String(total("failures")), "missing or invalid replies"]);
    }
    const shown = JSON.stringify(facts);
    if (this.facts.dataset.shown === shown) return;
    this.facts.dataset.shown = shown;
    this.facts.replaceChildren(...facts.map(([name, value, note]) => el("div", {}, el("dt", {}, name), el("dd", {}, el("b", {}, value), note ? el("small", {}, note) : null))));
  }

  /** Show the button to stop the run. It asks for a confirmation. */
  showAction(run) {
    const offered = this.callbacks.stoppable(run);
    if (!offered) this.stopState = null;
    const view = offered ? (this.stopState ?? "offer") : "none";
    if (this.action.dataset.shown === view) return;
    this.action.dataset.shown = view;
    const setState = (state) => {
      this.stopState = state;
      this.showAction(run);
      this.action.querySelector("button")?.focus();
    };
    const send = async () => {
      const { error } = await this.callbacks.stop(run.id);
      setState(error ? null : "sent");
      if (error) this.action.append(el("p", { role: "alert" }, error));
    };
    const contents = {
      none: () => [],
      offer: () => [button("Stop this run", () => setState("confirm"))],
      confirm: () => [el("span", {}, "Stop after the current round?"), button("Yes, stop", send, { className: "strong" }), button("No", () => setState(null))],
      sent: () => [el("p", { role: "status" }, "Stop requested: the run stops after its current round and writes a checkpoint.")],
    };
    this.action.replaceChildren(...contents[view]());
  }
}
