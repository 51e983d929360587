"""Synthetic images of real runs can be looked at: of every round, and with noise on what they were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tests import small

from polyfed import api, report

DFFKE = {"name": "dffke", **small.DFFKE}
NOISE = {"embeddings": {"clip": 1.0, "noise": 2.0}}


def run(out: Path, privacy: Any) -> Path:
    keys: dict[str, Any] = {"clients": 2, "rounds": 2, "data": {"limit": 60}, "engine": {"name": "serial"}}
    api.run("quickstart", method=DFFKE, privacy=privacy, out=out, **keys)
    return out


@pytest.mark.parametrize("number", [1, 2])
def test_of_every_round_with_and_without_noise(number: int, tmp_path: Path) -> None:
    folders = {name: run(tmp_path / name, wanted) for name, wanted in (("bare", None), ("noised", NOISE))}
    seen = {}
    for name, folder in folders.items():
        file = tmp_path / f"{name}.png"
        spec, _ = report.figure("synthetic", [folder], file, options=report.Options(round=number))
        assert f"after round {number}" in spec.caption
        with Image.open(file) as shown:
            assert min(shown.size) > 100
        seen[name] = load_file(folder / "artifacts" / f"synthetic-{number:06d}.safetensors")["images"]
        assert seen[name].min() >= 0 and seen[name].max() <= 1
    assert not torch.equal(seen["bare"][:1], seen["noised"][:1])
