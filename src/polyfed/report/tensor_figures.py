"""Figures of tensors in `artifacts/`: CKA matrices, guiding vectors, features and synthetic images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed.errors import InputError
from polyfed.report.clean_text import clean
from polyfed.report.drawing import height_with_legend, label_positions, legend, shorten, value_label
from polyfed.report.figure_spec import WIDTH, Cell, FigureSpec, Options
from polyfed.report.run_record import RunRecord
from polyfed.report.styles import sequential, style_for

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Array = np.ndarray[Any, Any]

MAX_ROUNDS = 12  # of guiding vectors in one t-SNE
MAX_POINTS = 300  # features in one t-SNE
MAX_IMAGES = 8  # of a class
MAX_CLASSES = 20  # in a gallery or a legend
GAP = 1  # pixels between images


def _load(path: Path) -> dict[str, Array]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def _load_round(record: RunRecord, kind: str, options: Options, hint: str) -> tuple[int, dict[str, Array]]:
    """Load the tensors of the round that the user named, or of the last."""
    files = record.artifacts(kind)
    if not files:
        raise InputError(f"{record.path} has no {kind}-*.safetensors in its artifacts; {hint}")
    if options.round is None:
        number, path = files[-1]
    else:
        by_round = dict(files)
        if options.round not in by_round:
            rounds = ", ".join(str(number) for number in by_round)
            raise InputError(f"--round is {options.round}, but {record.path} has {kind} of rounds {rounds}")
        number, path = options.round, by_round[options.round]
    return number, _load(path)


def cka(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Plot the CKA between the features of every two clients, with a panel per stage."""
    record = records[0]
    number, stages = _load_round(record, "cka", options, "evaluate.cka writes them")
    panels = {clean(name, 40): matrix for name, matrix in sorted(stages.items())}
    for name, matrix in panels.items():
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise InputError(
                f"'{name}' of {record.path}'s CKA has the shape {matrix.shape}, expected a square matrix"
            )
    rows: list[tuple[Cell, ...]] = [
        (name, i, j, float(matrix[i, j])) for name, matrix in panels.items() for i, j in _pairs(len(matrix))
    ]
    means = {
        name: float(matrix[~_diagonal(len(matrix))].mean()) if len(matrix) > 1 else 1.0
        for name, matrix in panels.items()
    }
    columns = min(2, len(panels))
    lines = math.ceil(len(panels) / columns)

    side = 1.45 if columns == 2 else 2.6  # of a panel, in inches

    def draw(figure: Figure) -> None:
        grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
        image = None
        for axes, (name, matrix) in zip(grid.flat, panels.items(), strict=False):
            image = axes.imshow(matrix, vmin=0, vmax=1, cmap=sequential(), interpolation="none")
            value_label(axes, f"{shorten(name, 16 if columns == 2 else 30)}: {means[name]:.2f}")
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0)
            clients = [str(client) for client in range(len(matrix))]
            label_positions(axes, clients, axis="x", room=side)
            label_positions(axes, clients, axis="y", room=side)
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_visible(False)
        figure.supxlabel("client", fontsize=7.5)
        if image is not None:
            bar = figure.colorbar(image, ax=grid, label="CKA", location="right", shrink=0.6, aspect=25, pad=0.03)
            bar.outline.set_visible(False)

    caption = (
        f"Linear CKA between the features of every two clients after round {number}; 1 means equal up to rotation "
        "and scale. Above each panel: stage, and mean off the diagonal."
    )
    size = (WIDTH, 0.45 + (side + 0.3) * lines)
    return FigureSpec("CKA between clients", caption, ("stage", "client", "other", "CKA"), rows, draw, size)


def _pairs(n: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(n) for j in range(n)]


def _diagonal(n: int) -> Array:
    import numpy as np

    return np.eye(n, dtype=bool)


def tsne(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Plot a t-SNE of the guiding vectors and how they move over the rounds."""
    import numpy as np

    from polyfed.analysis.tsne import MIN_VECTORS, SEED, perplexity_for, tsne_embedding

    record = records[0]
    last, _ = _load_round(record, "guiding_vectors", options, "the method fedl2g writes them")
    files = [(number, path) for number, path in record.artifacts("guiding_vectors") if number <= last]
    chosen = sorted({round(index) for index in np.linspace(0, len(files) - 1, min(MAX_ROUNDS, len(files)))})
    rounds: list[int] = []
    classes: list[int] = []
    vectors: list[Array] = []
    for number, path in (files[index] for index in chosen):
        tensors = _load(path)
        if "vectors" not in tensors or len(tensors["vectors"]) != len(tensors.get("classes", ())):
            raise InputError(f"{path} does not hold as many classes as vectors")
        vectors.append(tensors["vectors"].reshape(len(tensors["classes"]), -1))
        classes += [int(label) for label in tensors["classes"]]
        rounds += [number] * len(tensors["classes"])
    if len(classes) < MIN_VECTORS:
        raise InputError(f"{record.path} has {len(classes)} guiding vectors; a t-SNE needs at least {MIN_VECTORS}")
    points = tsne_embedding(np.concatenate(vectors))
    rows: list[tuple[Cell, ...]] = [
        (number, label, float(x), float(y)) for number, label, (x, y) in zip(rounds, classes, points, strict=True)
    ]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for index, label in enumerate(sorted(set(classes))):
            xs, ys = _coordinates(rows, label)
            style = style_for(index)
            axes.plot(xs, ys, color=style.color, lw=0.7, alpha=0.5, marker=".", ms=2.5)
            axes.plot(xs[-1:], ys[-1:], style.marker, color=style.color, ms=7, label=_class_name(record, label))
        _without_scale(axes)
        if len(set(classes)) <= MAX_CLASSES:
            legend(figure, title="class")

    span = (
        f"from round {rounds[0]} to round {rounds[-1]} (large marks)"
        if rounds[0] < rounds[-1]
        else f"after round {rounds[-1]}"
    )
    caption = (
        f"t-SNE (seed {SEED}, perplexity {perplexity_for(len(classes)):.3g}) of the guiding vectors of "
        f"{len(set(classes))} classes {span}. Distances between far points have no meaning."
    )
    size = (WIDTH, _height(record, classes))
    return FigureSpec("Guiding vectors", caption, ("round", "class", "x", "y"), rows, draw, size)


def features(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Plot a t-SNE of features of test samples by class: it shows whether the clients' features of a class agree."""
    import numpy as np

    from polyfed.analysis.tsne import MIN_VECTORS, SEED, perplexity_for, tsne_embedding

    record = records[0]
    number, tensors = _load_round(record, "features", options, "evaluate.features writes them")
    parts = [tensors.get(name) for name in ("vectors", "classes", "clients")]
    if any(part is None or part.ndim < 1 or len(part) != len(tensors["classes"]) for part in parts):
        raise InputError(f"the features of {record.path} are not vectors with a class and a client each")
    count = len(tensors["classes"])
    if count < MIN_VECTORS:
        raise InputError(f"{record.path} has {count} features; a t-SNE needs at least {MIN_VECTORS}")
    chosen = np.unique(np.linspace(0, count - 1, min(MAX_POINTS, count)).round().astype(int))
    points = tsne_embedding(tensors["vectors"][chosen].reshape(len(chosen), -1))
    rows: list[tuple[Cell, ...]] = [
        (int(client), int(label), float(x), float(y))
        for client, label, (x, y) in zip(tensors["clients"][chosen], tensors["classes"][chosen], points, strict=True)
    ]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for index, label in enumerate(sorted({int(row[1] or 0) for row in rows})):
            xs, ys = _coordinates(rows, label)
            style, name = style_for(index), _class_name(record, label)
            axes.plot(xs, ys, style.marker, color=style.color, ms=3, alpha=0.8, mew=0, label=name)
        _without_scale(axes)
        if len({row[1] for row in rows}) <= MAX_CLASSES:
            legend(figure, title="class", markerscale=1.6)

    clients = len({row[0] for row in rows})
    caption = (
        f"t-SNE (seed {SEED}, perplexity {perplexity_for(len(chosen)):.3g}) of {len(chosen)} features of test "
        f"samples of {clients} clients after round {number}, by class. Clients with different models may place a "
        "class differently."
    )
    size = (WIDTH, _height(record, [int(row[1] or 0) for row in rows]))
    return FigureSpec("Features of test samples", caption, ("client", "class", "x", "y"), rows, draw, size)


def _without_scale(axes: Axes) -> None:
    """Hide ticks and spines: the axes of a t-SNE have no unit."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.margins(0.05)


def _height(record: RunRecord, classes: Sequence[int]) -> float:
    names = [_class_name(record, label) for label in sorted(set(classes))]
    return height_with_legend(3.4, names if len(names) <= MAX_CLASSES else ())


def _coordinates(rows: Sequence[tuple[Cell, ...]], label: int) -> tuple[list[float], list[float]]:
    """Return the x and y coordinates of the points of a class."""
    points = [row for row in rows if row[1] == label]
    return [float(row[2] or 0) for row in points], [float(row[3] or 0) for row in points]


def _class_name(record: RunRecord, label: int) -> str:
    return record.class_names[label] if label < len(record.class_names) else str(label)


def synthetic(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Show the synthetic images of a method, with a row per class."""
    record = records[0]
    number, tensors = _load_round(record, "synthetic", options, "methods that generate images write them")
    images, labels = _images(tensors, record)
    shown = [
        (label, [index for index, other in enumerate(labels) if other == label][:MAX_IMAGES])
        for label in sorted(set(labels))[:MAX_CLASSES]
    ]
    width = max(len(members) for _, members in shown)
    cell = min(0.42, 2.9 / width)  # inches

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.imshow(_mosaic([[images[index] for index in members] for _, members in shown]), interpolation="none")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set_xticks([])
        high = images[0].shape[0] + GAP
        names = [shorten(_class_name(record, label), 14) for label, _ in shown]
        axes.set_yticks([(line + 0.5) * high - GAP for line in range(len(shown))], names)

    rows: list[tuple[Cell, ...]] = [(label, labels.count(label)) for label in sorted(set(labels))]
    caption = f"Synthetic images after round {number}, a row per class."
    if sum(len(members) for _, members in shown) < len(labels):
        caption += f" {len(labels)} images were recorded; at most {width} of a class are shown."
    size = (WIDTH, 0.2 + cell * len(shown))
    return FigureSpec("Synthetic images", caption, ("class", "images"), rows, draw, size)


def _mosaic(lines: Sequence[Sequence[Array]]) -> Array:
    """Arrange images in lines, with transparent gaps. One picture is drawn much faster than one axis per image."""
    import numpy as np

    high, wide = lines[0][0].shape[:2]
    columns = max(map(len, lines))
    mosaic = np.zeros((len(lines) * (high + GAP) - GAP, columns * (wide + GAP) - GAP, 4), np.float32)
    for row, line in enumerate(lines):
        for column, image in enumerate(line):
            place = mosaic[row * (high + GAP) :, column * (wide + GAP) :][:high, :wide]
            place[..., :3] = image if image.ndim == 3 else image[..., None]
            place[..., 3] = 1
    return mosaic


def _images(tensors: Mapping[str, Array], record: RunRecord) -> tuple[list[Array], list[int]]:
    import numpy as np

    images, labels = tensors.get("images"), tensors.get("labels")
    if images is None or labels is None or images.ndim != 4 or len(images) != len(labels) or not len(labels):
        raise InputError(f"the synthetic images of {record.path} are not an array [images, channels, rows, columns]")
    shaped = np.clip(images.astype(np.float32), 0, 1).transpose(0, 2, 3, 1)
    in_colour = shaped.shape[-1] >= 3
    return [one[..., :3] if in_colour else one[..., 0] for one in shaped], [int(label) for label in labels]
