// The page: asks the server what changed, about once a second, and shows it. What is opened and chosen is in the address.

import { List } from "./list.js";
import { Detail, Overlay } from "./panels.js";
import { STATES, el } from "./words.js";

const PERIOD = 800; // milliseconds between questions
const MOST = 20; // runs that can be drawn over each other
const token = document.querySelector("meta[name=polyfed-token]").content;
const runs = new Map(); // id to summary
const histories = new Map(); // id to {generation, rounds, notes, clients, of: the summary they belong to}
const configs = new Map();
const chosen = new Map(); // id to the number of its colour
let opened = null;
let revision = 0;

const list = new List({
  open: (id) => go(id, chosen.keys()),
  choose: (id, on) => go(opened, on ? [...chosen.keys(), id].slice(-MOST) : [...chosen.keys()].filter((each) => each !== id)),
});
const detail = new Detail({ close, stop });
const overlay = new Overlay({ drop: (id) => go(opened, [...chosen.keys()].filter((each) => each !== id)) });

function go(open, picked) {
  const address = new URLSearchParams();
  if (open !== null) address.set("open", open);
  for (const id of picked) address.append("pick", id);
  const before = opened;
  history.pushState(null, "", `#${address}`);
  route();
  if (open !== null && open !== before) detail.title.focus();
}

function close() {
  const last = opened;
  go(null, chosen.keys());
  list.focus(last);
}

function route() {
  const address = new URLSearchParams(location.hash.slice(1));
  opened = address.get("open");
  const picked = address.getAll("pick").slice(-MOST);
  for (const id of [...chosen.keys()]) if (!picked.includes(id)) chosen.delete(id);
  for (const id of picked) {
    // a run keeps its colour while others come and go
    if (!chosen.has(id)) chosen.set(id, [...Array(MOST).keys()].find((at) => ![...chosen.values()].includes(at)));
  }
  detail.open(opened);
  draw();
  follow();
}

function draw() {
  list.mark(opened, chosen);
  document.querySelector("#clear").hidden = chosen.size === 0;
  document.querySelector("main").classList.toggle("beside", opened !== null || chosen.size > 0);
  if (opened !== null) detail.show(runs.get(opened), histories.get(opened), configs.get(opened));
  overlay.show(chosen, runs, histories, (id) => configs.get(id));
}

async function ask(path, options = {}) {
  const response = await fetch(path, { cache: "no-store", ...options });
  const answer = response.headers.get("content-type")?.startsWith("application/json") ? await response.json() : { error: await response.text() };
  if (!response.ok && !answer.error) throw new Error(response.statusText);
  return answer;
}

/** One look: what changed in the list, then the rounds of what is shown. */
async function look() {
  const answer = await ask(`/api/runs?since=${revision}`);
  if (answer.error) throw new Error(answer.error);
  if (answer.full) runs.clear();
  answer.removed.forEach((id) => runs.delete(id));
  for (const run of answer.runs) runs.set(run.id, run);
  document.querySelector("#folder").textContent = answer.folder;
  list.update(answer.runs, answer.removed, answer.full);
  list.ages(answer.now);
  const changed = revision !== answer.revision;
  revision = answer.revision;
  if (changed) draw();
  await follow();
  return answer.more;
}

/** Bring the rounds of opened and chosen runs up to date, and read configs that are needed. */
async function follow() {
  const shown = [...new Set([...(opened === null ? [] : [opened]), ...chosen.keys()])].filter((id) => runs.has(id));
  const behind = shown.filter((id) => histories.get(id)?.of !== runs.get(id));
  if (behind.length) {
    const query = new URLSearchParams();
    const of = new Map(behind.map((id) => [id, runs.get(id)]));
    for (const id of behind) {
      const known = histories.get(id);
      query.append("id", id);
      query.append("have", known ? `${known.generation}.${known.rounds.length}` : "0.0");
    }
    const answer = await ask(`/api/rounds?${query}`);
    for (const { id, from, rounds, ...rest } of answer.runs ?? []) {
      const before = histories.get(id)?.rounds ?? [];
      histories.set(id, { ...rest, rounds: [...before.slice(0, from), ...rounds], of: of.get(id) });
    }
  }
  const unread = shown.filter((id) => !configs.has(id));
  await Promise.all(unread.map(async (id) => configs.set(id, await ask(`/api/config?${new URLSearchParams({ id })}`))));
  if (behind.length || unread.length) draw();
}

async function stop(id) {
  const headers = { "content-type": "application/json", "x-polyfed-token": token };
  try {
    return (await ask("/api/stop", { method: "POST", headers, body: JSON.stringify({ id }) })).error ?? null;
  } catch {
    return "The server of this page does not answer.";
  }
}

async function forever() {
  const connection = document.querySelector("#connection");
  for (;;) {
    let more = false;
    if (!document.hidden) {
      try {
        more = await look();
        if (connection.textContent !== "live") connection.textContent = "live";
        connection.className = "";
      } catch (error) {
        connection.textContent = `no connection, trying again (${error.message})`;
        connection.className = "lost";
      }
    }
    await new Promise((done) => setTimeout(done, more ? 0 : PERIOD)); // a large folder is read in parts
  }
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input[type=search], select");
  const filter = document.querySelector("#filter");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    filter.focus();
  } else if (event.key === "Escape" && typing && filter.value) {
    filter.value = "";
    list.arrange();
  } else if (event.key === "Escape" && opened !== null) close();
});
document.querySelector("#clear").addEventListener("click", () => {
  go(opened, []);
  document.querySelector("#filter").focus();
});
document.querySelector("#state").append(...Object.keys(STATES).map((state) => el("option", { value: state }, state)));
addEventListener("popstate", route);
route();
forever();
