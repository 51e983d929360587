"""Peak memory of a server during aggregation, relative to the size of the model, with few and many clients."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MODEL, SIZE, SAMPLES_EACH, FEW, MANY = "resnet26", 8, 4, 5, 50


def measure() -> dict[str, Any]:
    """Return the additional memory of the server process in a round, relative to the model's size, and the ratio."""
    few, many = (_in_fresh_process(clients) for clients in (FEW, MANY))
    return {
        "figures": {
            f"peak_over_size_{FEW}_clients": round(few["peak_over_size"], 2),
            f"peak_over_size_{MANY}_clients": round(many["peak_over_size"], 2),
            "ratio": round(many["peak_over_size"] / few["peak_over_size"], 3),
            "size_mb": round(many["size"] / 1e6, 1),
        },
        "settings": {
            "model": MODEL,
            "clients": [FEW, MANY],
            "image": SIZE,
            "method": "fedavg",
            "server_filter": "inco",
            "rounds": 1,
            "steps": 1,
        },
    }


def _in_fresh_process(clients: int) -> dict[str, float]:
    """Measure in a new process, because the peak memory of a process never decreases."""
    command = [sys.executable, "-m", __name__, str(clients)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _one_round(clients: int) -> dict[str, float]:
    """Train one step on all clients. Pool workers are other processes, whose memory is not counted."""
    from polyfed.benchmarks.slicing import memory
    from polyfed.benchmarks.synthetic import images
    from polyfed.config import parse
    from polyfed.core.door import Door
    from polyfed.core.rounds import RoundLoop, initialise, one_torch_thread
    from polyfed.federation import simulation
    from polyfed.federation.engine_factory import make_engine

    config = parse(
        {
            "method": "fedavg",
            "server_filter": "inco",
            "models": {"group": [MODEL]},
            "clients": clients,
            "data": {"partition": {"scheme": "iid"}, "test_fraction": 0},
            "train": {"steps": 1, "batch_size": SAMPLES_EACH},
            "engine": {"memory_budget": "200MB"},
        }
    )
    with tempfile.TemporaryDirectory() as place, one_torch_thread():
        folder = Path(place)
        data = images("aggregation", clients * SAMPLES_EACH, SIZE, folder / "cache")
        federation = simulation.build_federation(config, data=data)
        roster = federation.profiles()
        federation.check_needs(roster)
        engine = make_engine(federation, folder / "states", folder / "federation")
        try:
            door, server = Door(federation.method, engine, roster), federation.server(roster)
            before = memory("VmRSS")
            initialise(federation.method, server)
            RoundLoop(federation.method, server, door).run_round(1)
        finally:
            engine.close()
        weights = server.memory.weights("model")
        size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
        return {"peak_over_size": (memory("VmHWM") - before) / size, "size": size}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_one_round(int(sys.argv[1]))))
