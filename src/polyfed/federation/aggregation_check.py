"""Whether the aggregation rule of a config works with its method and clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyfed.config import Config
from polyfed.core.aggregation import LEAST_HOLDERS, MEAN, Aggregation
from polyfed.core.method import Method
from polyfed.core.step import uploads_of
from polyfed.errors import InputError

WEIGHTS = frozenset({"samples"})  # uploads that only weight a mean


def aggregation_rule(config: Config) -> Aggregation:
    """Return the rule of a config. With secure sums it is the mean: clients clip their updates themselves."""
    settings = config.aggregation
    return MEAN if settings.secure else Aggregation(settings.name, settings.share, settings.norm, settings.keep)


def check_aggregation(config: Config, method: Method, working_methods: Callable[[], Sequence[str]]) -> None:
    """Raise InputError if the aggregation rule has no meaning for the method or the number of clients."""
    rule = aggregation_rule(config)
    if rule.is_mean:
        return
    title = type(method).__name__
    if not method.averaged:
        working = working_methods()
        advice = f"use a method that does ({', '.join(working)}), or " if working else ""
        raise InputError(
            f"aggregation is {rule.name}, but {title} takes no mean over clients that it could replace; {advice}set "
            "aggregation: mean"
        )
    parts = method.needs.sub_models or config.splitting != "none"
    if rule.name == "geometric-median" and parts:
        raise InputError(
            f"aggregation {rule.name} compares whole replies, but the clients of {title} train different parts of "
            "one model; use krum, median, trimmed-mean or norm-clipped"
        )
    if rule.name == "krum" and config.splitting == "architecture":
        raise InputError(
            "aggregation krum compares replies, but with splitting: architecture clients of different architectures "
            "have nothing in common; use median, trimmed-mean or norm-clipped"
        )
    clients = config.per_round
    least = rule.outvoted(clients) + LEAST_HOLDERS if rule.name == "krum" else LEAST_HOLDERS
    if clients < least:
        share = f" with share {rule.share:g}" if rule.name == "krum" else ""
        raise InputError(
            f"aggregation {rule.name}{share} needs the replies of at least {least} clients, but {clients} take part "
            "in a round; set aggregation: mean, or select more clients"
        )


def other_uploads(method: Method) -> list[str]:
    """Return the uploaded fields that an aggregation rule does not combine, other than weights of means."""
    return [name for name in uploads_of(method) if name not in method.averaged and name not in WEIGHTS]
