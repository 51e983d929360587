"""What a client holds at its peak while it takes part in a round of FedVTC, against FedProto with the same model.

Counted are the model's weights and the largest sum of what torch had allocated at once in a step: gradients,
activations, the decoder, messages. The growth of the process stands beside it; that depends on the allocator too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

BATCH, SAMPLES = 16, 32
# by model, pixels a side and feature map: one of the paper's models, and one that is hardly larger than the decoder
CASES: dict[str, tuple[int, list[int]]] = {"resnet18": (32, [64, 8, 8]), "tiny-resnet": (28, [20, 7, 7])}
METHODS: dict[str, dict[str, Any]] = {
    "fedproto": {"name": "fedproto"},
    "fedvtc": {"name": "fedvtc"},
    "fedvtc_without_recompute": {"name": "fedvtc", "recompute": False},
    "fedvtc_without_matching": {
        "name": "fedvtc",
        "matching": 0.0,
    },  # one gradient of the extractor, not two
}


def measure() -> dict[str, Any]:
    """Figures: MB at the peak by model and method, and FedVTC's over FedProto's."""
    figures: dict[str, float] = {}
    for case in CASES:
        found = {name: _in_fresh_process(case, name) for name in METHODS}
        for name, (allocated, grown) in found.items():
            figures[f"{case}_{name}_mb"] = round(allocated / 1e6, 2)
            figures[f"{case}_{name}_process_mb"] = round(grown / 1e6, 2)
        for name in list(METHODS)[1:]:
            figures[f"{case}_{name}_over_fedproto"] = round(found[name][0] / found["fedproto"][0], 3)
    return {"figures": figures, "settings": {"batch": BATCH, "samples": SAMPLES, "cases": CASES, "methods": METHODS}}


def peak_allocated(work: Callable[[], object]) -> int:
    """The most bytes that torch's CPU allocator had handed out at once while `work` ran, and not before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        work()
    results: Any = watched.profiler.kineto_results
    changes = sorted((e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]")
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most


def _in_fresh_process(case: str, method: str) -> tuple[int, int]:
    """Peak memory never falls, so that each measurement needs a process of its own."""
    command = [sys.executable, "-m", __name__, case, method]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    allocated, grown = json.loads(done.stdout.strip().splitlines()[-1])
    return int(allocated), int(grown)


def _one_step(case: str, name: str) -> tuple[int, int]:
    """Two steps of one client: the growth of the process in the first, and what is allocated in the second."""
    from polyfed import catalogue
    from polyfed.benchmarks.slicing import memory
    from polyfed.benchmarks.synthetic import images
    from polyfed.config import parse
    from polyfed.core import ClassTable, Payload
    from polyfed.core.payload import Value
    from polyfed.federation import simulation

    size, feature_map = CASES[case]
    config = parse(
        {
            "method": METHODS[name],
            "models": {"group": [case], "feature_map": feature_map},
            "clients": 1,
            "data": {"partition": {"scheme": "iid"}, "test_fraction": 0},
            "train": {"batch_size": BATCH},
        }
    )
    method: Any = catalogue.make(config.method)
    with tempfile.TemporaryDirectory() as place:
        data = images("memory", SAMPLES, size, Path(place))
        made = simulation.build_federation(config, data=data, method=method)
        client = made.make_client("0")
        width = client.profile.features
        sent: dict[str, Value] = {"prototypes": ClassTable.empty(width).without_counts()}
        if METHODS[name]["name"] == "fedvtc":
            sent["deviation"] = torch.ones(width)
        before = memory("VmRSS")
        reply = Payload(method.train(client, Payload(sent)))
        grown = memory("VmHWM") - before
        sent["prototypes"] = reply.table("prototypes").without_counts()
        return 4 * client.profile.size + peak_allocated(lambda: method.train(client, Payload(sent))), grown


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write("\n" + json.dumps(_one_step(*sys.argv[1:])) + "\n")
