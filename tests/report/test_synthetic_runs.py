"""The figure of synthetic images, drawn from real runs for every round, with and without noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tests import small

from polyfed import api
from polyfed.report import Options, figure

DFFKE = {"name": "dffke", **small.DFFKE}
NOISE = {"embeddings": {"clip": 1.0, "noise": 2.0}}


def run(out: Path, privacy: Any) -> Path:
    keys: dict[str, Any] = {"clients": 2, "rounds": 2, "data": {"limit": 60}, "engine": {"name": "serial"}}
    api.run("quickstart", method=DFFKE, privacy=privacy, out=out, **keys)
    return out


@pytest.mark.parametrize("number", [1, 2])
def test_figure_for_every_round_with_and_without_noise(number: int, tmp_path: Path) -> None:
    folders = {name: run(tmp_path / name, privacy) for name, privacy in (("clean", None), ("noised", NOISE))}
    images = {}
    for name, folder in folders.items():
        file = tmp_path / f"{name}.png"
        spec, _ = figure("synthetic", [folder], file, options=Options(round=number))
        assert f"after round {number}" in spec.caption
        with Image.open(file) as shown:
            assert min(shown.size) > 100
        images[name] = load_file(folder / "artifacts" / f"synthetic-{number:06d}.safetensors")["images"]
        assert images[name].min() >= 0 and images[name].max() <= 1
    assert not torch.equal(images["clean"][:1], images["noised"][:1])
