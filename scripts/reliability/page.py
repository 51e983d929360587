"""Write docs/reliability.md from the result files of the reliability scripts: `python scripts/reliability/page.py`."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.reliability.results import FOLDER

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
WANTED_KILLS = 50
TARGETS = {
    "main": "main process of a simulation",
    "worker": "worker of the pool",
    "zygote": "fork server of the pool",
    "coordinator": "coordinator (`polyfed serve`)",
    "superlink": "SuperLink of the coordinator",
    "site": "site (`polyfed join`)",
    "supernode": "SuperNode of a site",
    "machine": "site and SuperNode at once, as if a machine fails",
}
DISK_COLUMNS = ("disk", "runs", "ended with one sentence", "equal bits after resuming")
COMMANDS = ("inspect", "compare", "resume", "ui", "report")
INTRO = """\
# Reliability

This page has the figures of scripts that kill processes, fill disks, mutate messages and attack the gateway. `scripts/reliability/page.py`
writes it from their result files in `scripts/reliability/figures`. The scripts ran on a machine with {cores} cores. Other programs
kept it busy, so times are longer than on a quiet machine; only the main process, workers, the fork server, sites and SuperNodes were killed while nothing else ran."""
KILLS = """\
## Kill processes

Each process was killed with SIGKILL (`kill -9`) at random moments, several times in each run, and started again where polyfed does not do this itself.
A run has *equal bits* if its `state_hash` is that of the undisturbed run. If sites missed rounds, it is compared with a run in one
process in which the same sites are absent in the same rounds. Federations use keys and TLS."""
AFTER_KILLS = """\
- polyfed replaces workers and the fork server, the coordinator starts a killed SuperLink again, and a site its SuperNode. A killed main process,
  coordinator or site must be started again by a person or a service manager; the script does this at once.
- The time until the next round has finished includes the round itself. The figures of coordinator and SuperLink were measured while the test
  suite ran on the same two cores. On quiet cores, before a coordinator stopped the old run and sites sent every reply in its turn, they
  were 32.5 and 30.4 s (median), and at most 89.7 and 70.8 s.
- A killed site or SuperNode ends its old session at the coordinator when it starts again. Before, it could return after two missing
  heartbeats of 30 seconds, and took part again after 73 and 85 s (median).
- The test suite has {suite}."""
SUITE = "six kills of workers, and five each of the main process, the fork server, the coordinator, the SuperLink, a site and a SuperNode"


class Results:
    """The result files, and the commands that gave those that were used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.used: dict[str, dict[str, Any]] = {}

    def get(self, name: str) -> dict[str, Any] | None:
        path = self._folder / f"{name}.json"
        if path.exists():
            self.used[name] = json.loads(path.read_text())
        return self.used.get(name)

    def kills(self) -> dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], int]]:
        """Return kills, runs and the number of kills that the script was asked for, by target."""
        found: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], int]] = {}
        for path in sorted(self._folder.glob("kills-*.json")):
            figures = self.get(path.stem) or {}
            moments = int(figures["command"].partition("--moments ")[2].split()[0])
            for target in TARGETS:
                kills = [kill for kill in figures["kills"] if kill["target"] == target]
                if kills:
                    found[target] = (kills, figures["runs"], moments)
        return {target: found[target] for target in TARGETS if target in found}


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.3g} s (slowest {max(values):.3g} s)"


def kills(results: Results, short: list[str]) -> list[str]:
    rows = []
    found = results.kills()
    for target, name in TARGETS.items():
        if target not in found:
            if target != "machine":
                short.append(f"Kills of the {name}: not measured; the aim is {WANTED_KILLS}.")
            continue
        done, runs, moments = found[target]
        equal = sum(run["equal"] for run in runs)
        if len(done) < WANTED_KILLS and target != "machine":
            short.append(f"Kills of the {name}: {len(done)}; the aim is {WANTED_KILLS}.")
        if len(done) < moments:
            short.append(
                f"Kills of the {name}: the script was stopped, so the bits of its last run were not compared."
            )
        if equal < len(runs):
            short.append(f"Kills of the {name}: {len(runs) - equal} of {len(runs)} runs do not have equal bits.")
        seconds = [kill["seconds"] for kill in done if "seconds" in kill]
        back = [kill["back"] for kill in done if "back" in kill]
        rows.append((name, len(done), f"{equal} of {len(runs)}", spread(seconds), spread(back)))
    for figures in results.used.values():
        if "joined" in figures:
            targets = " and ".join({kill["target"]: TARGETS[kill["target"]] for kill in figures["kills"]}.values())
            short.append(
                f"Kills of {targets}: {figures['joined']}; the bits of the runs that were interrupted were not compared."
            )
    head = (
        "process",
        "kills",
        "runs with equal bits",
        "next round finished, median",
        "site takes part again, median",
    )
    return [KILLS, table(head, rows), AFTER_KILLS.format(suite=SUITE)]


def lost_site(results: Results, short: list[str]) -> list[str]:
    figures = results.get("lost-site")
    text = """\
## A site that dies in a round

The site and its SuperNode are killed while the site has a call and does not answer, as if its machine lost power. The gateway notices that the
site sends no more requests, and the round continues with the others."""
    if figures is None:
        short.append("A site that dies in a round: not measured; the aim is ten seconds.")
        return [text]
    rows = []
    for name in ("keys", "insecure"):
        seconds = [one["seconds"] for one in figures.get(name, [])]
        if seconds:
            rows.append(("with keys" if name == "keys" else "without keys", len(seconds), spread(seconds)))
            if max(seconds) > 10:
                short.append(
                    f"A site that dies in a round, {rows[-1][0]}: the round continues after {spread(seconds)}; the aim is ten seconds."
                )
    return [text, table(("federation", "kills", "from the kill to the end of the round, median"), rows)]


def disks(results: Results, short: list[str]) -> list[str]:
    figures = results.get("disks")
    text = """\
## Full, read-only and slow disks

- *Full*: the run folder is on a file system that is too small for the run. Afterwards it is enlarged and the run resumed.
- *Read-only*: the run folder is on an ext4 image that becomes read-only at a random moment because of a file system error, and loses what
  was not flushed. Afterwards it is checked and the run resumed.
- *Slow*: strace delays every fsync and rename by 200 ms."""
    if figures is None:
        short.append("Disks: not measured.")
        return [text]
    rows: list[Sequence[object]] = []
    for name in ("full", "read_only"):
        cases = figures[name]
        sentences, equal = sum(one["sentence"] for one in cases), sum(one["equal"] for one in cases)
        rows.append((name.replace("_", "-"), len(cases), f"{sentences} of {len(cases)}", f"{equal} of {len(cases)}"))
        if min(sentences, equal) < len(cases):
            short.append(f"Disks that are {name.replace('_', '-')}: see the table.")
    slow = figures.get("slow")
    if slow is None:
        short.append("Slow disks: not measured.")
        return [text, table(DISK_COLUMNS, rows)]
    rows.append(("slow", 1, "-", f"{int(slow['equal'])} of 1"))
    times = slow["seconds"]
    note = f"The run on the slow disk took {times['slow']:.0f} s instead of {times['usual']:.0f} s, with {slow['delayed']} delayed calls."
    return [text, table(DISK_COLUMNS, rows), note]


def messages(results: Results, short: list[str]) -> list[str]:
    figures = results.get("mutated-messages")
    if figures is None:
        short.append("Mutated messages: not measured.")
        return []
    names = {
        "reply": "replies of clients, at the coordinator",
        "header": "headers of replies, at the coordinator",
        "task": "messages to clients, at the client's host",
    }
    rows = []
    for kind, counts in figures["outcomes"].items():
        rows.append((names[kind], *(f"{counts.get(one, 0):,}" for one in ("rejected", "accepted", "uncaught"))))
    if figures["uncaught"]:
        short.append(f"Mutated messages: {len(figures['uncaught'])} or more raised an error that was not caught.")
    text = f"""\
## Mutated messages

{figures["count"]:,} random mutations of recorded messages of {len(figures["methods"])} methods: flipped bits, cuts, additional bytes, wrong lengths, wrong values in
headers. Half of the frames got a valid digest, as an attacker would send them. A mutation is *accepted* if it is a valid message,
for example with another value in a tensor."""
    note = f"Memory grew by {figures['memory_growth_mb']} MB."
    return [text, table(("messages", "rejected", "accepted", "errors that were not caught"), rows), note]


def gateway(results: Results, short: list[str]) -> list[str]:
    figures = results.get("gateway-load")
    text = """\
## Attacks on the gateway

A federation of two honest sites runs while its gateway is attacked. A site asks for its status over a new TLS connection every half second.
Memory is the first, the largest and the last value of the phase."""
    if figures is None:
        short.append("Attacks on the gateway: not measured.")
        return [text]
    names = {
        "no attack": "no attack",
        "silent_connections": "500 connections that send nothing, opened again when the gateway closes them",
        "slow_bodies": "100 bodies of an admitted site at 1 kB/s",
        "unsigned_bodies": "16 bodies of 60 MB with an admitted public key and no signature",
        "afterwards": "afterwards",
    }
    rows = []
    for phase, name in names.items():
        one = figures["phases"].get(phase)
        if one is None:
            short.append(f"{name[0].upper()}{name[1:]}: not measured.")
            continue
        if one["failed_requests"]:
            total = one["requests"] + one["failed_requests"]
            short.append(f"{name[0].upper()}{name[1:]}: {one['failed_requests']} of {total} honest requests failed.")
        rows.append(
            (
                name,
                f"{one['median_ms']} ms (slowest {one['slowest_ms']} ms)" if one["requests"] else "-",
                one["failed_requests"],
                f"{one['rounds']} in {one['seconds']:.0f} s",
                " / ".join(str(value) for value in one["coordinator_mb"]),
                " / ".join(str(value) for value in one["superlink_mb"]),
            )
        )
    head = ("phase", "honest request, median", "failed", "rounds", "coordinator with gateway, MB", "SuperLink, MB")
    note = "Before signatures were checked at the gateway, the 16 unsigned bodies took the SuperLink from 144 to 1,123 MB."
    return [text, table(head, rows), note]


def long_runs(results: Results, short: list[str]) -> list[str]:
    parts = ["## Long runs and many clients"]
    rounds = results.get("endurance-rounds")
    if rounds is None:
        short.append("2,000 rounds: not measured.")
    else:
        head = (
            "round",
            "computing time per round",
            "time per round, median",
            "memory of all processes",
            "open files",
            "checkpoint/",
            "events.jsonl",
        )
        rows = [
            (
                f"{row['round']:,}",
                f"{row['computing_ms']} ms",
                f"{row['median_ms']} ms",
                f"{row['memory_mb']} MB",
                row["open_files"],
                f"{row['checkpoint_kb']} kB",
                f"{row['events_kb']} kB",
            )
            for row in rounds["rows"]
        ]
        first, last = rounds["rows"][0], rounds["rows"][-1]
        count = rounds["rounds"]
        per_round = 1000 * (last["events_kb"] - first["events_kb"]) / (last["round"] - first["round"])
        grown = last["checkpoint_kb"] - first["checkpoint_kb"]
        parts += [
            f"A run of {count:,} rounds with FedProto, 3 of 6 clients in each round, on the pool with two workers. Every row is about 200 rounds. "
            "Computing time is the processor time of the main process and the workers; it does not depend on other programs as much as time does.",
            table(head, rows),
            f"`events.jsonl` grows by {per_round:.0f} bytes in every round, because it records every round. The checkpoint grows by "
            f"{1000 * grown / (last['round'] - first['round']):.0f} bytes in every round, because it holds the history of the run.",
        ]
        if last["memory_mb"] > 1.05 * first["memory_mb"]:
            short.append(f"{count:,} rounds: memory grew from {first['memory_mb']} to {last['memory_mb']} MB.")
        if last["open_files"] > first["open_files"]:
            short.append(f"{count:,} rounds: open files grew from {first['open_files']} to {last['open_files']}.")
        if last["computing_ms"] > 1.1 * first["computing_ms"]:
            short.append(
                f"{count:,} rounds: the computing time of a round grew from {first['computing_ms']} to {last['computing_ms']} ms."
            )
        if grown > 0:
            short.append(
                f"{count:,} rounds: the run folder grows with the number of rounds, by the record of each round (below)."
            )
    clients = results.get("endurance-clients")
    if clients is None:
        short.append("10,000 clients on disk: not measured.")
    else:
        everything = clients["clients"]
        saves = [
            ("no state changed", spread(clients["save_seconds_0"])),
            ("100 states changed", spread(clients["save_seconds_100"])),
            ("all states changed", spread(clients[f"save_seconds_{everything}"])),
            ("resume: read and check all states", f"{clients['load_seconds']:.3g} s"),
        ]
        parts += [
            f"{everything:,} clients that have all taken part, with one state file each. The peak memory of all processes was "
            f"{clients['peak_memory_mb']:,} MB.",
            table(("checkpoint", "seconds, median"), saves),
            "A checkpoint flushes the states that changed since the last one, 16 at a time. Before, it flushed all states one after the other, "
            "which took 30 to 45 s.",
        ]
    return parts


def damaged(results: Results, short: list[str]) -> list[str]:
    rows, notes = [], []
    for command in COMMANDS:
        figures = results.get(f"damaged-{command}")
        if figures is None:
            short.append(f"Damaged run folders: `polyfed {command}` was not run on all cases.")
            continue
        done, cases = figures.get("done", figures["cases"]), figures["cases"]
        rows.append((f"`{command}`", f"{done:,} of {cases:,}", len(figures["problems"])))
        if done < cases:
            short.append(f"Damaged run folders: `polyfed {command}` was run on {done:,} of {cases:,} cases.")
        if figures["problems"]:
            short.append(f"Damaged run folders: `polyfed {command}` has {len(figures['problems'])} problems.")
        if mended := figures.get("mended"):
            notes.append(
                f"`polyfed {command}` had {mended['problems']} problems with `{mended['file']}`, which are mended. "
                f"Its {mended['cases']} cases were run again; the others were run before that."
            )
    text = """\
## Damaged run folders

Every file of a run folder is damaged in every way of `tests/runs/damage.py`. A *problem* is a traceback, a crash, a command that does not end,
a file from outside of the folder that is shown, or a sound run that is not shown next to the damaged one ([Resume a run](runs.md#damaged-run-folders))."""
    return [text, table(("command", "cases", "problems"), rows), *notes] if rows else [text]


def commands(results: Results) -> list[str]:
    used = results.used.values()
    versions = sorted({", ".join(f"{name} {value}" for name, value in one["versions"].items()) for one in used})
    lines = "\n".join(sorted({one["command"] for one in used}))
    return [
        "## Run the scripts",
        f"<!-- not run: takes an hour -->\n```bash\n{lines}\npython scripts/reliability/page.py\n```",
        f"Versions: {'; '.join(versions)}.",
    ]


def text(folder: Path = FOLDER) -> str:
    """Return the page."""
    results, short = Results(folder), list[str]()
    sections = [kills, lost_site, disks, messages, gateway, long_runs, damaged]
    parts = [part for section in sections for part in section(results, short)]
    parts += commands(results)
    cores = max((one["cores"] for one in results.used.values()), default=1)
    if short:
        parts = ["## What falls short", "\n".join(f"- {line}" for line in short), *parts]
    return "\n\n".join([INTRO.format(cores=cores), *parts]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text())
