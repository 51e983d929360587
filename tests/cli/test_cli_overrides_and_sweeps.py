"""Overrides of a config, and sweeps: axis values, folder names, allocation of cores."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.cli.sweep import allocate_cores
from polyfed.config.loading import apply_overrides, read_source
from polyfed.config.run_names import run_names
from polyfed.config.sweep import SweepRun, parse_seeds, plan_sweep, split_values
from polyfed.errors import InputError
from polyfed.runs.folder import RunFolder


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
    assert runs[0].name == "local-lr0.1-s0"
    assert runs[0].folder == tmp_path / runs[0].name
    assert {(r.config.method["name"], r.config.train.lr, r.config.seed) for r in runs} == {
        (method, lr, seed) for method in ("local", "fedproto") for lr in (0.1, 0.2) for seed in (0, 7)
    }
    assert all(run.config.rounds == 2 and run.config.run_name == run.name for run in runs)


def test_seeds() -> None:
    assert parse_seeds("0, 2,2,1") == [0, 2, 1]
    assert parse_seeds("0-4") == [0, 1, 2, 3, 4]
    assert parse_seeds("7, 0 - 2,1") == [7, 0, 1, 2]
    for wrong in ("1..3", "4-0", "-1", "", "0-"):
        with pytest.raises(InputError, match=f"--seeds is '{re.escape(wrong)}'; expected integers"):
            parse_seeds(wrong)


@pytest.mark.parametrize(
    ("axes", "names"),
    [
        (["method=local,fedproto", "clients=8", "rounds=8"], ["local-s0", "fedproto-s0"]),
        (["method=fedproto", "data.partition.alpha=0.1,1"], ["fedproto-a0.1-s0", "fedproto-a1-s0"]),
        (
            ["train.lr=0.1,1e-3", "clients=4,8"],
            [f"fedproto-lr{lr}-c{c}-s0" for lr in ("0.1", "1e-3") for c in (4, 8)],
        ),
        (["models.group=tiny4,[tiny-cnn, tiny-mlp]"], ["fedproto-tiny4-s0", "fedproto-tiny-cnn_tiny-mlp-s0"]),
        (["evaluate.cka=true,false"], ["fedproto-cka=true-s0", "fedproto-cka=false-s0"]),
        (
            ["method.guidance=0,0.5", "method.allow_degenerate=true"],
            ["fedproto-guidance0-s0", "fedproto-guidance0.5-s0"],
        ),
        ([], ["fedproto-s0"]),
    ],
)
def test_names_say_what_varies(axes: list[str], names: list[str], tmp_path: Path) -> None:
    assert [run.name for run in plan_sweep(read_source("quickstart"), axes, [0], tmp_path)] == names


def test_runs_of_earlier_sweeps_are_found(tmp_path: Path) -> None:
    def plan(axes: list[str], seeds: list[int]) -> list[SweepRun]:
        return plan_sweep(read_source("quickstart"), axes, seeds, tmp_path)

    def create(run: SweepRun, name: str) -> None:
        RunFolder(tmp_path / name).create(run.config.to_dict())

    create(plan(["rounds=5"], [0])[0], "rounds=5-seed0")  # a long name
    assert [run.name for run in plan(["rounds=5"], [0, 1])] == ["rounds=5-seed0", "fedproto-s1"]
    # with another value the names would be longer, but runs keep theirs
    assert [run.name for run in plan(["rounds=5,6"], [0])] == ["rounds=5-seed0", "fedproto-r6-s0"]
    # a name that another setting has gets a digest
    create(plan(["rounds=7"], [0])[0], "fedproto-s0")
    (other,) = plan(["rounds=8"], [0])
    assert other.name == f"fedproto-s0-{other.config.hash()[:6]}" and other.config.name == other.name


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.text(max_size=200), min_size=2, max_size=2), min_size=1, max_size=4))
def test_names_are_safe_and_distinct(rows: list[list[str]]) -> None:
    grid = [{"first": row[0], "some.second": row[1]} for row in {tuple(row): row for row in rows}.values()]
    names = run_names(["fedproto"] * len(grid), grid, [0, 1])
    assert len(set(names)) == len(names) == 2 * len(grid)
    for name in names:
        assert "/" not in name and name.isascii() and name.isprintable() and not name.startswith((".", "-"))
        assert 0 < len(name) < 200


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
