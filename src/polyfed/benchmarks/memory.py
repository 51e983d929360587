"""Peak memory of a client in a round of FedVTC, compared with FedProto with the same model.

The figure is the size of the model's weights plus the peak of torch's allocations in a step: gradients, activations,
the decoder, messages. The growth of the process is reported as well; it also depends on the allocator.
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
# model: image size and feature map. One of the paper's models, and one that is hardly larger than the decoder
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
    """Return the peak in MB by model and method, and the ratio of FedVTC to FedProto."""
    figures: dict[str, float] = {}
    for case in CASES:
        peaks = {name: _in_fresh_process(case, name) for name in METHODS}
        for name, (allocated, growth) in peaks.items():
            figures[f"{case}_{name}_mb"] = round(allocated / 1e6, 2)
            figures[f"{case}_{name}_process_mb"] = round(growth / 1e6, 2)
        for name in list(METHODS)[1:]:
            figures[f"{case}_{name}_over_fedproto"] = round(peaks[name][0] / peaks["fedproto"][0], 3)
    return {"figures": figures, "settings": {"batch": BATCH, "samples": SAMPLES, "cases": CASES, "methods": METHODS}}


def peak_allocated(work: Callable[[], object]) -> int:
    """Return the peak of torch's CPU allocations during `work`, in bytes, without what was allocated before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    results: Any = profiler.profiler.kineto_results
    changes = sorted((e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]")
    current = peak = 0
    for _, change in changes:
        current += change
        peak = max(peak, current)
    return peak


def _in_fresh_process(case: str, method: str) -> tuple[int, int]:
    """Measure in a new process, because the peak memory of a process never decreases."""
    command = [sys.executable, "-m", __name__, case, method]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    allocated, growth = json.loads(done.stdout.strip().splitlines()[-1])
    return int(allocated), int(growth)


def _one_step(case: str, name: str) -> tuple[int, int]:
    """Run two steps of one client. Return the allocations of the second step and the process growth of the first."""
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
        federation = simulation.build_federation(config, data=data, method=method)
        client = federation.make_client("0")
        width = client.profile.features
        message: dict[str, Value] = {"prototypes": ClassTable.empty(width).without_counts()}
        if METHODS[name]["name"] == "fedvtc":
            message["deviation"] = torch.ones(width)
        before = memory("VmRSS")
        reply = Payload(method.train(client, Payload(message)))
        growth = memory("VmHWM") - before
        message["prototypes"] = reply.table("prototypes").without_counts()
        return 4 * client.profile.size + peak_allocated(lambda: method.train(client, Payload(message))), growth


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write("\n" + json.dumps(_one_step(*sys.argv[1:])) + "\n")
