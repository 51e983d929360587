// The page: shows what the server reports about runs. The opened and selected runs are in the URL.

import { Comparison } from "./compare.js";
import { Detail } from "./detail.js";
import { STATES, el } from "./format.js";
import { List } from "./list.js";
import { Split } from "./split.js";
import { StartForm } from "./start.js";
import { Updates } from "./updates.js";

const TICK = 1000; // milliseconds between two updates of ages
const DETAILS_INTERVAL = 4000; // milliseconds between two requests for the details of a run that changes
const MAX_SELECTED = 50; // runs in one comparison
const meta = (name) => document.querySelector(`meta[name=polyfed-${name}]`).content;
const token = meta("token"); // empty if this page may not stop runs
const notice = meta("notice"); // why this page may not start runs, or empty
const runs = new Map(); // id to summary
const histories = new Map(); // id to {generation, rounds, notes, clients, summary that they belong to}
const configs = new Map();
const details = new Map(); // id to {content, summary that it belongs to, time}
const selected = new Set();
let opened = null;
let starting = false; // the form to start a run is open
let view = "overview";
let revision = 0;
let clock = 0; // seconds by which the server's clock is ahead

const list = new List({
  open: (id) => navigate({ open: id }),
  select: (ids, on) => navigate({ pick: on ? [...new Set([...selected, ...ids])].slice(-MAX_SELECTED) : [...selected].filter((id) => !ids.includes(id)) }),
});
const detail = new Detail({
  close,
  stop: (id) => post("stop", { id }),
  select: (key) => navigate({ view: key }),
  embedding: (id, round, projection) => request(`/api/embedding?${new URLSearchParams({ id, round, projection })}`),
  stoppable: (run) => Boolean(token && run.stoppable),
});
const comparison = new Comparison({
  drop: (ids) => navigate({ pick: [...selected].filter((id) => !ids.includes(id)) }),
  clear: () => {
    navigate({ pick: [] });
    document.querySelector("#filter").focus();
  },
});
const startForm = new StartForm({
  close: () => {
    navigate({ start: false });
    newRun.focus();
  },
  presets: () => request("/api/presets"),
  check: (fields) => post("check", fields),
  start: (fields) => post("start", fields),
  state: (id) => request(`/api/launch?${new URLSearchParams({ id })}`),
  listed: (id) => runs.has(id),
  open: (id) => navigate({ open: id, view: "overview", start: false }),
});
const newRun = document.querySelector("#new");
newRun.hidden = Boolean(notice);
newRun.addEventListener("click", () => {
  navigate({ start: true });
  startForm.title.focus();
});
document.querySelector("#notice").textContent = notice;
new Split(document.querySelector("#split"), document.querySelector("main"));

/** Change what is opened, selected and viewed, as a new entry of the browser's history. */
function navigate({ open = opened, pick = [...selected], view: shown = view, start = starting }) {
  const address = new URLSearchParams();
  if (start) address.set("new", "");
  if (open !== null) address.set("open", open);
  if (open !== null && shown !== "overview") address.set("view", shown);
  for (const id of pick) address.append("pick", id);
  const before = opened;
  history.pushState(null, "", `#${address}`);
  applyUrl();
  if (open !== null && open !== before) detail.title.focus();
}

function close() {
  const last = opened;
  navigate({ open: null });
  list.focus(last);
}

function applyUrl() {
  const address = new URLSearchParams(location.hash.slice(1));
  opened = address.get("open");
  starting = address.has("new") && !notice;
  view = address.get("view") ?? "overview";
  selected.clear();
  for (const id of address.getAll("pick").slice(-MAX_SELECTED)) selected.add(id);
  detail.open(opened, view);
  startForm.show(starting);
  newRun.setAttribute("aria-expanded", String(starting));
  draw();
  updateShown();
}

function draw() {
  list.mark(opened, selected);
  document.querySelector("main").classList.toggle("with-panels", starting || opened !== null || selected.size > 0);
  if (opened !== null) detail.show(runs.get(opened), histories.get(opened), configs.get(opened), details.get(opened)?.content);
  comparison.show(selected, runs, histories, (id) => configs.get(id));
}

async function request(path, options = {}) {
  const response = await fetch(path, { cache: "no-store", ...options });
  const answer = response.headers.get("content-type")?.startsWith("application/json") ? await response.json() : { error: await response.text() };
  if (!response.ok && !answer.error) throw new Error(response.statusText);
  return answer;
}

/** Show changes of the list, then fetch the rounds of the runs that are shown. */
async function apply(answer) {
  if (answer.full) runs.clear();
  answer.removed.forEach((id) => runs.delete(id));
  for (const run of answer.runs) runs.set(run.id, run);
  document.querySelector("#folder").textContent = answer.folder;
  list.update(answer.runs, answer.removed, answer.full);
  clock = answer.now - Date.now() / 1000;
  tick();
  const changed = revision !== answer.revision;
  revision = answer.revision;
  if (changed) draw();
  await updateShown();
}

async function poll() {
  const answer = await request(`/api/runs?since=${revision}`);
  if (answer.error) throw new Error(answer.error);
  await apply(answer);
  return answer.more;
}

function tick() {
  if (!document.hidden) list.updateAges(Date.now() / 1000 + clock);
}

function status(mode, error) {
  const text = mode === "lost" ? `no connection, retrying (${error})` : "live";
  const connection = document.querySelector("#connection");
  connection.className = mode;
  if (connection.textContent !== text) connection.textContent = text;
}

/** Fetch the new rounds of opened and selected runs, and the configs and details that are needed. */
async function updateShown() {
  const shown = [...new Set([...(opened === null ? [] : [opened]), ...selected])].filter((id) => runs.has(id));
  const outdated = shown.filter((id) => histories.get(id)?.summary !== runs.get(id));
  if (outdated.length) {
    const query = new URLSearchParams();
    const summaries = new Map(outdated.map((id) => [id, runs.get(id)]));
    for (const id of outdated) {
      const known = histories.get(id);
      query.append("id", id);
      query.append("have", known ? `${known.generation}.${known.rounds.length}` : "0.0");
    }
    const answer = await request(`/api/rounds?${query}`);
    for (const { id, from, rounds, ...rest } of answer.runs ?? []) {
      const before = histories.get(id)?.rounds ?? [];
      histories.set(id, { ...rest, rounds: [...before.slice(0, from), ...rounds], summary: summaries.get(id) });
    }
  }
  const unread = shown.filter((id) => !configs.has(id));
  await Promise.all(unread.map(async (id) => configs.set(id, await request(`/api/config?${new URLSearchParams({ id })}`))));
  if (outdated.length || unread.length) draw();
  await updateDetails();
}

/** Fetch the details of the opened run, unless they are new enough. */
async function updateDetails() {
  const id = opened;
  const summary = runs.get(id);
  const known = details.get(id);
  if (!summary || known?.summary === summary || performance.now() - (known?.time ?? -Infinity) < DETAILS_INTERVAL) return;
  details.set(id, { content: known?.content, summary, time: performance.now() });
  try {
    details.get(id).content = await request(`/api/details?${new URLSearchParams({ id })}`);
  } catch {
    details.delete(id); // no connection: ask again
  }
  if (id === opened) draw();
}

/** Send a request that changes something. The answer has an `error` if it failed. */
async function post(action, content) {
  const headers = { "content-type": "application/json", "x-polyfed-token": token };
  try {
    return await request(`/api/${action}`, { method: "POST", headers, body: JSON.stringify(content) });
  } catch {
    return { error: "The dashboard server does not respond." };
  }
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
  const filter = document.querySelector("#filter");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    filter.focus();
  } else if (event.key === "Escape" && event.target === filter && filter.value) {
    filter.value = "";
    list.sortAndFilter();
  } else if (event.key === "Escape" && event.target.closest("#start")) startForm.callbacks.close();
  else if (event.key === "Escape" && opened !== null) close();
});
document.querySelector("#state").append(...Object.keys(STATES).map((state) => el("option", { value: state }, state)));
addEventListener("popstate", applyUrl);
applyUrl();
new Updates({ address: () => `/api/stream?since=${revision}`, poll, apply, status });
setInterval(tick, TICK);
setInterval(updateDetails, DETAILS_INTERVAL);
