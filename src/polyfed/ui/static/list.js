// The table of runs: sorted and filtered. Only rows that changed are updated.

import { STATES, age, badge, breakable, el, lineKey, percent, size } from "./format.js";

const COLUMNS = [
  { key: "state", label: "State", cell: (run) => badge(run.state, run.reason) },
  { key: "id", label: "Run", cell: null },
  { key: "method", label: "Method", cell: (run) => (run.method ? lineKey(run.method, run) : "–") },
  { key: "data", label: "Data", secondary: true },
  { key: "seed", label: "Seed", right: true, secondary: true },
  { key: "done", label: "Round", right: true, text: (run) => (run.rounds === null ? "–" : `${run.done}/${run.rounds}`) },
  { key: "global", label: "Global", right: true, text: (run) => percent(run.global) },
  { key: "personal", label: "Personal", right: true, text: (run) => percent(run.personal) },
  { key: "up", label: "Up", right: true, secondary: true, text: (run) => size(run.up) },
  { key: "down", label: "Down", right: true, secondary: true, text: (run) => size(run.down) },
  { key: "changed", label: "Age", right: true },
];

export class List {
  /** `open(id)` and `select(ids, on)` are called when the user opens or selects runs. */
  constructor({ open, select }) {
    this.callbacks = { open, select };
    this.rows = new Map();
    this.sort = { key: "changed", down: true };
    this.body = document.querySelector("#runs tbody");
    this.filter = document.querySelector("#filter");
    this.state = document.querySelector("#state");
    this.head();
    this.filter.addEventListener("input", () => this.sortAndFilter());
    this.state.addEventListener("change", () => this.sortAndFilter());
    this.body.addEventListener("keydown", (event) => this.key(event));
  }

  head() {
    const row = document.querySelector("#runs thead tr");
    this.all = el("input", { type: "checkbox", "aria-label": "Select all runs that are shown" });
    this.all.addEventListener("change", () => this.callbacks.select(this.shown().map(({ id }) => id), this.all.checked));
    row.append(el("th", { scope: "col" }, this.all));
    for (const { key, label, right, secondary } of COLUMNS) {
      const button = el("button", { type: "button" }, label);
      button.addEventListener("click", () => {
        const first = !["id", "method", "data", "state"].includes(key); // numbers: largest first
        this.sort = { key, down: this.sort.key === key ? !this.sort.down : first };
        this.sortAndFilter();
      });
      row.append(el("th", { scope: "col", className: classes({ right, secondary }), "data-key": key }, button));
    }
  }

  /** Update changed rows and remove rows. `full` means that `runs` is the complete list. */
  update(runs, removed, full) {
    if (full) {
      const present = new Set(runs.map((run) => run.id));
      for (const id of [...this.rows.keys()]) if (!present.has(id)) this.remove(id);
    }
    removed.forEach((id) => this.remove(id));
    for (const run of runs) {
      const row = this.rows.get(run.id) ?? this.add(run.id);
      row.run = run;
      row.text = [run.id, run.name, run.method, run.data, run.state].join("\n").toLowerCase();
      this.fill(row);
    }
    if (runs.length || removed.length || full) this.sortAndFilter();
  }

  add(id) {
    const box = el("input", { type: "checkbox", "aria-label": `Select ${id}` });
    box.addEventListener("change", () => this.callbacks.select([id], box.checked));
    const link = el("a", { href: `#${new URLSearchParams({ open: id })}` }, ...breakable(id));
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.callbacks.open(id);
    });
    const cells = COLUMNS.map(({ key, right, secondary }) => el(key === "id" ? "th" : "td", { className: classes({ right, secondary, [key]: true }) }));
    cells[1].scope = "row";
    cells[1].append(link);
    const line = el("tr", {}, el("td", {}, box), ...cells);
    const row = { id, line, box, link, cells };
    this.rows.set(id, row);
    return row;
  }

  remove(id) {
    this.rows.get(id)?.line.remove();
    this.rows.delete(id);
  }

  fill({ run, cells }) {
    COLUMNS.forEach(({ key, cell, text }, k) => {
      if (cell === null || key === "changed") return;
      if (cell) cells[k].replaceChildren(cell(run));
      else cells[k].textContent = text ? text(run) : (run[key] ?? "–");
    });
    cells[1].dataset.note = `${STATES[run.state] ?? ""} ${run.state}${run.method ? `, ${run.method}` : ""}`; // below the name if the table is narrow
    const reason = cells[1].querySelector("small");
    if (run.reason && run.state === "broken") {
      if (reason) reason.textContent = run.reason;
      else cells[1].append(el("small", { title: run.reason }, run.reason));
    } else reason?.remove();
  }

  /** Update the ages, which change even if the runs do not. */
  updateAges(now) {
    const at = COLUMNS.length - 1;
    for (const { run, cells } of this.rows.values()) {
      const text = age(Math.max(0, now - run.changed));
      if (cells[at].textContent !== text) cells[at].textContent = text;
    }
  }

  /** Sort and filter the rows. Rows are moved only if the order changed. */
  sortAndFilter() {
    const { key, down } = this.sort;
    const value = ({ run }) => run[key] ?? null;
    const sorted = [...this.rows.values()].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === y) return a.id < b.id ? -1 : 1;
      if (x === null) return 1; // unknown values come last in both directions
      if (y === null) return -1;
      return (x < y ? -1 : 1) * (down ? -1 : 1);
    });
    const order = sorted.map((row) => row.id).join("\n");
    if (order !== this.order) {
      const focused = document.activeElement;
      this.body.append(...sorted.map((row) => row.line));
      if (this.body.contains(focused)) focused.focus({ preventScroll: true });
      this.order = order;
    }
    const terms = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of sorted) {
      const matches = terms.every((term) => row.text.includes(term)) && (!this.state.value || row.run.state === this.state.value);
      row.line.hidden = !matches;
      shown += matches;
    }
    for (const cell of document.querySelectorAll("#runs thead th[data-key]")) {
      if (cell.dataset.key === key) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
    this.count(shown);
    this.markAll();
  }

  count(shown) {
    const all = this.rows.size;
    const words = shown === all ? `${all} ${all === 1 ? "run" : "runs"}` : `${shown} of ${all} runs`;
    const place = document.querySelector("#count");
    if (place.textContent !== words) place.textContent = words;
    const empty = document.querySelector("#empty");
    empty.hidden = shown > 0;
    empty.textContent = all ? "No run matches the filter." : "There are no runs yet. New runs appear automatically.";
    document.querySelector("#runs").hidden = all === 0;
  }

  mark(opened, selected) {
    for (const row of this.rows.values()) {
      row.line.classList.toggle("opened", row.id === opened);
      if (row.id === opened) row.link.setAttribute("aria-current", "true");
      else row.link.removeAttribute("aria-current");
      row.box.checked = selected.has(row.id);
    }
    this.markAll();
  }

  shown() {
    return [...this.rows.values()].filter(({ line }) => !line.hidden);
  }

  markAll() {
    const shown = this.shown();
    const count = shown.filter(({ box }) => box.checked).length;
    this.all.checked = count > 0 && count === shown.length;
    this.all.indeterminate = count > 0 && count < shown.length;
  }

  focus(id) {
    this.rows.get(id)?.link.focus();
  }

  key(event) {
    const line = event.target.closest("tr");
    const steps = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" };
    if (!(event.key in steps) || !line) return;
    event.preventDefault();
    let next = line[steps[event.key]];
    while (next && next.hidden) next = next[steps[event.key]];
    const control = event.target.type === "checkbox" ? "input" : "a";
    next?.querySelector(control)?.focus();
  }
}

function classes(flags) {
  return Object.entries(flags).filter(([, on]) => on).map(([name]) => name).join(" ");
}
