"""Overrides of a config, and sweeps: axis values, folder names, allocation of cores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.cli.sweep import allocate_cores
from polyfed.config.loading import apply_overrides, read_source
from polyfed.config.sweep import folder_name, parse_seeds, plan_sweep, split_values
from polyfed.errors import InputError


@pytest.mark.parametrize(
    ("overrides", "key", "expected"),
    [
        (["train.lr=0.5"], "train", {"epochs": 1, "batch_size": 10, "optimizer": "sgd", "lr": 0.5}),
        (["method=local"], "method", {"name": "local"}),
        (["method.name=local"], "method", {"name": "local"}),
        (["method=fedproto"], "method", {"name": "fedproto", "guidance": 3}),
        (["method={name: local}"], "method", {"name": "local"}),
        (["method={guidance: 2}"], "method", {"name": "fedproto", "guidance": 2}),
        (
            ["method.weights=counts", "method=fedproto"],
            "method",
            {"name": "fedproto", "guidance": 3, "weights": "counts"},
        ),
        (["data.partition.scheme=iid"], "data", {"dataset": "digits", "partition": {"scheme": "iid"}}),
    ],
)
def test_selecting_another_method_or_scheme_drops_the_old_options(
    overrides: list[str], key: str, expected: Any
) -> None:
    raw = apply_overrides(read_source("quickstart"), ["method.guidance=3"])
    assert apply_overrides(raw, overrides)[key] == expected
    assert raw["method"] == {"name": "fedproto", "guidance": 3}  # the input is not modified


def test_options_may_precede_their_selector() -> None:
    texts = ["data.partition.classes_per_client=3", "data.partition.scheme=pathological"]
    wanted = {"scheme": "pathological", "classes_per_client": 3}
    assert apply_overrides(read_source("quickstart"), texts)["data"]["partition"] == wanted


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("local,fedproto", ["local", "fedproto"]),
        ("[a, b],[c]", ["[a, b]", "[c]"]),
        ("{x: 1, y: [2, 3]},4", ["{x: 1, y: [2, 3]}", "4"]),
        ("'a,b',\"c,'d\"", ["'a,b'", '"c,\'d"']),
        ("one", ["one"]),
    ],
)
def test_values_are_split_at_outer_commas(text: str, parts: list[str]) -> None:
    assert split_values(text) == parts


def test_the_grid_times_the_seeds(tmp_path: Path) -> None:
    runs = plan_sweep(
        read_source("quickstart"), ["method=local,fedproto", "train.lr=0.1,0.2", "rounds=2"], [0, 7], tmp_path
    )
    assert len(runs) == 8 and len({run.name for run in runs}) == 8
    assert runs[0].name == "method=local,train.lr=0.1,rounds=2-seed0"
    assert runs[0].folder == tmp_path / runs[0].name
    assert {(r.config.method["name"], r.config.train.lr, r.config.seed) for r in runs} == {
        (method, lr, seed) for method in ("local", "fedproto") for lr in (0.1, 0.2) for seed in (0, 7)
    }
    assert all(run.config.rounds == 2 and run.config.run_name == run.name for run in runs)


def test_seeds() -> None:
    assert parse_seeds("0, 2,2,1") == [0, 2, 1]
    with pytest.raises(InputError, match=r"--seeds is '1\.\.3'"):
        parse_seeds("1..3")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=200), max_size=3), st.lists(st.text(max_size=200), max_size=3))
def test_folder_names_are_safe_and_distinct(first: list[str], second: list[str]) -> None:
    names = [folder_name([f"k={value}" for value in values], 0) for values in (first, second)]
    for name in names:
        assert "/" not in name and name.isascii() and name.isprintable() and not name.startswith((".", "-"))
        assert 0 < len(name) < 200
    if ",".join(first) != ",".join(second) or len(first) != len(second):
        assert names[0] != names[1]


@pytest.mark.parametrize(
    ("engine", "runs", "jobs", "cores", "engines"),
    [
        ({}, 8, None, 4, (4, "serial", "auto")),
        ({}, 2, None, 8, (2, "pool", 4)),
        ({}, 8, 2, 8, (2, "pool", 4)),
        ({}, 8, 1, 4, (1, "pool", 4)),
        ({}, 1, None, 1, (1, "serial", "auto")),
        ({"workers": 2}, 8, None, 4, (2, "pool", 2)),
        ({"workers": 16}, 8, None, 4, (1, "pool", 16)),
        ({"name": "serial"}, 3, None, 4, (3, "serial", "auto")),
    ],
)
def test_all_cores_are_allocated_once(
    engine: dict[str, Any],
    runs: int,
    jobs: int | None,
    cores: int,
    engines: tuple[int, str, int | str],
    tmp_path: Path,
) -> None:
    planned = plan_sweep({"engine": engine}, [], list(range(runs)), tmp_path)
    allocated, count = allocate_cores(planned, jobs, cores)
    assert {(count, run.config.engine.name, run.config.engine.workers) for run in allocated} == {engines}
    assert [run.config.hash() for run in allocated] == [run.config.hash() for run in planned]
