"""The report: one self-contained HTML file about runs in any state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfed.comparison.table import AUTO, NO_BASELINE
from polyfed.errors import InputError
from polyfed.report import figure_kinds, rendering
from polyfed.report.figure_spec import COLORS, DARK_COLORS, Options
from polyfed.report.run_groups import group_runs, varying_settings
from polyfed.report.run_record import STATES, RunRecord, read_all
from polyfed.report.run_tables import Table, cell, common_settings, runs_table, sections_of, table_of
from polyfed.runs.atomic_files import write_atomically

MAX_ROWS = 300  # of the data of a figure inside the page
MAX_PER_KIND = 6  # figures of one kind that show one run each
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
# figures for some methods only: kind of figure, and the events or artifacts that it needs
BY_METHOD = {
    "layers": ("layers_up", "layers_down"),
    "inco": ("inco",),
    "cka": ("cka",),
    "tsne": ("guiding_vectors",),
    "features": ("features",),
    "synthetic": ("synthetic",),
}


@dataclass
class RenderedFigure:
    """A figure as the page shows it."""

    kind: str
    title: str
    caption: str
    svg: Any
    headings: list[Any]
    rows: list[list[Any]]
    count: int


@dataclass
class Section:
    """A section of the page."""

    id: str
    title: str
    text: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    figures: list[RenderedFigure] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # shown below the tables


def write_report(
    folders: Iterable[str | Path], out: str | Path, *, by: Sequence[str] = (), baseline: str = AUTO
) -> tuple[int, list[str]]:
    """Write the report on all runs in some folders. Return their number, and a message for each broken run."""
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
    records: Sequence[RunRecord],
    broken: dict[Path, str],
    *,
    by: Sequence[str] = (),
    baseline: str = AUTO,
) -> str:
    """Return the page as HTML."""
    import jinja2

    import polyfed

    renderer = _Renderer(tuple(by))
    sections = [_results(records, broken, by, baseline)]
    figures = renderer.overall(records)
    if figures:
        sections.append(Section("figures", "Learning, clients and cost", figures=figures))
    elif records:
        sections[0].text.append("No round has been evaluated yet, so there are no figures.")
    sections += renderer.partitions(records)
    sections += renderer.by_method(records)
    if records:
        text = ["Uploads, failures and settings of each run."] if len(records) > 1 else []
        shared = common_settings(records)
        runs = [{"name": r.name, "state": r.state, "sections": sections_of(r, shared)} for r in records]
        sections.append(Section("runs", "Runs" if len(records) > 1 else "Run", text, runs=runs))
        if len(records) > 1:
            settings = table_of(["key", "value"], sorted(shared.items()), names=2, label="Common settings")
            text = ["Settings that all runs have in common. Other settings are listed with each run."]
            sections.append(Section("settings", "Settings", text, tables=[settings]))
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=False)
    template = environment.from_string((Path(__file__).parent / "page.html.j2").read_text(encoding="utf-8"))
    title, lead = _heading(records, broken)
    return template.render(
        title=title,
        lead=lead,
        sections=sections,
        warnings=renderer.notes,
        version=polyfed.__version__,
        colors=COLORS,
        dark_colors=DARK_COLORS,
    )


def _heading(records: Sequence[RunRecord], broken: dict[Path, str]) -> tuple[str, str]:
    methods = sorted({record.method for record in records})
    data = sorted({record.dataset for record in records})
    states = {state: sum(record.state == state for record in records) for state in STATES}
    counts = [f"{count} {state}" for state, count in states.items() if count]
    counts += [f"{len(broken)} broken"] if broken else []
    if len(records) == 1 and not broken:
        record = records[0]
        progress = f"{len(record.rounds)} of {record.planned_rounds} rounds"
        reason = f": {record.reason}" if record.reason else ""
        subject = f"{record.method} on {record.dataset}, seed {record.seed}"
        return record.name, f"{subject}; {record.state}, {progress}{reason}"
    total = len(records) + len(broken)
    subject = f"{', '.join(methods)} on {', '.join(data)}; " if records else ""
    return f"Report on {total} run{'s' if total != 1 else ''}", subject + ", ".join(counts)


def _results(records: Sequence[RunRecord], broken: dict[Path, str], by: Sequence[str], baseline: str) -> Section:
    """Build the comparison of finished runs over seeds, and the table with a row for every run."""
    from polyfed.comparison import compare_runs
    from polyfed.comparison.formats import cells_of, headings

    section = Section("results", "Results")
    finished = [record for record in records if record.state == "finished"]
    if finished:
        compared = compare_runs(
            [record.as_run() for record in finished], by=by or varying_settings(finished), baseline=baseline
        )
        rows = [[cell(c.text, name=c.name, best=c.best) for c in cells_of(compared, row)] for row in compared.rows]
        caption = f"{compared.caption} Bold: best mean."
        section.tables.append(
            Table([cell(h.text, name=h.name) for h in headings(compared)], rows, caption, "Results over seeds")
        )
        section.notes += compared.notes
    elif baseline not in {AUTO, NO_BASELINE}:
        raise InputError(f"there is no finished run to compare with the baseline '{baseline}'")
    if len(records) + len(broken) > 1 or not finished:
        section.tables.append(runs_table(records, broken))
    return section


class _Renderer:
    """Draws the figures of a page and collects messages about figures that cannot be drawn."""

    def __init__(self, by: tuple[str, ...]) -> None:
        self.notes: list[str] = []
        self._by = by
        self._count = 0

    def _draw(self, kind: str, records: Sequence[RunRecord], options: Options, title: str = "") -> RenderedFigure:
        from markupsafe import Markup

        spec = figure_kinds.make(kind, records, options)
        self._count += 1
        # the only text that the template does not escape: made by matplotlib and written by an XML library
        svg = Markup(rendering.inline_svg(spec, f"figure{self._count}"))
        rows = [[cell(_format(value), name=isinstance(value, str)) for value in row] for row in spec.rows]
        first = spec.rows[0] if spec.rows else ()
        headings = [
            cell(text, name=column < len(first) and isinstance(first[column], str))
            for column, text in enumerate(spec.columns)
        ]
        shown = rows if len(rows) <= MAX_ROWS else []
        return RenderedFigure(kind, title or spec.title, spec.caption, svg, headings, shown, len(rows))

    def overall(self, records: Sequence[RunRecord]) -> list[RenderedFigure]:
        """Draw the figures over all runs, without kinds for which no run has data."""
        figures = []
        for kind, options in OVERALL:
            try:
                figures.append(self._draw(kind, records, Options(options.measure, options.against, self._by)))
            except InputError as error:
                if not str(error).startswith("no run "):
                    self.notes.append(str(error))
        return figures

    def partitions(self, records: Sequence[RunRecord]) -> list[Section]:
        """Draw each data partition once, even if several runs use it."""
        by_partition: dict[tuple[Any, ...], list[RunRecord]] = {}
        for record in records:
            if record.clients:
                key = tuple((client.model, *sorted(client.train_counts.items())) for client in record.clients)
                by_partition.setdefault(key, []).append(record)
        section = Section("data", "Data partition")
        for members in list(by_partition.values())[:MAX_PER_KIND]:
            seeds = ", ".join(str(seed) for seed in sorted({record.seed for record in members}))
            name = members[0].name if len(members) == 1 else f"{len(members)} runs, seed {seeds}"
            self._add(section, "partition", members[0], f"Label distribution of clients: {name}")
        if len(by_partition) > MAX_PER_KIND:
            section.text.append(f"The first {MAX_PER_KIND} of {len(by_partition)} different partitions are drawn.")
        return [section] if section.figures else []

    def by_method(self, records: Sequence[RunRecord]) -> list[Section]:
        """Draw the figures for some methods: for each group of runs, the first run that has the data."""
        section = Section("method", "Method-specific figures")
        for kind, needed in BY_METHOD.items():
            first = [
                next((r for r in group.records if any(n in r.method_events or r.artifacts(n) for n in needed)), None)
                for group in group_runs(records, self._by)
            ]
            drawable = [record for record in first if record is not None]
            if kind == "cka":  # its events hold no matrix
                drawable = [record for record in drawable if record.artifacts("cka")]
            for record in drawable[:MAX_PER_KIND]:
                self._add(section, kind, record, "")
            if len(drawable) > MAX_PER_KIND:
                section.text.append(f"The first {MAX_PER_KIND} of {len(drawable)} figures '{kind}' are drawn.")
        return [section] if section.figures else []

    def _add(self, section: Section, kind: str, record: RunRecord, title: str) -> None:
        try:
            figure = self._draw(kind, [record], Options(), title)
            figure.title = title or f"{figure.title}: {record.name}"
            section.figures.append(figure)
        except InputError as error:
            self.notes.append(str(error))


def _format(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
