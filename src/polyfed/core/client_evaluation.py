"""Evaluation of one client: its accuracies and metrics, on its own test samples and on common ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

from polyfed.core.client import Client
from polyfed.core.engine import Call
from polyfed.core.evaluation_reply import Way, check_metrics, evaluate_predictions, metrics_of_way
from polyfed.core.method import Method
from polyfed.core.model_probes import PROBES
from polyfed.core.payload import Value
from polyfed.errors import PayloadError
from polyfed.training import Samples

MEASURES = ("personal", "global")  # accuracies that an evaluation can measure


def check_measures(call: Call) -> None:
    """Raise PayloadError if an evaluation asks for a measure or a metric that does not exist."""
    for measure in call.measures:
        if measure not in MEASURES:
            raise PayloadError(
                f"unknown measure '{measure}'; allowed are {' and '.join(MEASURES)}, together or alone, and each "
                f"of {', '.join(PROBES)} alone"
            )
    check_metrics(call.metrics)


def measure_client(
    client: Client, method: Method, call: Call, global_test: Callable[[], Samples | None]
) -> dict[str, Value]:
    """Return the reply of a client that is ready to predict: counts and metrics of every way of predicting."""
    reply: dict[str, Value] = {}
    for measure in call.measures:
        samples = client.test if measure == "personal" else global_test()
        if samples is None:
            continue
        own = method.predict_personal if measure == "personal" else method.predict
        ways = {
            measure + (f" by {way}" if way else ""): Way(
                partial(predict, client), metrics_of_way(method, way, call.metrics)
            )
            for way, predict in {"": own, **method.also_predict()}.items()
        }
        with client.model.remembered_features() if len(ways) > 1 else contextlib.nullcontext():
            reply |= evaluate_predictions(ways, samples)
    return reply
