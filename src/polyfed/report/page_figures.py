"""Figures of the report: which figures a page shows, and each of them as SVG with its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from polyfed.comparison.table import sort_key
from polyfed.errors import InputError
from polyfed.report import figure_kinds, rendering
from polyfed.report.figure_spec import Options
from polyfed.report.run_groups import Group, by_setting, group_runs
from polyfed.report.run_record import RunRecord
from polyfed.report.run_tables import TableCell, cell

MAX_ROWS = 300  # of the data of a figure inside the page
MAX_PER_KIND = 6  # figures of one kind that show one run each
# events or artifacts that a figure of one run needs
NEEDED = {
    "synthetic": ("synthetic",),
    "features": ("features",),
    "tsne": ("guiding_vectors",),
    "cka": ("cka",),
    "inco": ("inco",),
    "layers": ("layers_up", "layers_down"),
}


@dataclass
class RenderedFigure:
    """A figure as the page shows it."""

    kind: str
    title: str
    caption: str
    svg: Any
    headings: list[TableCell]
    rows: list[list[TableCell]]
    count: int


class FigureRenderer:
    """Draws the figures of a page and collects messages about figures that cannot be drawn."""

    def __init__(self, records: Sequence[RunRecord], by: tuple[str, ...], baseline: str | None) -> None:
        self.notes: list[str] = []
        self.records = records
        self.groups = group_runs(records, by)
        self.settings = by_setting(self.groups)
        self._options = Options(by=by, baseline=baseline or "local")
        self.baseline = baseline
        self._count = 0
        measured = {kind for record in records for kind in record.accuracy}
        self.measures = [kind for kind in ("global", "personal") if kind in measured]  # the more telling one first

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

    def _try(
        self, kind: str, records: Sequence[RunRecord], options: Options, title: str = ""
    ) -> list[RenderedFigure]:
        """Return the figure, or nothing if no run has its data. Keep the message if the data is damaged."""
        try:
            return [self._draw(kind, records, options, title)]
        except InputError as error:
            if not str(error).startswith("no run "):
                self.notes.append(str(error))
            return []

    def results(self) -> list[RenderedFigure]:
        """Draw what compares methods: the gain over the baseline, and accuracies."""
        figures: list[RenderedFigure] = []
        if len(self.groups) < 2 or not self.measures:
            return figures
        options = [replace(self._options, measure=measure) for measure in self.measures]
        if self.baseline is not None:
            figures += self._try("gain", self.records, options[0])
        return figures + [figure for one in options for figure in self._try("methods", self.records, one)]

    def learning(self, records: Sequence[RunRecord]) -> list[RenderedFigure]:
        """Draw accuracy and loss by round."""
        options = [replace(self._options, measure=measure) for measure in self.measures]
        figures = [figure for one in options for figure in self._try("curves", records, one)]
        return figures + self._try("loss", records, self._options)

    def clients(self, records: Sequence[RunRecord]) -> list[RenderedFigure]:
        """Draw gains and accuracies of single clients."""
        figures: list[RenderedFigure] = []
        if self.baseline is not None:
            for measure in self.measures:
                figures += self._try("client-gain", records, replace(self._options, measure=measure))
        if not figures:
            figures += self._try("clients", records, self._options)
        return figures + self._try("architectures", records, self._options)

    def costs(self, records: Sequence[RunRecord]) -> list[RenderedFigure]:
        """Draw accuracy against bytes and seconds, and the time by phase."""
        figures: list[RenderedFigure] = []
        for against in ("bytes", "seconds"):
            for measure in self.measures[:1]:
                figures += self._try("cost", records, replace(self._options, measure=measure, against=against))
        return figures + self._try("phases", records, self._options)

    def sensitivity(self) -> list[RenderedFigure]:
        """Draw accuracy against a setting, if runs differ in one setting only and its values are numbers."""
        keys = {key for group in self.groups for key in group.values}
        numbers = all(sort_key(value)[0] == 0 for group in self.groups for value in group.values.values())
        if len(self.settings) < 2 or len(keys) != 1 or not numbers:
            return []
        options = [replace(self._options, measure=measure, by=tuple(keys)) for measure in self.measures]
        return [figure for one in options for figure in self._try("sensitivity", self.records, one)]

    def confusion(self) -> tuple[list[RenderedFigure], str]:
        """Draw a confusion matrix per group, and say how many were left out."""
        measured = [group for group in self.groups if any(record.confusion for record in group.records)]
        figures: list[RenderedFigure] = []
        for group in measured[:MAX_PER_KIND]:
            for measure in self.measures[:1]:
                options = replace(self._options, measure=measure)
                figures += self._try("confusion", group.records, options, f"Confusion matrix: {group.label}")
        return figures, _left_out("confusion", measured)

    def partitions(self) -> tuple[list[RenderedFigure], str]:
        """Draw each data partition once, even if several runs use it."""
        by_partition: dict[tuple[Any, ...], list[RunRecord]] = {}
        for record in self.records:
            if record.clients:
                key = tuple((client.name, *sorted(client.train_counts.items())) for client in record.clients)
                by_partition.setdefault(key, []).append(record)
        figures: list[RenderedFigure] = []
        for members in list(by_partition.values())[:MAX_PER_KIND]:
            title = f"Label distribution of clients{self._partition_name(members, len(by_partition))}"
            figures += self._try("partition", members[:1], self._options, title)
        return figures, _left_out("partition", list(by_partition))

    def _partition_name(self, members: Sequence[RunRecord], count: int) -> str:
        """Return what tells a partition from the others: seeds and settings."""
        if count == 1:
            return ""
        seeds = sorted({record.seed for record in members})
        name = f": seed {', '.join(map(str, seeds))}"
        settings = [
            setting
            for setting, groups in self.settings.items()
            if any(m in g.records for g in groups for m in members)
        ]
        return f"{name}, {settings[0]}" if len(self.settings) > 1 and len(settings) == 1 else name

    def of_one_run(self, kind: str) -> tuple[list[RenderedFigure], str]:
        """Draw figures that show one run: for each group of runs, the first run that has the data."""
        drawable: list[tuple[Group, RunRecord]] = []
        for group in self.groups:
            for record in group.records:
                if any(
                    record.artifacts(name) or (kind != "cka" and name in record.method_events)
                    for name in NEEDED[kind]
                ):
                    drawable.append((group, record))
                    break
        figures: list[RenderedFigure] = []
        for group, record in drawable[:MAX_PER_KIND]:
            for figure in self._try(kind, [record], self._options):
                seed = f", seed {record.seed}" if len(group.records) > 1 else ""
                figure.title += f": {group.label}{seed}"
                figures.append(figure)
        return figures, _left_out(kind, drawable)


def _left_out(kind: str, all_of_them: Sequence[object]) -> str:
    if len(all_of_them) <= MAX_PER_KIND:
        return ""
    return f"The first {MAX_PER_KIND} of {len(all_of_them)} {kind} figures are shown."


def _format(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
