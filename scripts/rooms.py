"""The rooms of the package: what lives in each, and which other rooms it may import.

`tests/test_rooms.py` checks the imports against this list. `python scripts/rooms.py` writes the list and its diagram into
`docs/design.md` and `CONTRIBUTING.md`, between the markers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

START, END = "<!-- rooms: written by scripts/rooms.py -->", "<!-- end of rooms -->"
PAGES = ("docs/design.md", "CONTRIBUTING.md")
EVERYWHERE = {"errors"}  # every room may import these


@dataclass(frozen=True)
class Room:
    """A folder or a module of its own directly below `src/polyfed`."""

    holds: str
    imports: frozenset[str]


def _room(holds: str, imports: str = "") -> Room:
    return Room(holds, frozenset(imports.split()))


# From the top of the house to its foundations. A room may import the rooms that it names here, and no others.
ROOMS: dict[str, Room] = {
    "__main__": _room("`python -m polyfed`", "cli"),
    "cli": _room(
        "the commands, one module each",
        "__init__ advice api attack benchmarks catalogue comparison config console core data deploy devices engines federation "
        "leaderboard machine models papers plugins profiling progress report runs trained ui",
    ),
    "benchmarks": _room(
        "measurements of time and memory, as ratios within one run",
        "api catalogue config core data deploy devices engines experiment federation machine methods models runs training ui",
    ),
    "testing": _room(
        "the checks that every method passes; users run them on methods of their own",
        "api config core data engines federation models runs training",
    ),
    "attack": _room("reconstruction attacks on recorded uploads", "api core federation guards runs training"),
    "deploy": _room(
        "federations between real sites on Flower: coordinator, sites, keys, gateway",
        "__init__ api catalogue config core data engines experiment federation guards machine models runs trackers trained "
        "training",
    ),
    "__init__": _room(
        "the public Python interface: `import polyfed`",
        "advice api comparison core data models report sweeps trained",
    ),
    "trained": _room(
        "trained models: load them, predict with them, export them",
        "api catalogue config core data federation models runs training",
    ),
    "advice": _room(
        "which methods fit clients and wishes, and the config to start from",
        "catalogue config core data leaderboard models runs",
    ),
    "leaderboard": _room(
        "every method in four fixed scenarios, with gains over local training",
        "catalogue comparison config data federation runs",
    ),
    "papers": _room("tables and claims of papers, at CPU scale and at published scale", "comparison config runs"),
    "sweeps": _room("`polyfed.sweep`: grids of settings and seeds", "api comparison config federation runs"),
    "api": _room(
        "`polyfed.run` and the other functions that mirror commands",
        "config data experiment federation machine profiling progress runs trackers",
    ),
    "progress": _room("progress bars of runs, in terminals and notebooks", "config console runs"),
    "experiment": _room(
        "the loop over rounds, with checkpoints, events and results",
        "__init__ config core federation guards profiling runs",
    ),
    "federation": _room(
        "from a config to clients with models and data",
        "analysis catalogue config core data devices engines guards machine models runs training",
    ),
    "trackers": _room("TensorBoard, MLflow and Weights & Biases", "config runs"),
    "ui": _room("the live dashboard, from run folders", "analysis comparison config report runs"),
    "report": _room("figures, tables and the HTML report, from run folders", "__init__ analysis comparison runs"),
    "comparison": _room("means, standard deviations and tables over runs", "runs"),
    "config": _room("config keys, presets, overrides and sweeps", "catalogue core data devices models plugins runs"),
    "catalogue": _room("which methods and filters exist, and how to make them", "core option_checks plugins"),
    "controls": _room("controls and variants of methods and filters, for ablations", "core filters methods"),
    "methods": _room("one file or folder per method", "core data models training"),
    "filters": _room("steps between a server's update and its model, such as InCo", "core models"),
    "engines": _room("serial, pool, Ray and Flower: run a call on clients", "core devices machine profiling"),
    "guards": _room("differential privacy for what clients upload", "core"),
    "runs": _room("the run folder: config, events, checkpoints, results", "console core profiling"),
    "core": _room(
        "Method, Client, Server, Cohort, messages, random streams",
        "devices machine models option_checks profiling training",
    ),
    "analysis": _room("measures of what models learned: CKA, t-SNE"),
    "models": _room("the model zoo, groups, and slicing into sub-models", "machine plugins"),
    "training": _room("the local training loop, losses and evaluation", "profiling"),
    "data": _room("datasets, readers and partitions", "plugins"),
    "profiling": _room("where the time of a run goes: spans, table and trace"),
    "plugins": _room("entry points of installed packages"),
    "console": _room("text for people: consoles, messages, numbers with units"),
    "machine": _room("cores and memory of this machine"),
    "devices": _room("kinds of devices that models train on: CPU, CUDA and MPS"),
    "option_checks": _room("checks of options of methods and filters: names, types, bounds"),
    "errors": _room("errors that users meet, each one sentence"),
}
# Imports that are not dependencies: file and room, with the reason.
EXCEPTIONS = {
    ("engines/worker.py", "federation"): "workers are forked from a process that has imported all that clients need",
    ("config/code_digest.py", "__init__"): "the version of polyfed is part of what identifies a run",
}


def reduced() -> dict[str, set[str]]:
    """Return the imports without those that follow from others, which keeps the diagram readable."""

    def reach(room: str) -> set[str]:
        return {below for name in ROOMS[room].imports - {"__init__"} for below in ({name} | reach(name))}

    return {
        room: {
            name
            for name in entry.imports - {"__init__"}
            if not any(name in reach(other) for other in entry.imports - {name, "__init__"})
        }
        for room, entry in ROOMS.items()
    }


def diagram() -> str:
    """Return the Mermaid text of the picture."""
    shown = [room for room in ROOMS if room not in EVERYWHERE | {"__init__", "__main__"}]
    edges = [f"    {room} --> {name}" for room, names in reduced().items() if room in shown for name in sorted(names)]
    return "\n".join(["```mermaid", "flowchart TD", *edges, "```"])


def table() -> str:
    """Return the Markdown table of all rooms."""
    rows = [f"| `{room}` | {entry.holds} |" for room, entry in ROOMS.items()]
    return "\n".join(["| room | what lives there |", "|---|---|", *rows])


def text() -> str:
    """Return what stands between the markers of a page."""
    return f"{START}\n{diagram()}\n\n{table()}\n{END}"


def main() -> None:
    root = Path(__file__).resolve().parents[1]
    for name in PAGES:
        page = root / name
        before, _, rest = page.read_text(encoding="utf-8").partition(START)
        page.write_text(before + text() + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
