"""`polyfed check`: everything that can be said about a run before it runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from polyfed.cli.output import put, put_table, size
from polyfed.cli.run import CONFIG, OVERRIDES

if TYPE_CHECKING:
    from polyfed.cli.expected_traffic import Traffic
    from polyfed.config import Config
    from polyfed.federation.simulation import SimulatedFederation

MOST_CLIENTS = 40  # more are summed up by model


@dataclass(frozen=True)
class Share:
    """What one client has."""

    name: str
    model: str
    params: int
    train: int
    test: int
    classes: tuple[int, ...]


def check(config: CONFIG, overrides: OVERRIDES = None) -> None:
    """Check an experiment without running it: clients, models, data, and what will leave each client."""
    from polyfed.cli.expected_traffic import expected
    from polyfed.config import load_config
    from polyfed.federation import simulation

    chosen = load_config(config, overrides or [])
    made = simulation.build_federation(chosen)
    profiles = made.profiles()
    made.check(profiles)
    shares = shares_of(made)
    _put_shares(shares)
    for note in made.partition.notes:
        put(f"Note: {note}")
    traffic = expected(made.method, profiles, [len(share.classes) for share in shares], chosen.per_round)
    _put_method(made, chosen)
    _put_traffic(traffic, chosen)


def shares_of(federation: SimulatedFederation) -> list[Share]:
    """Model and data of every client."""
    import numpy as np

    labels = federation.dataset.train.labels.numpy()
    params = _params(federation)
    tests = federation.matched_test if federation.matched_test is not None else federation.partition.test
    return [
        Share(
            name,
            spec.label,
            params[spec.label],
            len(train),
            len(test),
            tuple(int(c) for c in np.unique(labels[train])),
        )
        for name, spec, train, test in zip(
            federation.names, federation.specs, federation.partition.train, tests, strict=True
        )
    ]


def _params(federation: SimulatedFederation) -> dict[str, int]:
    import torch

    from polyfed.models import build

    found: dict[str, int] = {}
    for spec in federation.specs:
        if spec.label not in found:
            with torch.device("meta"):
                model = build(spec, shape=federation.dataset.shape, classes=federation.dataset.classes)
            found[spec.label] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return found


def _put_shares(shares: Sequence[Share]) -> None:
    if len(shares) <= MOST_CLIENTS:
        put_table(
            ["client", "model", "parameters", "train", "test", "classes held"],
            [[s.name, s.model, f"{s.params:,}", s.train, s.test, ranges(s.classes)] for s in shares],
            right=(2, 3, 4),
        )
        return
    by_model: dict[str, list[Share]] = {}
    for share in shares:
        by_model.setdefault(share.model, []).append(share)
    put_table(
        ["model", "clients", "parameters", "train (least, median, most)", "test", "classes held"],
        [
            [
                model,
                len(members),
                f"{members[0].params:,}",
                spread([s.train for s in members]),
                spread([s.test for s in members]),
                spread([len(s.classes) for s in members]),
            ]
            for model, members in by_model.items()
        ],
        right=range(1, 6),
    )


def spread(values: Sequence[int]) -> str:
    return f"{min(values)}, {statistics.median(values):g}, {max(values)}"


def ranges(classes: Sequence[int]) -> str:
    """0, 2-5, 9: neighbours are drawn together."""
    parts: list[list[int]] = []
    for label in classes:
        if parts and label == parts[-1][1] + 1:
            parts[-1][1] = label
        else:
            parts.append([label, label])
    return ", ".join(str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in parts) or "none"


def _put_method(federation: SimulatedFederation, config: Config) -> None:
    method = federation.method
    title = (type(method).__doc__ or method.name).strip().partition("\n")[0]
    needs = ", ".join(method.needs.names()) or "nothing"
    put(
        f"{title}\n"
        f"  requires              {needs} (holds for these clients)\n"
        f"  leaves each client    {method.sends.up}\n"
        f"  comes to each client  {method.sends.down}\n"
        f"  takes part            {config.per_round} of {config.clients} clients in each of {config.rounds} rounds"
    )
    for one in federation.guard.protections if federation.guard is not None else ():
        deviation = (
            "by measured sensitivity" if one.sigma is None else f"of deviation {one.sigma:.4g} on every number"
        )
        planned = "" if one.planned is None else f", for {one.planned} releases by a client at most"
        put(f"  protected             {one.field}, every {one.unit}: noise {deviation}{planned}")
        put(
            f"                        guarantee for {one.guarantee}"
            if not one.measured
            else " " * 24 + "no guarantee"
        )


def _put_traffic(traffic: dict[str, Traffic], config: Config) -> None:
    rows: list[list[Any]] = []
    for way, amounts in traffic.items():
        unknown = amounts.total.open
        extra = f" + {', '.join(unknown)} (depends)" if unknown else ""
        per_run = amounts.total.size * config.rounds
        rows.append([way, size(amounts.mean) + extra, size(amounts.total.size) + extra, size(per_run) + extra])
    put_table(["bytes, at most", "a client (mean)", "a round", "the run"], rows, right=(1, 2, 3))
    put("Tensors of one call of every step in a round; the encoding of messages comes on top.")


COMMANDS = {"check": check}
