"""Nothing calls home: what polyfed starts is run where there is no way out, and every attempt is counted."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.deploy import offline

APART = ["unshare", "--map-root-user", "--net", "--mount"]


def alone(what: str, folder: Path) -> dict[str, Any]:
    """What `offline` says of something that it does in a network namespace of its own."""
    tried = subprocess.run([*APART, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0 and os.geteuid() != 0:
        pytest.skip("this system does not let a user without rights make a network namespace")
    assert tried.returncode == 0, f"the administrator cannot make a network namespace here: {tried.stderr}"
    command = [*APART, sys.executable, offline.__file__, what, str(folder)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert said.returncode == 0, said.stderr[-2000:]
    answer: dict[str, Any] = json.loads(said.stdout)
    return answer


def test_an_attempt_is_seen(tmp_path: Path) -> None:
    """Flower as it is looks for a newer version of itself when any of its commands is started."""
    assert alone("caller", tmp_path)["attempts"] > 0


def test_a_federation_stays_at_home(tmp_path: Path) -> None:
    answer = alone("federation", tmp_path)
    assert answer["result"]["rounds"] == 1 and answer["result"]["failures"] == []
    assert answer["attempts"] == 0


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra 'ray'")
def test_ray_stays_at_home(tmp_path: Path) -> None:
    answer = alone("ray", tmp_path)
    assert answer["result"]["rounds"] == 1 and answer["result"]["failures"] == []
    assert answer["attempts"] == 0
