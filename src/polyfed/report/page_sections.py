"""Sections of the report: results, figures by topic or by setting, and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from polyfed.comparison import Comparison, compare_runs
from polyfed.comparison.conclusion import conclusion
from polyfed.comparison.formats import cells_of, headings
from polyfed.comparison.measures import ACCURACY, METRICS
from polyfed.comparison.runs import by_head
from polyfed.comparison.settings import shared_settings
from polyfed.comparison.table import AUTO, DESCRIPTIONS, NO_BASELINE
from polyfed.errors import InputError
from polyfed.report.page_figures import FigureRenderer, RenderedFigure
from polyfed.report.run_record import RunRecord
from polyfed.report.run_tables import Table, TableCell, cell

MAX_SETTINGS = 6  # with a section of their own
ONE_RUN = (
    ("features", "Features", "features"),
    ("cka", "Similarity of clients", "cka"),
    ("inco", "InCo's coefficients", "inco"),
    ("layers", "Layers", "layers"),
    ("tsne", "Guiding vectors", "guiding-vectors"),
)


@dataclass
class Section:
    """A section of the page."""

    id: str
    title: str
    text: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    figures: list[RenderedFigure] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    footnote: str = ""  # shown below the tables
    notes: list[str] = field(default_factory=list)  # shown after the footnote


def results_section(
    records: Sequence[RunRecord], by: Sequence[str], baseline: str
) -> tuple[Section, Comparison | None]:
    """Build the comparison of finished runs. Return its section without figures, and the comparison."""
    section = Section("results", "Results")
    finished = [record.as_run() for record in records if record.state == "finished"]
    if not finished:
        if baseline not in {AUTO, NO_BASELINE}:
            raise InputError(f"there is no finished run to compare with the baseline '{baseline}'")
        return section, None
    with_heads = [one for run in finished for one in (run, by_head(run)) if one is not None]
    compared = compare_runs(with_heads, by=list(by), baseline=baseline, metric=ACCURACY)
    # the best round is chosen on test data, which a report should not advertise
    shown = sorted((one for one in compared.measures if not one.best), key=lambda one: (not one.kind, one.kind))
    compared = replace(compared, measures=tuple(shown))
    rows = [[cell(c.text, name=c.name, best=c.best) for c in cells_of(compared, row)] for row in compared.rows]
    caption = f"{compared.caption} Bold: best mean."
    heads = [cell(h.text, name=h.name) for h in headings(compared)]
    section.tables.append(Table(heads, rows, caption, "Results over seeds", breaks=_breaks(compared)))
    section.notes += [f"{note[:1].upper()}{note[1:]}." for note in compared.notes]
    return section, compared


def _breaks(compared: Comparison) -> frozenset[int]:
    """Return the rows whose setting differs from that of the row before."""
    settings = [shared_settings(compared.keys, tuple(row.group.values())) for row in compared.rows]
    if compared.baseline is None or 2 * len(set(settings)) > len(settings):
        return frozenset()
    return frozenset(n for n in range(1, len(settings)) if settings[n] != settings[n - 1])


def figure_sections(renderer: FigureRenderer) -> list[Section]:
    """Build the sections with figures, without those that have none."""
    sections = _by_topic(renderer) if len(renderer.settings) < 2 else _by_setting(renderer)
    sections.append(_metrics(renderer))
    figures, note = renderer.partitions()
    sections.append(Section("data", "Data partition", [note] if note else [], figures=figures))
    figures, note = renderer.of_one_run("synthetic")
    sections.append(Section("synthetic", "Synthetic images", [note] if note else [], figures=figures))
    details = Section("method", "Inside the models")
    for kind, *_ in ONE_RUN:
        figures, note = renderer.of_one_run(kind)
        details.figures += figures
        details.text += [note] if note else []
    sections.append(details)
    return [section for section in sections if section.figures or section.tables]


def _by_topic(renderer: FigureRenderer) -> list[Section]:
    records = renderer.records
    return [
        Section("learning", "Learning curves", figures=renderer.learning(records)),
        Section("clients", "Clients", figures=renderer.clients(records)),
        Section("cost", "Cost", figures=renderer.costs(records)),
    ]


def _by_setting(renderer: FigureRenderer) -> list[Section]:
    """Build a section for each setting, since runs of different settings cannot be compared."""
    sections = [Section("settings-compared", "Settings compared", figures=renderer.sensitivity())]
    for number, (setting, groups) in enumerate(renderer.settings.items(), 1):
        if number > MAX_SETTINGS:
            break
        records = [record for group in groups for record in group.records]
        section = Section(f"setting-{number}", setting[:1].upper() + setting[1:] if setting else "Other runs")
        finished = [record.as_run() for record in records if record.state == "finished"]
        if any(run.result.method == renderer.baseline for run in finished):
            sentence = conclusion(compare_runs(finished, baseline=renderer.baseline))
            section.text += [sentence] if sentence else []
        section.figures = renderer.learning(records) + renderer.clients(records) + renderer.costs(records)
        sections.append(section)
    left_out = len(renderer.settings) - MAX_SETTINGS
    if left_out > 0:
        sections[-1].notes.append(f"{left_out} further settings have no section of their own.")
    return sections


def _metrics(renderer: FigureRenderer) -> Section:
    """Build a table of all recorded metrics for each kind of test data, and the confusion matrices."""
    section = Section("metrics", "Metrics")
    finished = [record.as_run() for record in renderer.records if record.state == "finished"]
    recorded = {name for run in finished for by in run.result.metrics.values() for name in by}
    names = [name for name in METRICS if name in recorded and name != ACCURACY]
    if names:
        by = list(dict.fromkeys(key for group in renderer.groups for key in group.values if key != "setting"))
        compared = [compare_runs(finished, by=by, baseline=None, metric=name) for name in (ACCURACY, *names)]
        for kind, where in (("global", "Common test set"), ("personal", "Clients' own held-out data")):
            table = _metrics_table(compared, kind, where)
            section.tables += [table] if table is not None else []
        described = [f"{text[:1].upper()}{text[1:]}." for name in names if (text := DESCRIPTIONS.get(name))]
        section.footnote = " ".join(["Accuracy in %.", *described, "Mean ± sample standard deviation over runs."])
    section.figures, note = renderer.confusion()
    section.text += [note] if note else []
    return section


def _metrics_table(compared: Sequence[Comparison], kind: str, where: str) -> Table | None:
    first = compared[0]
    heads = [cell(key, name=True) for key in first.keys]
    lines: list[list[TableCell]] = [[cell(row.group[key], name=True) for key in first.keys] for row in first.rows]
    for comparison in compared:
        measure = next((one for one in comparison.measures if one.kind == kind and not one.best), None)
        if measure is None or all(row.values[measure.key] is None for row in comparison.rows):
            continue
        heads.append(cell(METRICS[measure.metric].heading))
        for line, row in zip(lines, comparison.rows, strict=True):
            spread = row.values[measure.key]
            text = "-" if spread is None else f"{spread.mean:.{measure.digits}f}"
            if spread is not None and spread.std is not None:
                text += f" ± {spread.std:.{measure.digits}f}"
            line.append(cell(text, best=measure.key in row.best))
    if len(heads) <= len(first.keys) + 1:
        return None
    return Table(heads, lines, label=f"Metrics: {where}", title=where)
