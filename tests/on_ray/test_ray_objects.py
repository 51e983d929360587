"""Arrays, modules and a method of a notebook: bit-identical on the serial engine and on Ray.

`tests/api/test_passed_objects.py` and `tests/engines/test_user_code.py` compare the serial engine with the pool.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests import warm_processes
from tests.engines.test_user_code import METHOD, MODELS, NOTEBOOK

CELLS = [
    MODELS,
    METHOD,
    """
import json
import numpy as np, torch
rng = np.random.default_rng(0)
x = rng.normal(size=(120, 1, 8, 8)).astype(np.float32)
y = (x.mean((1, 2, 3)) > 0).astype(int)
torch.manual_seed(3)
class Narrow(nn.Module):
    def __init__(self, units):
        super().__init__()
        self.body = nn.Linear(64, units)
        self.out = nn.Linear(units, 2)

    def forward(self, x):
        return self.out(torch.relu(self.body(x.flatten(1))))
models = [Narrow(5), Narrow(9), Wide, net]
""",
    """
for engine in ("serial", "ray"):
    result = polyfed.run(data=(x, y), models=models, method=OwnTraining(passes=2), clients=4, rounds=2,
                         engine={"name": engine, "workers": 1}, out=engine)
    print(json.dumps(result))
""",
]


def test_a_notebook_on_ray(tmp_path: Path, ray_home: Path) -> None:
    own = ray_home / "notebook"
    own.mkdir()
    environment = {**os.environ, "RAY_TMPDIR": str(own)}
    done = warm_processes.run("-c", NOTEBOOK, cwd=tmp_path, env=environment, input=json.dumps(CELLS))
    assert done.returncode == 0, done.stderr
    serial, ray = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert serial["failures"] == ray["failures"] == []
    for key in ("state_hash", "config_hash", "accuracy"):
        assert serial[key] == ray[key]
