"""Secure sums on Ray: bit-identical to the serial engine, also if a client drops out in the middle of a sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.on_ray.test_ray_runs import run

DROPPING = '''
import functools
from dataclasses import dataclass
from polyfed.core import register
from polyfed.methods.fedproto import FedProto

@register("toy-dropping")
@dataclass(frozen=True)
class Dropping(FedProto):
    """FedProto with a client that fails in the first round, after it has shared its secrets."""

    @functools.wraps(FedProto.train)
    def train(self, client, msg):
        if client.name == "2" and client.round == 1:
            raise RuntimeError("no memory left")
        return super().train(client, msg)
'''


@pytest.mark.all_methods  # sites and the pool have secure sums with drop-outs always, and DFFKE's calls run on Ray
def test_secure_sums_with_a_drop_out_equal_those_of_the_serial_engine(tmp_path: Path, cluster: Any) -> None:
    (tmp_path / "dropping.py").write_text(DROPPING)
    setting = {
        "method": "toy-dropping",
        "imports": [str(tmp_path / "dropping.py")],
        "aggregation": {"name": "mean", "secure": True},
        "failures": {"min_replies": 3},
    }
    ray = run(tmp_path / "ray", {"name": "ray", "workers": 1, "memory_budget": 1}, **setting)
    serial = run(tmp_path / "serial", {"name": "serial"}, **setting)
    for what in ("state_hash", "accuracy", "loss", "failures"):
        assert ray[what] == serial[what]
    assert [(f["round"], f["client"], f["steps"]) for f in ray["failures"]] == [(1, "2", ["masked_train"])]
