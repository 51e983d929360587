"""Data partitions: every scheme behind one function, and test sets that match a partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyfed.data.arrays import Ints
from polyfed.data.class_partitions import check_classes_per_client, pathological, pfedhn
from polyfed.data.column_partition import by_column
from polyfed.data.flower_partitions import flower
from polyfed.data.given_partition import by_given
from polyfed.data.local_split import check_fraction, local_split
from polyfed.data.partition_file import Partition, read, save
from polyfed.data.partition_settings import SCHEMES, Option, Scheme, settings_of
from polyfed.data.random_partitions import dirichlet, iid
from polyfed.data.ratio_partition import dominance, ratio_of
from polyfed.errors import InputError

__all__ = ["SCHEMES", "Option", "Partition", "Scheme", "make", "matched_test", "read", "save", "validation_split"]

# PFLlib's batch size: it sets the smallest reasonable client if no batch size is given.
_DEFAULT_BATCH_SIZE = 10


def make(
    labels: Ints,
    classes: int,
    clients: int,
    settings: Mapping[str, object],
    *,
    test_fraction: float,
    rng: np.random.Generator,
    batch_size: int | None = None,
    validation_fraction: float = 0.0,
    columns: Mapping[str, npt.NDArray[Any]] | None = None,
    names: Sequence[str] | None = None,
) -> Partition:
    """Partition the samples by the scheme of `settings`, then split the samples of each client into train and test.

    `batch_size` only affects the smallest clients of an unbalanced `pathological` partition. `columns` has one
    value per sample, for the schemes `column` and `given`. `names` are the clients' names, if the user has set them.
    """
    name, options = settings_of(settings)
    labels = _validate_labels(labels, classes)
    check_fraction(test_fraction)
    check_fraction(test_fraction + validation_fraction, "data.test_fraction plus the validation fraction")
    if clients < 1:
        raise InputError(f"clients is {clients}, but at least 1 is needed")
    if name == "file":
        return read(Path(options["path"]), clients=clients, samples=len(labels))
    if clients > len(labels):
        raise InputError(
            f"data.partition: {len(labels)} samples are too few for {clients} clients, so client {len(labels)} would "
            "be empty; use fewer clients or more samples"
        )
    notes: list[str] = []
    scheme_notes: list[str] = []
    if name == "ratio" and options["reading"] == "split":
        test_fraction, validation_fraction, note = _split_fractions(options["ratio"])
        notes.append(note)
    least = min((batch_size or _DEFAULT_BATCH_SIZE) / (test_fraction or 1.0), len(labels) / (2 * clients))
    if name == "given":
        given, given_test = by_given(columns or {}, clients)
        if given_test is not None:
            _check_not_empty(given)
            return Partition(tuple(given), tuple(given_test), ())
        indices = given
    elif name == "column":
        indices, scheme_notes = by_column(columns or {}, str(options["column"]), clients, names)
    else:
        indices, scheme_notes = _assign_samples(name, options, labels, classes, clients, rng, least)
    _check_not_empty(indices)
    rest, test = local_split(indices, labels, test_fraction, rng)
    train, validation = local_split(rest, labels, validation_fraction / (1.0 - test_fraction), rng)
    notes += scheme_notes
    return Partition(tuple(train), tuple(test), tuple(notes), tuple(validation) if validation_fraction else ())


def _validate_labels(labels: Ints, classes: int) -> Ints:
    """Return the labels as int64. Raise `InputError` if there are none or if one is outside of the classes."""
    labels = np.asarray(labels, dtype=np.int64)
    if labels.ndim != 1 or len(labels) == 0:
        raise InputError(f"labels have shape {labels.shape}, but one label per sample and at least one are needed")
    if labels.min() < 0 or labels.max() >= classes:
        raise InputError(
            f"labels go from {labels.min()} to {labels.max()}, but with {classes} classes they must be "
            f"from 0 to {classes - 1}"
        )
    return labels


def _assign_samples(
    name: str,
    options: dict[str, Any],
    labels: Ints,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    least: float,
) -> tuple[list[Ints], list[str]]:
    """Run a scheme. Return the sample indices of each client, and notes."""
    if name == "iid":
        return iid(labels, clients, rng, **options), []
    if name == "dirichlet":
        return dirichlet(labels, classes, clients, rng, **options), []
    if name == "pathological":
        return pathological(labels, classes, clients, rng, least=least, **options)
    if name == "pfedhn":
        return pfedhn(labels, classes, clients, rng, **options)
    if name == "flower":
        return flower(labels, clients, rng, **options)
    if options["reading"] == "dominance":
        parts = ratio_of(options["ratio"])
        return dominance(labels, classes, clients, rng, parts=parts, groups=options["groups"])
    classes_per_client = options["classes_per_client"] or max(classes // 10, 1)
    check_classes_per_client(classes_per_client, classes)
    return pathological(
        labels,
        classes,
        clients,
        rng,
        classes_per_client=classes_per_client,
        variant="pfllib",
        balance=True,
        cover_all=False,
        least=least,
    )


def _split_fractions(ratio: Any) -> tuple[float, float, str]:
    """Return the test and validation fractions of a ratio train:validation:test, and a note for the user."""
    parts = ratio_of(ratio)
    if len(parts) != 3:
        raise InputError(
            f"data.partition.ratio has {len(parts)} parts, but reading 'split' needs three: train, validation, test"
        )
    note = (
        f"the ratio sets the local split, {parts[1]:.0%} validation and {parts[2]:.0%} test; "
        "data.test_fraction is ignored"
    )
    return parts[2], parts[1], note


def _check_not_empty(client_indices: list[Ints]) -> None:
    for client, indices in enumerate(client_indices):
        if len(indices) == 0:
            raise InputError(
                f"data.partition leaves client {client} without samples; use fewer clients, more samples or a less "
                "skewed partition"
            )


def validation_split(partition: Partition, labels: Ints, fraction: float, rng: np.random.Generator) -> Partition:
    """Return a partition whose test samples are a fraction of each client's training samples, stratified by class.

    The clients keep their remaining training samples. The test samples of the given partition are not used.
    """
    train, validation = local_split(list(partition.train), np.asarray(labels), fraction, rng)
    taken = sum(len(indices) for indices in validation)
    if taken == 0:
        raise InputError(
            f"data.validation is {fraction}, but no client has two training samples, so none can be held out; "
            "use fewer clients or more samples"
        )
    note = f"{taken:,} training samples are held out for validation (data.validation); test data is not used"
    return Partition(tuple(train), tuple(validation), (*partition.notes, note))


def matched_test(
    partition: Partition, train_labels: Ints, test_labels: Ints, classes: int, rng: np.random.Generator
) -> tuple[Ints, ...]:
    """Return test indices per client for `personal_test: matched`.

    The official test split is divided between the clients: each class in proportion to the number of training
    samples of this class that a client has. Test samples of a class without training samples are unused.
    """
    train_labels, test_labels = np.asarray(train_labels), np.asarray(test_labels)
    label_counts = np.stack([np.bincount(train_labels[indices], minlength=classes) for indices in partition.train])
    chunks: list[list[Ints]] = [[] for _ in partition.train]
    for label in range(classes):
        samples = rng.permutation(np.flatnonzero(test_labels == label))
        total = int(label_counts[:, label].sum())
        if total == 0:
            continue
        # floor(cumsum(fraction) * n) in integer arithmetic, so that rounding errors cannot move a cut.
        ends = np.cumsum(label_counts[:, label]) * len(samples) // total
        for client, chunk in enumerate(np.split(samples, ends[:-1])):
            if len(chunk):
                chunks[client].append(chunk)
    return tuple(np.sort(np.concatenate([np.empty(0, dtype=np.int64), *own])) for own in chunks)
