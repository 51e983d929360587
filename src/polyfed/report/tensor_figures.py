"""Figures of tensors that methods keep beside their events: CKA matrices, guiding vectors, synthetic images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed.errors import InputError
from polyfed.report.figure_spec import Cell, Options, Picture, legend, look, whole_rounds
from polyfed.report.run_record import Record, clean

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

    Array = np.ndarray[Any, Any]

MOST_ROUNDS = 12  # of guiding vectors in one map
MOST_POINTS = 800  # features in one map
MOST_IMAGES = 8  # of a class
MOST_CLASSES = 20
SEED = 0  # of the t-SNE


def _load(path: Path) -> dict[str, Array]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def _chosen(record: Record, kind: str, options: Options, who: str) -> tuple[int, dict[str, Array]]:
    """The tensors of the round asked for, or of the last."""
    kept = record.artifacts(kind)
    if not kept:
        raise InputError(f"{record.path} has no {kind}-*.safetensors in its artifacts; {who}")
    if options.round is None:
        number, path = kept[-1]
    else:
        found = dict(kept)
        if options.round not in found:
            there = ", ".join(str(number) for number in found)
            raise InputError(f"--round is {options.round}, but {record.path} kept {kind} of rounds {there}")
        number, path = options.round, found[options.round]
    return number, _load(path)


def cka(records: Sequence[Record], options: Options) -> Picture:
    """How similar the clients' features are: CKA of every two clients, a panel per stage."""
    record = records[0]
    number, stages = _chosen(record, "cka", options, "a method that compares features keeps them")
    panels = {clean(name, 40): matrix for name, matrix in sorted(stages.items())}
    for name, matrix in panels.items():
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise InputError(f"'{name}' of {record.path}'s CKA has the shape {matrix.shape}, expected a square")
    rows: list[tuple[Cell, ...]] = [
        (name, i, j, float(matrix[i, j])) for name, matrix in panels.items() for i, j in _pairs(len(matrix))
    ]
    means = {
        name: float(matrix[~_diagonal(len(matrix))].mean()) if len(matrix) > 1 else 1.0
        for name, matrix in panels.items()
    }
    columns = min(2, len(panels))
    lines = math.ceil(len(panels) / columns)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
        image = None
        for axes, (name, matrix) in zip(grid.flat, panels.items(), strict=False):
            image = axes.imshow(matrix, vmin=0, vmax=1, interpolation="nearest")
            axes.set_title(f"{name} (mean {means[name]:.2f})")
            whole_rounds(axes)
            axes.yaxis.get_major_locator().set_params(integer=True)
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_visible(False)
        figure.supxlabel("client", fontsize=8)
        figure.supylabel("client", fontsize=8)
        if image is not None:
            figure.colorbar(image, ax=grid, label="CKA", location="top", shrink=0.6, aspect=30, pad=0.02)

    words = f"Linear CKA between the features of every two clients after round {number}; 1 means alike. "
    words += "Mean off the diagonal: "
    words += "; ".join(f"{name} {mean:.2f}" for name, mean in means.items())
    size = (3.6, 0.7 + (1.85 if columns == 2 else 3.1) * lines)
    return Picture("CKA between clients", words + ".", ("stage", "client", "other", "CKA"), rows, draw, size)


def _pairs(n: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(n) for j in range(n)]


def _diagonal(n: int) -> Array:
    import numpy as np

    return np.eye(n, dtype=bool)


def tsne(records: Sequence[Record], options: Options) -> Picture:
    """Guiding vectors on their way over the rounds, in two dimensions."""
    import numpy as np

    record = records[0]
    kept = record.artifacts("guiding_vectors")
    last, _ = _chosen(record, "guiding_vectors", options, "fedl2g keeps them")
    kept = [pair for pair in kept if pair[0] <= last]
    thinned = sorted({round(at) for at in np.linspace(0, len(kept) - 1, min(MOST_ROUNDS, len(kept)))})
    rounds: list[int] = []
    classes: list[int] = []
    vectors: list[Array] = []
    for number, path in (kept[at] for at in thinned):
        tensors = _load(path)
        if "vectors" not in tensors or len(tensors["vectors"]) != len(tensors.get("classes", ())):
            raise InputError(f"{path} does not hold as many classes as vectors")
        vectors.append(tensors["vectors"].reshape(len(tensors["classes"]), -1))
        classes += [int(label) for label in tensors["classes"]]
        rounds += [number] * len(tensors["classes"])
    if len(classes) < 4:
        raise InputError(f"{record.path} kept {len(classes)} guiding vectors; a t-SNE needs at least 4")
    perplexity = min(30.0, (len(classes) - 1) / 3)
    places = _flat_map(np.concatenate(vectors).astype(np.float64), perplexity)
    rows: list[tuple[Cell, ...]] = [
        (number, label, float(x), float(y)) for number, label, (x, y) in zip(rounds, classes, places, strict=True)
    ]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for at, label in enumerate(sorted(set(classes))):
            own = [row for row in rows if row[1] == label]
            xs, ys = [float(row[2] or 0) for row in own], [float(row[3] or 0) for row in own]
            style = look(at)
            axes.plot(xs, ys, color=style.color, lw=0.7, alpha=0.5, marker=".", ms=2.5)
            axes.plot(xs[-1:], ys[-1:], style.marker, color=style.color, ms=7)
            name = record.class_names[label] if label < len(record.class_names) else str(label)
            axes.annotate(name, (xs[-1], ys[-1]), xytext=(6, 2), textcoords="offset points", fontsize=7)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.margins(0.12)

    way = (
        f" from round {rounds[0]} to round {rounds[-1]}, where the large marks are" if rounds[0] < rounds[-1] else ""
    )
    words = (
        f"t-SNE (seed {SEED}, perplexity {perplexity:.3g}) of the guiding vectors of {len(set(classes))} "
        f"classes{way or f' after round {rounds[-1]}'}. Distances between far points mean little in such a map."
    )
    return Picture("Guiding vectors", words, ("round", "class", "x", "y"), rows, draw, (3.6, 3.6))


def features(records: Sequence[Record], options: Options) -> Picture:
    """Features of test samples in two dimensions, by class: whether clients agree about what a class looks like."""
    import numpy as np

    record = records[0]
    number, kept = _chosen(record, "features", options, "evaluate.features keeps them")
    parts = [kept.get(name) for name in ("vectors", "classes", "clients")]
    if any(part is None or part.ndim < 1 or len(part) != len(kept["classes"]) for part in parts):
        raise InputError(f"the features of {record.path} are not vectors with a class and a client each")
    if len(kept["classes"]) < 4:
        raise InputError(f"{record.path} kept {len(kept['classes'])} features; a t-SNE needs at least 4")
    count = len(kept["classes"])
    at = np.unique(np.linspace(0, count - 1, min(MOST_POINTS, count)).round().astype(int))
    perplexity = min(30.0, (len(at) - 1) / 3)
    places = _flat_map(kept["vectors"][at].reshape(len(at), -1).astype(np.float64), perplexity)
    rows: list[tuple[Cell, ...]] = [
        (int(client), int(label), float(x), float(y))
        for client, label, (x, y) in zip(kept["clients"][at], kept["classes"][at], places, strict=True)
    ]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for nth, label in enumerate(sorted({int(row[1] or 0) for row in rows})):
            own = [row for row in rows if row[1] == label]
            name = record.class_names[label] if label < len(record.class_names) else str(label)
            xs, ys = [float(row[2] or 0) for row in own], [float(row[3] or 0) for row in own]
            axes.plot(xs, ys, look(nth).marker, color=look(nth).color, ms=3, alpha=0.8, mew=0, label=name)
        axes.set_xticks([])
        axes.set_yticks([])
        legend(figure, title="class")

    clients = len({row[0] for row in rows})
    words = f"t-SNE (seed {SEED}, perplexity {perplexity:.3g}) of {len(at)} features of test samples of {clients} "
    words += (
        f"clients after round {number}, by class. Clients with models of their own need not agree where a class lies."
    )
    return Picture("Features of test samples", words, ("client", "class", "x", "y"), rows, draw, (3.6, 3.8))


def _flat_map(vectors: Array, perplexity: float) -> Array:
    import numpy as np
    from sklearn.manifold import TSNE

    method = "exact" if len(vectors) <= 200 else "barnes_hut"
    made = TSNE(2, perplexity=perplexity, init="pca", random_state=SEED, method=method)
    return np.asarray(made.fit_transform(vectors))


def synthetic(records: Sequence[Record], options: Options) -> Picture:
    """Images that a method made up in place of data, a row per class."""
    record = records[0]
    number, tensors = _chosen(record, "synthetic", options, "methods that make images keep them")
    images, labels = _images(tensors, record)
    shown = [
        (label, [at for at, other in enumerate(labels) if other == label][:MOST_IMAGES])
        for label in sorted(set(labels))[:MOST_CLASSES]
    ]
    width = max(len(members) for _, members in shown)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(shown), width, squeeze=False, gridspec_kw={"wspace": 0.04, "hspace": 0.04})
        for line, (label, members) in zip(grid, shown, strict=True):
            for axes in line:
                axes.axis("off")
            for axes, at in zip(line, members, strict=False):
                axes.imshow(images[at], cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            name = record.class_names[label] if label < len(record.class_names) else str(label)
            line[0].text(-0.15, 0.5, name, transform=line[0].transAxes, ha="right", va="center", fontsize=7.5)

    rows: list[tuple[Cell, ...]] = [(label, labels.count(label)) for label in sorted(set(labels))]
    words = (
        f"Synthetic images after round {number}, {width} of each of {len(shown)} classes at most, a row per class; "
    )
    words += f"{len(labels)} were kept."
    cell = min(0.5, 3.0 / width)
    size = (min(3.6, 0.6 + cell * width), 0.2 + cell * len(shown))
    return Picture("Synthetic images", words, ("class", "images"), rows, draw, size)


def _images(tensors: Mapping[str, Array], record: Record) -> tuple[list[Array], list[int]]:
    import numpy as np

    images, labels = tensors.get("images"), tensors.get("labels")
    if images is None or labels is None or images.ndim != 4 or len(images) != len(labels) or not len(labels):
        raise InputError(f"the synthetic images of {record.path} are not n images of channels, rows and columns")
    shaped = np.clip(images.astype(np.float32), 0, 1).transpose(0, 2, 3, 1)
    colour = shaped.shape[-1] >= 3
    return [one[..., :3] if colour else one[..., 0] for one in shaped], [int(label) for label in labels]
