"""The report: one HTML file about runs, whatever state they are in, with nothing outside of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfed.errors import InputError
from polyfed.report import figure_kinds, rendering
from polyfed.report.figure_spec import COLORS, DARK_COLORS, Options
from polyfed.report.run_groups import grouped, varying
from polyfed.report.run_record import STATES, Record, read_all
from polyfed.report.run_tables import Table, cell, common_settings, parts_of, runs_table, table_of
from polyfed.runs.atomic_files import write_atomically

MOST_NUMBERS = 300  # rows of a figure's numbers inside the page
MOST_ALIKE = 6  # figures of one kind that show one run each
OVERALL: tuple[tuple[str, Options], ...] = (
    ("curves", Options("personal")),
    ("curves", Options("global")),
    ("loss", Options()),
    ("cost", Options("personal", "bytes")),
    ("cost", Options("personal", "seconds")),
    ("cost", Options("global", "bytes")),
    ("clients", Options("personal")),
    ("architectures", Options("personal")),
    ("phases", Options()),
)
# what some methods leave: the kind of figure, and what it is drawn from
BY_METHOD = {
    "layers": ("layers_up", "layers_down"),
    "inco": ("inco",),
    "cka": ("cka",),
    "tsne": ("guiding_vectors",),
    "features": ("features",),
    "synthetic": ("synthetic",),
}


@dataclass
class Drawn:
    """A figure as the page shows it."""

    kind: str
    title: str
    words: str
    svg: Any
    headings: list[Any]
    rows: list[list[Any]]
    count: int


@dataclass
class Section:
    """A part of the page."""

    ident: str
    title: str
    words: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    figures: list[Drawn] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    after: list[str] = field(default_factory=list)  # what to know about the tables


def write_report(
    folders: Iterable[str | Path], out: str | Path, *, by: Sequence[str] = (), baseline: str | None = None
) -> tuple[int, list[str]]:
    """Write the page about all runs in some folders; gives their number, and a sentence for each that is broken."""
    path = Path(out)
    if path.suffix.lower() not in {".html", ".htm"}:
        raise InputError(f"the report's file is '{path}'; expected a name that ends in .html")
    records, broken = read_all(Path(folder) for folder in folders)
    if not path.parent.is_dir():
        raise InputError(f"the report cannot be written: there is no folder {path.parent}")
    page = render(records, broken, by=by, baseline=baseline)
    write_atomically(path, page.encode("utf-8", errors="replace"), durable=False)
    return len(records), list(broken.values())


def render(
    records: Sequence[Record],
    broken: dict[Path, str],
    *,
    by: Sequence[str] = (),
    baseline: str | None = None,
) -> str:
    """The page as text."""
    import jinja2

    import polyfed

    artist = _Artist(tuple(by))
    sections = [_results(records, broken, by, baseline)]
    figures = artist.overall(records)
    if figures:
        sections.append(Section("figures", "Learning, clients and cost", figures=figures))
    elif records:
        sections[0].words.append("No round has been measured yet, so there is nothing to draw.")
    sections += artist.partitions(records)
    sections += artist.by_method(records)
    if records:
        words = ["What left each client, what went wrong, and the settings of each run."] if len(records) > 1 else []
        shared = common_settings(records)
        runs = [{"name": r.name, "state": r.state, "parts": parts_of(r, shared)} for r in records]
        sections.append(Section("runs", "Each run" if len(records) > 1 else "The run", words, runs=runs))
        if len(records) > 1:
            settings = table_of(["key", "value"], sorted(shared.items()), names=2, label="Common settings")
            sections.append(
                Section("settings", "Settings", ["What all runs have in common; what differs stands at each run."])
            )
            sections[-1].tables.append(settings)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=False)
    template = environment.from_string((Path(__file__).parent / "page.html.j2").read_text(encoding="utf-8"))
    title, lead = _heading(records, broken)
    return template.render(
        title=title,
        lead=lead,
        sections=sections,
        warnings=artist.notes,
        version=polyfed.__version__,
        colors=COLORS,
        dark_colors=DARK_COLORS,
    )


def _heading(records: Sequence[Record], broken: dict[Path, str]) -> tuple[str, str]:
    methods = sorted({record.method for record in records})
    data = sorted({record.dataset for record in records})
    states = {state: sum(record.state == state for record in records) for state in STATES}
    told = [f"{count} {state}" for state, count in states.items() if count]
    told += [f"{len(broken)} broken"] if broken else []
    if len(records) == 1 and not broken:
        record = records[0]
        done = f"{len(record.rounds)} of {record.planned} rounds"
        why = f": {record.reason}" if record.reason else ""
        return record.name, f"{record.method} on {record.dataset}, seed {record.seed}; {record.state}, {done}{why}"
    count = len(records) + len(broken)
    what = f"{', '.join(methods)} on {', '.join(data)}; " if records else ""
    return f"Report on {count} run{'s' if count != 1 else ''}", what + ", ".join(told)


def _results(records: Sequence[Record], broken: dict[Path, str], by: Sequence[str], baseline: str | None) -> Section:
    """The table over seeds of what is finished, and a line for every run."""
    from polyfed.comparison import compare_runs
    from polyfed.comparison.formats import cells_of, headings

    section = Section("results", "Results")
    finished = [record for record in records if record.state == "finished"]
    if finished:
        compared = compare_runs(
            [record.as_run() for record in finished], by=by or varying(finished), baseline=baseline
        )
        rows = [[cell(c.text, name=c.name, best=c.best) for c in cells_of(compared, row)] for row in compared.rows]
        caption = f"{compared.caption} Bold: best mean."
        section.tables.append(
            Table([cell(h.text, name=h.name) for h in headings(compared)], rows, caption, "Results over seeds")
        )
        section.after += compared.notes
    elif baseline is not None:
        raise InputError(f"there is no finished run to compare with the baseline '{baseline}'")
    if len(records) + len(broken) > 1 or not finished:
        section.tables.append(runs_table(records, broken))
    return section


class _Artist:
    """Draws the figures of a page; what cannot be drawn is noted."""

    def __init__(self, by: tuple[str, ...]) -> None:
        self.notes: list[str] = []
        self._by = by
        self._count = 0

    def _draw(self, kind: str, records: Sequence[Record], options: Options, title: str = "") -> Drawn:
        from markupsafe import Markup

        picture = figure_kinds.make(kind, records, options)
        self._count += 1
        # the only text that is not escaped by the template: made by matplotlib and written by an XML library
        svg = Markup(rendering.inline(picture, f"figure{self._count}"))
        rows = [[cell(_shown(value), name=isinstance(value, str)) for value in row] for row in picture.rows]
        first = picture.rows[0] if picture.rows else ()
        headings = [
            cell(text, name=at < len(first) and isinstance(first[at], str)) for at, text in enumerate(picture.columns)
        ]
        shown = rows if len(rows) <= MOST_NUMBERS else []
        return Drawn(kind, title or picture.title, picture.words, svg, headings, shown, len(rows))

    def overall(self, records: Sequence[Record]) -> list[Drawn]:
        """Figures over all runs; a kind for which no run has numbers is left out."""
        found = []
        for kind, options in OVERALL:
            try:
                found.append(self._draw(kind, records, Options(options.measure, options.against, self._by)))
            except InputError as error:
                if not str(error).startswith("no run "):
                    self.notes.append(str(error))
        return found

    def partitions(self, records: Sequence[Record]) -> list[Section]:
        """Each split of the data once, however many runs share it."""
        owners: dict[tuple[Any, ...], list[Record]] = {}
        for record in records:
            if record.shares:
                key = tuple((share.model, *sorted(share.train.items())) for share in record.shares)
                owners.setdefault(key, []).append(record)
        section = Section("data", "Who holds which data")
        for members in list(owners.values())[:MOST_ALIKE]:
            seeds = ", ".join(str(seed) for seed in sorted({record.seed for record in members}))
            whose = members[0].name if len(members) == 1 else f"{len(members)} runs, seed {seeds}"
            self._add(section, "partition", members[0], f"Who holds what: {whose}")
        if len(owners) > MOST_ALIKE:
            section.words.append(f"{len(owners)} different splits were used; the first {MOST_ALIKE} are drawn.")
        return [section] if section.figures else []

    def by_method(self, records: Sequence[Record]) -> list[Section]:
        """What only some methods leave: of each group of runs, the first that has it."""
        section = Section("method", "Inside the methods")
        for kind, needed in BY_METHOD.items():
            found = [
                next((r for r in group.records if any(n in r.told or r.artifacts(n) for n in needed)), None)
                for group in grouped(records, self._by)
            ]
            if kind in {"cka"}:  # its events alone hold no matrix
                found = [record for record in found if record is not None and record.artifacts("cka")]
            there = [record for record in found if record is not None]
            for record in there[:MOST_ALIKE]:
                self._add(section, kind, record, "")
            if len(there) > MOST_ALIKE:
                section.words.append(f"Of {len(there)} figures '{kind}', the first {MOST_ALIKE} are drawn.")
        return [section] if section.figures else []

    def _add(self, section: Section, kind: str, record: Record, title: str) -> None:
        try:
            drawn = self._draw(kind, [record], Options(), title)
            drawn.title = title or f"{drawn.title}: {record.name}"
            section.figures.append(drawn)
        except InputError as error:
            self.notes.append(str(error))


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
