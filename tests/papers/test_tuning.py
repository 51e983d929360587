"""`scripts/tune.py`: values chosen on validation data are written into the file of a paper."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from tests.papers.toy_paper import with_entry

from polyfed.config import parse
from polyfed.papers.grid import cell_config
from polyfed.papers.loading import read_paper
from polyfed.papers.paper_file import Overrides


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tune", Path(__file__).parents[2] / "scripts" / "tune.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_learning_rate_comes_first_and_the_first_value_wins_ties(script: ModuleType) -> None:
    tried: list[Overrides] = []

    def score(values: Overrides) -> float:
        tried.append(values)
        return {0.009: 60.0}.get(values["train.lr"], 50.0)

    config = parse({"method": "fedproto", "train": {"lr": 0.003}})
    assert script.tune(config, score, full=False) == {"train.lr": 0.009}
    tried.clear()
    assert script.tune(config, score, full=True) == {"train.lr": 0.009, "method.guidance": 1.0}
    assert [values["train.lr"] for values in tried] == [0.003, 0.001, 0.009, 0.009, 0.009, 0.009]
    assert [values.get("method.guidance") for values in tried] == [None, None, None, 1.0, 0.1, 10.0]


def test_every_tuned_option_exists_with_its_default_first(script: ModuleType) -> None:
    for name, (key, values) in script.OPTIONS.items():
        config = parse({"method": name})
        default = config.method[key.removeprefix("method.")]
        assert values[0] == default or name in {"dffke", "fedl2g"}  # a preset's value, and a default by space
    logits = parse({"method": {"name": "fedl2g", "space": "logit"}})
    assert script.tuned_option(logits) != script.tuned_option(parse({"method": "fedl2g"}))


def test_the_file_gets_values_that_were_chosen_without_test_data(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {
        "clients": 2,
        "data.limit": 60,
        "data.partition.scheme": "iid",
        "models.group": ["tiny-cnn"],
        "rounds": 1,
    }
    raw = with_entry("settings/digits/cpu/set", {**small, "models.feature_map": None})
    raw["rows"]["local"]["cpu"] = {}
    raw["settings"]["other"] = raw["settings"]["digits"]
    file = tmp_path / "toy.yaml"
    file.write_text(yaml.safe_dump(raw))
    arguments = ["tune.py", str(file), "--rows", "local", "--out", str(tmp_path / "runs"), "--also", "other"]
    monkeypatch.setattr(sys, "argv", arguments)
    script.main()
    paper = read_paper(file)
    chosen = paper.tuned["digits"]["local"]["train.lr"]
    assert chosen in (0.003, 0.001, 0.009) and "fedvtc" in paper.tuned["digits"]
    assert paper.tuned["other"] == {"local": {"train.lr": chosen}}
    assert cell_config(paper, "cpu", ("digits", "local")).train.lr == chosen
    configs = [yaml.safe_load(path.read_text()) for path in sorted((tmp_path / "runs").glob("toy/*/config.yaml"))]
    assert [config["data"]["validation"] for config in configs] == [0.2] * 3
    assert {config["seed"] for config in configs} == {10}
