"""The page of the leaderboard in Markdown, written from its records."""

from __future__ import annotations

from collections.abc import Sequence

from polyfed import catalogue
from polyfed.config.tuning import SEED, VALIDATION
from polyfed.leaderboard.records import Gain, Leaderboard, Row, ScenarioRecord
from polyfed.leaderboard.scenarios import CPU_OPTIONS, LOCAL, SCENARIOS, base_method

MIB = 1 << 20
OWN_METHOD = "fedlatent"
HEADINGS = (
    "method",
    "rate",
    "common accuracy",
    "gain",
    "personal accuracy",
    "gain",
    "MiB up",
    "MiB down",
    "clients upload",
)
INTRODUCTION = """\
# Leaderboard

All methods in four fixed scenarios of CPU size. One command regenerates this page and the data file that
[`polyfed advise`](advise.md) reads:

<!-- not run: takes hours -->
```bash
{command} \\
  --tune --rates src/polyfed/leaderboard/rates.json \\
  --page docs/leaderboard.md --data src/polyfed/leaderboard/leaderboard.json
```

Without `--tune` the command uses the learning rates of the table and takes half as long. `--har` is the folder of
[UCI HAR](data.md#uci-har-and-shakespeare) as published; without it the last scenario is left out.

The settings of a scenario are the preset below its heading, so `polyfed run PRESET method=NAME train.lr=RATE` repeats
one run. The numbers are not comparable with any published number.

- **Common accuracy** is measured on the common test set, **personal accuracy** on each client's own held-out data.
  Both are in % after the last round, as the mean over seeds.
- **Gain** is the mean difference to `local` (local training on the same models) in points. The brackets hold the
  paired 95 % t interval over seeds. Three seeds give wide intervals.
- **MiB** counts the bytes of all clients and rounds together.
- **Clients upload** lists the kinds of information that the method declares ([advise.md](advise.md)).
- Methods that cannot use the models of a scenario run on the models that their row names. They are compared with
  `local` on these models.
- **Rate** is the learning rate of local training (`train.lr`). Every method, and `local`, has the best of three
  values: that of the preset, a third of it and three times as much. They are compared by the common accuracy on
  validation data (`data.validation={validation}`, seed {seed}). The preset's value wins ties, and a value at which
  training fails is left out. Test data is not used.
  Methods that are restricted to plain SGD start from another value, the same for `local` next to them.
- All other options are the defaults. Only {cpu_options} have smaller settings, because their defaults are made for
  large data.
- Seconds are left out: they are only comparable between runs that are alone on their cores.
"""


def page(board: Leaderboard) -> str:
    """Return the whole page."""
    options = " and ".join(f"`{name}`" for name in CPU_OPTIONS)
    parts = [INTRODUCTION.format(command=board.command, cpu_options=options, validation=VALIDATION, seed=SEED)]
    parts += [_section(board.scenarios[name]) for name in SCENARIOS if name in board.scenarios]
    absent = [f"`{name}`" for name in SCENARIOS if name not in board.scenarios]
    if absent:
        parts.append(f"Not measured yet: {', '.join(absent)}.\n")
    if not board.scenarios:
        return "\n".join(parts)
    versions = ", ".join(f"{name} {version}" for name, version in board.versions.items())
    parts.append(f"## Runs\n\nMeasured with {versions}. `state_hash` of every run, by seed:\n")
    parts += [_hashes(record) for record in board.scenarios.values()]
    return "\n".join(parts)


def table(record: ScenarioRecord) -> str:
    """Return the Markdown table of a scenario, the largest gain in common accuracy first."""
    lines = [_line(HEADINGS), "|---|--:|--:|--:|--:|--:|--:|--:|---|"]
    return "\n".join([*lines, *(_line(_cells(row)) for row in _sorted(record.rows))])


def _section(record: ScenarioRecord) -> str:
    scenario = SCENARIOS[record.scenario]
    summary = f"Preset `{scenario.preset}`: {_summary(record)}.{f' {scenario.note}' if scenario.note else ''}"
    parts = [f"## {scenario.title}", summary, table(record), *_own_method(record)]
    if record.excluded:
        reasons: dict[str, list[str]] = {}
        for method, reason in record.excluded.items():
            reasons.setdefault(reason, []).append(f"`{method}`")
        text = "; ".join(f"{', '.join(methods)}: {reason}" for reason, methods in reasons.items())
        parts.append(f"Cannot run here: {text}.")
    if record.missing:
        missing = ", ".join(f"`{method}` ({count})" for method, count in record.missing.items())
        parts.append(f"Missing runs, by method: {missing}.")
    return "\n\n".join(parts) + "\n"


def _own_method(record: ScenarioRecord) -> list[str]:
    """Return a sentence about polyfed's own method that names all methods with larger gains."""
    own = next((row for row in record.rows if row.method == OWN_METHOD), None)
    if own is None:
        return []
    parts = []
    for kind, word in (("global", "common"), ("personal", "personal")):
        if kind in own.gains:
            gains = {row.method: row.gains[kind].mean for row in record.rows if kind in row.gains}
            ahead = sorted((name for name in gains if gains[name] > gains[OWN_METHOD]), key=lambda name: -gains[name])
            place = f"behind {', '.join(f'`{name}`' for name in ahead)}" if ahead else "ahead of all other methods"
            parts.append(f"{gains[OWN_METHOD]:+.1f} points of {word} accuracy, {place}")
    return [f"`{OWN_METHOD}`, the method of this project: {'; '.join(parts)}."] if parts else []


def _summary(record: ScenarioRecord) -> str:
    from polyfed.config.loading import read_source

    raw = read_source(SCENARIOS[record.scenario].preset)
    limit = f"{raw['data']['limit']} training samples, " if "limit" in raw["data"] else ""
    options = ", ".join(f"{key} {value}" for key, value in raw["data"]["partition"].items() if key != "scheme")
    partition = f"{raw['data']['partition']['scheme']} partition ({options})"
    return (
        f"`{raw['data']['dataset']}`, {limit}{partition}, {raw['clients']} clients, {raw['rounds']} rounds of "
        f"{raw['train']['epochs']} epoch{'s' if raw['train']['epochs'] > 1 else ''}, Adam, learning rate "
        f"{raw['train']['lr']} in the preset"
    )


def _sorted(rows: Sequence[Row]) -> list[Row]:
    def gain(row: Row) -> float:
        kind = "global" if "global" in row.gains else "personal"
        return row.gains[kind].mean if kind in row.gains else 0.0

    return sorted(rows, key=lambda row: (row.method != LOCAL, row.models if row.method == LOCAL else "", -gain(row)))


def _cells(row: Row) -> list[str]:
    name = f"`{row.method}`" + (f" ({row.models})" if row.models else "")
    info = catalogue.methods().get(base_method(row.method))
    kinds = ", ".join(info.upload_kinds) if info is not None else ""
    return [
        name,
        f"{row.rate:g}",
        _number(row.mean("global_"), 1),
        _interval(row.gains.get("global")),
        _number(row.mean("personal"), 1),
        _interval(row.gains.get("personal")),
        _number(row.mean("up"), 2, MIB),
        _number(row.mean("down"), 2, MIB),
        kinds or "nothing",
    ]


def _number(value: float | None, digits: int, unit: int = 1) -> str:
    return "-" if value is None else f"{value / unit:.{digits}f}"


def _interval(gain: Gain | None) -> str:
    if gain is None:
        return "-"
    if gain.low is None or gain.high is None:
        return f"{gain.mean:+.1f}"
    return f"{gain.mean:+.1f} [{gain.low:+.1f}, {gain.high:+.1f}]"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _hashes(record: ScenarioRecord) -> str:
    lines = [f'??? note "{SCENARIOS[record.scenario].title}"', ""]
    for row in record.rows:
        hashes = ", ".join(f"{run.seed} `{run.state_hash[:12]}`" for run in row.runs)
        lines.append(f"    - `{row.method}`{f' ({row.models})' if row.models else ''}: {hashes}")
    return "\n".join(lines) + "\n"
