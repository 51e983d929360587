"""polyfed starts nothing that calls home: its commands run without a network, and every attempt is counted."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.deploy import no_network

ISOLATED = ["unshare", "--map-root-user", "--net", "--mount"]


def without_network(name: str, folder: Path) -> dict[str, Any]:
    """Run a command of `no_network` in a network namespace of its own. Return its output."""
    probe = subprocess.run([*ISOLATED, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0 and os.geteuid() != 0:
        pytest.skip("this system does not allow unprivileged users to create a network namespace")
    assert probe.returncode == 0, f"root cannot create a network namespace here: {probe.stderr}"
    command = [*ISOLATED, sys.executable, no_network.__file__, name, str(folder)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert process.returncode == 0, process.stderr[-2000:]
    output: dict[str, Any] = json.loads(process.stdout)
    return output


def test_attempts_are_detected(tmp_path: Path) -> None:
    """Every command of Flower checks for a newer version by default."""
    assert without_network("flower", tmp_path)["attempts"] > 0


def test_a_federation_uses_no_network(tmp_path: Path) -> None:
    output = without_network("federation", tmp_path)
    assert output["result"]["rounds"] == 1 and output["result"]["failures"] == []
    assert output["attempts"] == 0


@pytest.mark.all_methods  # tests/on_ray/test_ray_runs.py checks that Ray's processes are told to send nothing
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra 'ray'")
def test_ray_uses_no_network(tmp_path: Path) -> None:
    output = without_network("ray", tmp_path)
    assert output["result"]["rounds"] == 1 and output["result"]["failures"] == []
    assert output["attempts"] == 0
