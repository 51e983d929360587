"""Confusion matrices: samples by true and predicted class, one panel per group of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from polyfed.errors import InputError
from polyfed.report.drawing import SMALL, label_positions, shorten, value_label
from polyfed.report.figure_spec import WIDTH, Cell, FigureSpec, Options
from polyfed.report.run_groups import Group, group_runs
from polyfed.report.run_record import RunRecord
from polyfed.report.styles import sequential

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

    Array = np.ndarray[Any, Any]

MAX_NUMBERED = 12  # classes of a matrix whose cells hold numbers
MAX_PANELS = 12
WHERE = {"personal": "the clients' own held-out data", "global": "the common test set"}


def confusion(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Show how often each class was predicted as each other, in per cent of the true class."""
    import numpy as np

    panels: list[tuple[Group, Array]] = []
    for group in group_runs(records, options.by):
        matrices = [np.array(record.confusion[options.measure]) for record in _measured(group, options)]
        if matrices and len({matrix.shape for matrix in matrices}) == 1 and matrices[0].ndim == 2:
            panels.append((group, np.sum(matrices, axis=0)))
    if not panels:
        raise InputError(f"no run has a {options.measure} confusion matrix; evaluate.metrics=[confusion] records it")
    names = next((record.class_names for record in records if record.class_names), [])
    rows: list[tuple[Cell, ...]] = [
        (group.label, _name(names, true), _name(names, predicted), int(count))
        for group, matrix in panels
        for (true, predicted), count in np.ndenumerate(matrix)
    ]
    shown = panels[:MAX_PANELS]
    columns = min(2, len(shown))
    lines = math.ceil(len(shown) / columns)
    side = 1.4 if columns == 2 else 2.8  # of a panel, in inches

    def draw(figure: Figure) -> None:
        grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
        for axes in list(grid.flat)[len(shown) :]:
            axes.set_visible(False)
        for axes, (group, matrix) in zip(grid.flat, shown, strict=False):
            fractions = matrix / np.maximum(1, matrix.sum(axis=1, keepdims=True))
            axes.imshow(fractions, vmin=0, vmax=1, cmap=sequential(), interpolation="none")
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0)
            labels = [_name(names, label) for label in range(len(matrix))]
            label_positions(axes, labels, axis="x", room=side)
            label_positions(axes, labels, axis="y", room=side)
            title = shorten(group.label, 22 if columns == 2 else 44)
            value_label(axes, title if len(shown) > 1 else "true class")
            if len(matrix) <= MAX_NUMBERED and columns == 1:
                for (true, predicted), fraction in np.ndenumerate(fractions):
                    if fraction >= 0.005:
                        text = f"{100 * fraction:.0f}"
                        axes.text(predicted, true, text, ha="center", va="center", fontsize=SMALL)
        figure.supxlabel("predicted class", fontsize=7.5)

    caption = (
        f"Test samples of {WHERE[options.measure]}, in per cent of the true class, summed over clients and seeds."
    )
    if columns == 2:
        caption += " Rows are true classes."
    if len(panels) > MAX_PANELS:
        caption += f" The first {MAX_PANELS} of {len(panels)} are drawn."
    size = (WIDTH, 0.5 + (side + 0.25) * lines)
    title = f"Confusion matrix, {options.measure} test data" if len(shown) == 1 else "Confusion matrices"
    return FigureSpec(title, caption, ("runs", "true class", "predicted class", "samples"), rows, draw, size)


def _measured(group: Group, options: Options) -> list[RunRecord]:
    return [record for record in group.records if options.measure in record.confusion]


def _name(names: Sequence[str], label: int) -> str:
    return names[label] if label < len(names) else str(label)
