"""`polyfed check`: check an experiment and show its clients, data and expected traffic, without running it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyfed.cli.arguments import CONFIG, OVERRIDES
from polyfed.cli.output import format_bytes, print_table, print_text
from polyfed.errors import InputError

if TYPE_CHECKING:
    from polyfed.cli.expected_traffic import TrafficEstimate
    from polyfed.config import Config
    from polyfed.federation.simulation import SimulatedFederation

BUNDLED = "scikit-learn"  # source of datasets that ship with it
ABSENT = (
    "  not here         The data is not on this machine. Numbers are those of the published dataset, with classes\n"
    "                   of equal size; `polyfed run` downloads the data, or set data.root.\n"
)
MAX_CLIENTS_SHOWN = 40  # more clients are summarised by model


@dataclass(frozen=True)
class ClientSummary:
    """Model and data of one client."""

    name: str
    model: str
    parameters: int
    train: int
    test: int
    classes: tuple[int, ...]


def check(
    config: CONFIG,
    overrides: OVERRIDES = None,
    tflops: Annotated[
        float | None,
        typer.Option(
            "--tflops",
            help="TFLOPS that your device reaches in training, to estimate the hours of the run.",
            show_default="as measured by `polyfed bench device`",
        ),
    ] = None,
) -> None:
    """Check an experiment without running it, and show data, clients, models, expected traffic and work.

    It does not need the data: if a known dataset is not on this machine, its published sizes are used. It imports the
    modules that your config names, because they may define its method, but no code of other people's run folders.

    Example: polyfed check fedl2g/table1-cifar100 --tflops 30
    """
    from polyfed.config import load_config
    from polyfed.config.early_checks import check_names
    from polyfed.config.trust import check_source_trusted

    if tflops is not None and not 0 < tflops < float("inf"):
        raise InputError(f"--tflops is {tflops}; expected a number above 0")
    parsed = load_config(config, overrides or [])
    check_source_trusted(parsed, config, remedy="read this code, then copy the config to a file of your own")
    check_names(parsed)
    from polyfed.cli.expected_traffic import estimate_traffic  # imports torch
    from polyfed.cli.work_output import print_work
    from polyfed.federation.data_stand_in import federation_without_data
    from polyfed.federation.workload import estimate_workload

    federation = federation_without_data(parsed)
    profiles = federation.profiles()
    federation.check(profiles)
    clients = client_summaries(federation)
    _print_data(federation, clients)
    _print_clients(clients)
    for note in federation.notes:
        print_text(f"Note: {note}")
    class_counts = [len(client.classes) for client in clients]
    traffic = estimate_traffic(federation.method, profiles, class_counts, parsed.per_round)
    _print_method(federation, parsed)
    _print_aggregation(federation, traffic["up"])
    _print_traffic(traffic, parsed)
    print_work(estimate_workload(federation, profiles), parsed, tflops)


def client_summaries(federation: SimulatedFederation) -> list[ClientSummary]:
    """Return model and data of every client."""
    import numpy as np

    labels = federation.dataset.train.labels.numpy()
    parameters = _parameter_counts(federation)
    tests = federation.matched_test if federation.matched_test is not None else federation.partition.test
    return [
        ClientSummary(
            name,
            spec.label,
            parameters[spec.label],
            len(train),
            len(test),
            tuple(int(c) for c in np.unique(labels[train])),
        )
        for name, spec, train, test in zip(
            federation.names, federation.specs, federation.partition.train, tests, strict=True
        )
    ]


def _parameter_counts(federation: SimulatedFederation) -> dict[str, int]:
    """Return the number of trainable parameters of every architecture."""
    from polyfed.core.rounds import one_torch_thread
    from polyfed.models.training_cost import training_cost

    with one_torch_thread():
        return {
            spec.label: training_cost(spec, federation.shape, federation.classes).parameters
            for spec in dict.fromkeys(federation.specs)
        }


def _print_data(federation: SimulatedFederation, clients: Sequence[ClientSummary]) -> None:
    from polyfed.data.stand_in import SOURCE

    data, config = federation.dataset, federation.config
    shape = "x".join(str(size) for size in data.shape)
    vocabulary = f" from a vocabulary of {data.vocabulary:,}" if data.vocabulary else ""
    held = sum(client.train for client in clients)
    if federation.matched_test is None:
        held += sum(client.test for client in clients)
    total = len(data.train.labels)
    used = "" if held == total else f" ({held:,} of them held by clients)"
    test = f"{len(data.test.labels):,} test" if data.test is not None else "no test split"
    files = "" if data.source in (BUNDLED, SOURCE) else f", {data.source}"
    if " of " in data.source:  # fewer classes or samples than the published dataset has
        files += ", a subset of the published dataset"
    print_text(
        f"Dataset {data.name}\n"
        f"  sample           {data.kind}, {shape}{vocabulary}\n"
        f"  classes          {data.classes}: {format_names(data.class_names)}\n"
        f"  samples          {total:,} training{used}, {test}\n"
        f"  source           {_place_of_data(config)}{files}\n"
        f"{ABSENT if data.source == SOURCE else ''}"
        f"  per client       {format_spread([c.train for c in clients])} training samples, "
        f"{format_spread([len(c.classes) for c in clients])} classes (min, median, max)"
    )


def _place_of_data(config: Config) -> str:
    """Return where the dataset comes from: a folder, scikit-learn or the Hugging Face hub."""
    from polyfed.data.catalogue import known_dataset
    from polyfed.data.dataset import is_cached
    from polyfed.data.locations import locate
    from polyfed.federation.simulation import file_format

    root = Path(config.data.root).expanduser() if config.data.root else None
    if root is not None and is_cached(root):
        return str(root)
    return locate(known_dataset(config.data.dataset, root=root, how=file_format(config)), root).name


def format_names(names: Sequence[str], limit: int = 12) -> str:
    """Join names; of many, show the first ones."""
    return ", ".join(names) if len(names) <= limit else f"{', '.join(names[: limit - 1])}, ..., {names[-1]}"


def _print_clients(clients: Sequence[ClientSummary]) -> None:
    if len(clients) <= MAX_CLIENTS_SHOWN:
        print_table(
            ["client", "model", "parameters", "train", "test", "classes held"],
            [[c.name, c.model, f"{c.parameters:,}", c.train, c.test, format_ranges(c.classes)] for c in clients],
            right=(2, 3, 4),
        )
        return
    by_model: dict[str, list[ClientSummary]] = {}
    for client in clients:
        by_model.setdefault(client.model, []).append(client)
    print_table(
        ["model", "clients", "parameters", "train (min, median, max)", "test", "classes held"],
        [
            [
                model,
                len(members),
                f"{members[0].parameters:,}",
                format_spread([client.train for client in members]),
                format_spread([client.test for client in members]),
                format_spread([len(client.classes) for client in members]),
            ]
            for model, members in by_model.items()
        ],
        right=range(1, 6),
    )


def format_spread(values: Sequence[int]) -> str:
    """Format minimum, median and maximum."""
    return f"{min(values)}, {statistics.median(values):g}, {max(values)}"


def format_ranges(classes: Sequence[int]) -> str:
    """Format sorted numbers as ranges, such as '0, 2-5, 9'."""
    ranges: list[list[int]] = []
    for label in classes:
        if ranges and label == ranges[-1][1] + 1:
            ranges[-1][1] = label
        else:
            ranges.append([label, label])
    return ", ".join(str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in ranges) or "none"


def _print_method(federation: SimulatedFederation, config: Config) -> None:
    method = federation.method
    title = (type(method).__doc__ or method.name).strip().partition("\n")[0]
    needs = ", ".join(method.requirements().names()) or "nothing"
    print_text(
        f"{title}\n"
        f"  requires         {needs} (satisfied by these clients)\n"
        f"  client uploads   {method.sends.up}\n"
        f"  client downloads {method.sends.down}\n"
        f"  participation    {config.per_round} of {config.clients} clients in each of {config.rounds} rounds"
    )
    for protection in federation.guard.protections if federation.guard is not None else ():
        if protection.sigma is None:
            noise = "noise scaled by measured sensitivity"
        else:
            noise = f"noise with standard deviation {protection.sigma:.4g} on every number"
        planned = "" if protection.planned is None else f", for at most {protection.planned} releases by a client"
        guarantee = "no guarantee" if protection.measured else f"guarantee for {protection.guarantee}"
        print_text(f"  protected        {protection.field}, every {protection.unit}: {noise}{planned}")
        print_text(f"                   {guarantee}")


def _print_aggregation(federation: SimulatedFederation, uploads: TrafficEstimate) -> None:
    """Print which uploads the aggregation rule combines, unless it is the plain mean."""
    from polyfed.federation.aggregation_check import other_uploads

    rule, method = federation.config.aggregation.name, federation.method
    if federation.config.aggregation.secure:
        print_text(
            "  aggregation      secure sums: the server sees sums over clients, but no reply of a single client"
        )
        return
    if rule == "mean":
        return
    others = other_uploads(method)
    excluded = f"; not for {', '.join(others)}" if others else ""
    size = format_bytes(uploads.total.size)
    print_text(
        f"  aggregation      {rule} over clients for {', '.join(method.averaged)}{excluded}\n"
        f"                   the server keeps all replies of a round in memory, up to {size}"
    )


def _print_traffic(traffic: dict[str, TrafficEstimate], config: Config) -> None:
    rows: list[list[Any]] = []
    for way, estimate in traffic.items():
        unknown = estimate.total.unknown_fields
        extra = f" + {', '.join(unknown)} (size not known in advance)" if unknown else ""
        sizes = (estimate.mean, estimate.total.size, estimate.total.size * config.rounds)
        rows.append([way, *(format_bytes(size) + extra for size in sizes)])
    print_table(["upper bound", "per client (mean)", "per round", "per run"], rows, right=(1, 2, 3))
    print_text("The bounds count the tensors of one call of every step in a round, without the message encoding.")


COMMANDS = {"check": check}
