// The form that starts a run: a preset, a name and overrides. The server checks them before it starts the run.

import { button, el, scrollable } from "./format.js";

const INTERVAL = 700; // milliseconds between two questions whether the run has started

export class StartForm {
  /**
   * `presets()`, `check(fields)`, `start(fields)` and `state(id)` ask the server; answers have an `error` if they failed.
   * `listed(id)` tells whether a run is in the list, and `open(id)` opens it.
   */
  constructor(callbacks) {
    this.callbacks = callbacks;
    this.element = document.querySelector("#start");
    this.title = el("h2", { id: "start-title", tabIndex: -1 }, "New run");
    this.preset = el("select", { id: "start-preset", "aria-describedby": "start-description" });
    this.description = el("p", { id: "start-description", className: "help" });
    this.name = el("input", { id: "start-name", type: "text", autocomplete: "off", spellcheck: false, maxLength: 128, "aria-describedby": "start-name-help" });
    this.overrides = el("textarea", { id: "start-overrides", rows: 5, spellcheck: false, autocomplete: "off", placeholder: "method=feddistill\nrounds=20\ntrain.lr=0.05", "aria-describedby": "start-overrides-help start-error" });
    this.error = el("p", { id: "start-error", role: "alert" });
    this.status = el("p", { role: "status", className: "help" });
    this.report = el("div");
    this.submit = el("button", { type: "submit", className: "primary" }, "Check and start");
    this.check = button("Check only", () => this.send(false));
    const field = (input, label, ...help) => el("div", { className: "field" }, el("label", { htmlFor: input.id }, label), input, ...help);
    this.form = el("form", {},
      field(this.preset, "Preset", this.description),
      field(this.overrides, "Overrides", el("p", { id: "start-overrides-help", className: "help" }, "One setting per line, as ", el("code", {}, "key=value"), ".")),
      field(this.name, "Name", el("p", { id: "start-name-help", className: "help" }, "Name of the run folder. If you leave it empty, it is made of the method, the dataset and the seed.")),
      this.error,
      el("div", { className: "action" }, this.submit, this.check, this.status),
      this.report);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send(true);
    });
    this.form.addEventListener("input", () => this.busy || this.clear());
    this.preset.addEventListener("change", () => this.describe());
    const close = button("✕", () => this.callbacks.close(), { className: "close", "aria-label": "Close the form" });
    this.element.append(el("div", { className: "heading" }, this.title, close), this.form);
  }

  /** Show or hide the form. What was written in it stays. */
  async show(shown) {
    this.element.hidden = !shown;
    if (!shown || this.known) return;
    const answer = await this.callbacks.presets();
    if (answer.error) return this.fail(answer.error);
    this.known = new Map(answer.presets.map(({ name, description }) => [name, description]));
    this.preset.append(...grouped([...this.known.keys()]));
    this.preset.value = "quickstart";
    this.describe();
  }

  describe() {
    this.description.textContent = this.known.get(this.preset.value) ?? "";
  }

  fields() {
    return { preset: this.preset.value, name: this.name.value, overrides: this.overrides.value };
  }

  /** Check the run, and start it if the check finds no mistake. */
  async send(start) {
    if (this.busy) return;
    this.clear();
    this.wait("Checking the settings…");
    const fields = this.fields();
    const checked = await this.callbacks.check(fields);
    if (checked.error) return this.fail(checked.error);
    this.showReport(checked);
    if (!start) return this.wait("No mistakes found.", false);
    this.wait(`Starting ${checked.name}…`);
    const started = await this.callbacks.start(fields);
    if (started.error) return this.fail(started.error);
    return this.follow(started.id);
  }

  /** Wait until the run is in the list, then open it. Show its message if it ends before. */
  async follow(id) {
    while (!this.callbacks.listed(id)) {
      const { ended, error } = await this.callbacks.state(id);
      if (error) return this.fail(error);
      if (ended && !this.callbacks.listed(id)) return this.fail(`${id} ended before its first round.`);
      await new Promise((done) => setTimeout(done, INTERVAL));
    }
    this.clear();
    this.name.value = "";
    return this.callbacks.open(id);
  }

  showReport({ command, report }) {
    this.report.replaceChildren(
      el("h3", {}, "Command"), el("pre", { className: "wrap" }, command),
      el("h3", {}, "Result of the check"), scrollable("Result of the check", el("pre", {}, report)));
  }

  wait(text, busy = true) {
    this.busy = busy;
    this.status.textContent = text;
    this.submit.disabled = this.check.disabled = busy;
  }

  fail(message) {
    this.wait("", false);
    this.error.textContent = sentence(message);
    this.overrides.setAttribute("aria-invalid", "true");
  }

  clear() {
    this.wait("", false);
    this.error.textContent = "";
    this.overrides.removeAttribute("aria-invalid");
    this.report.replaceChildren();
  }
}

/** Return the options of a select. Presets of one folder are a group. */
function grouped(names) {
  const folder = (name) => name.slice(0, Math.max(0, name.lastIndexOf("/")));
  const options = (group) => names.filter((name) => folder(name) === group).map((name) => el("option", { value: name }, name));
  const groups = [...new Set(names.map(folder))].filter(Boolean);
  return [...options(""), ...groups.map((group) => el("optgroup", { label: group }, ...options(group)))];
}

function sentence(text) {
  const start = /^[a-z]+ /.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
  return /[.?!]$/.test(start) ? start : `${start}.`;
}
