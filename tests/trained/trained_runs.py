"""Small runs whose models tests load, export and start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polyfed import api
from polyfed.data.dataset import Dataset
from polyfed.runs.records import Result
from polyfed.trained.client import TrainedClient
from polyfed.trained.run_models import RunModels

RESNETS = {"group": ["tiny-resnet", "tiny-resnet@0.5"]}
SERIAL = {"name": "serial"}


def run(out: Path, method: str | dict[str, Any], **settings: Any) -> Result:
    """Run a few rounds on digits, with one client that does not take part in every round."""
    keys: dict[str, Any] = {"clients": 4, "rounds": 2, "engine": SERIAL, "participation": 0.75, **settings}
    if isinstance(keys.get("data"), Dataset):
        return api.run("quickstart", method=method, out=out, **keys)
    keys["data"] = {"dataset": "digits", "limit": 400, "test_limit": 200, **keys.get("data", {})}
    return api.run({"method": method, **keys}, out=out)


def accuracies(models: RunModels, clients: dict[str, TrainedClient]) -> dict[str, list[float]]:
    """Return the accuracy of every client on the samples of the run's evaluation, like `result.json`."""
    federation = models.federation
    found: dict[str, list[float]] = {"personal": [], "global": []}
    for name, trained in clients.items():
        for kind, samples in (("personal", federation.make_client(name).test), ("global", federation.global_test)):
            assert samples is not None
            correct = int((trained.predict(samples.inputs) == samples.labels).sum())
            found[kind].append(correct / len(samples))
    return found
